"""Memories that are functions: how they are read, and what they are to learn of a key and a value.

A rule is functions of rows, each with its own weights. For a perceptron the derivative is written
down, so that many rows are learned and read by products of matrices; of any other function PyTorch
finds it.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = Sequence[Tensor]


@runtime_checkable  # as the shape checker of the test run needs it to be
class Rule(Protocol):
    """A function with weights, and a loss; see `inner_scan` for where they stand.

    Rows (..., d) have any leading axes, and so have their weights; constants fit by broadcasting.
    """

    def loss(self, mode: str, weights: Tensors, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """The numbers (...) that a gradient step of the weights makes smaller."""

    def read(self, mode: str, weights: Tensors, q: Tensor, constants: Tensors) -> Tensor:
        """The reads of queries."""


@runtime_checkable
class PerceptronRule(Rule, Protocol):
    """A rule whose function is a perceptron, of the activation that the mode names.

    Weights are a matrix (d_in, d_out) for each layer, and behind it a bias (d_out,) if it has one.
    """

    def error(self, y: Tensor, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """The derivative of the loss by the output y of the perceptron."""

    def output(self, y: Tensor, q: Tensor, constants: Tensors) -> Tensor:
        """The read, from the output of the perceptron."""


RULES: dict[str, Rule] = {}
"""By name: an operator of a compiler's graph takes no functions."""


def is_perceptron(rule: Rule) -> TypeGuard[PerceptronRule]:
    """Whether a rule has its derivative written down."""
    return isinstance(rule, PerceptronRule)


class Activation(NamedTuple):
    """A function of single numbers, and its derivative."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


_ROOT = (2 / pi) ** 0.5
_CUBE = 0.044715


def _gelu_slope(z: Tensor) -> Tensor:
    bell = (-z.square() / 2).exp() * (2 * pi) ** -0.5
    slope: Tensor = (1 + torch.erf(z * 2**-0.5)) / 2 + z * bell
    return slope


def _gelu_tanh(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def _gelu_tanh_slope(z: Tensor) -> Tensor:
    square = z.square()
    t = torch.tanh(_ROOT * z * (1 + _CUBE * square))
    slope: Tensor = (1 + t) / 2 + z * (1 - t * t) * (_ROOT / 2) * (1 + 3 * _CUBE * square)
    return slope


def _silu_slope(z: Tensor) -> Tensor:
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


ACTIVATIONS = {
    "gelu": Activation(F.gelu, _gelu_slope),
    "gelu_tanh": Activation(_gelu_tanh, _gelu_tanh_slope),
    "silu": Activation(F.silu, _silu_slope),
}

Layer = tuple[Tensor, Tensor | None]


def layers_of(weights: Tensors) -> list[Layer]:
    """Matrices, each with the bias behind it or None."""
    rank = weights[0].ndim
    layers: list[Layer] = []
    for w in weights:
        if w.ndim == rank:
            layers.append((w, None))
        else:
            layers[-1] = (layers[-1][0], w)
    return layers


def predict(activation: str, weights: Tensors, x: Tensor) -> Tensor:
    """The outputs of a perceptron for rows (..., d_in) with weights of their own."""
    layers = layers_of(weights)
    for i, (W, b) in enumerate(layers):
        x = (x[..., None, :] @ W).squeeze(-2)  # (..., columns)
        x = x if b is None else x + b
        if i < len(layers) - 1:
            x = ACTIVATIONS[activation].value(x)
    return x


class Regression:
    """``loss = |f(k) - v|^2``; f(q) is read."""

    @staticmethod
    def loss(mode: str, weights: Tensors, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """See `Rule`."""
        return (predict(mode, weights, k) - v).square().sum(-1)

    @staticmethod
    def read(mode: str, weights: Tensors, q: Tensor, constants: Tensors) -> Tensor:
        """See `Rule`."""
        return predict(mode, weights, q)

    @staticmethod
    def error(y: Tensor, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """See `PerceptronRule`."""
        return 2 * (y - v)

    @staticmethod
    def output(y: Tensor, q: Tensor, constants: Tensors) -> Tensor:
        """See `PerceptronRule`."""
        return y


_EPS = 1e-6


def _normed(y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of mean 0 and variance 1, and one over their deviation before."""
    y = y - y.mean(-1, keepdim=True)
    size = (y.square().mean(-1, keepdim=True) + _EPS).rsqrt()
    return y * size, size


class ResidualRegression:
    """``loss = |norm(f(k)) - (v - k)|^2 / 2``; ``q + norm(f(q))`` is read.

    The norm takes the mean away, divides by the deviation, and has weights and biases of each head,
    the constants.
    """

    @staticmethod
    def loss(mode: str, weights: Tensors, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """See `Rule`."""
        gain, bias = constants
        normed, _ = _normed(predict(mode, weights, k))
        return (normed * gain + bias - (v - k)).square().sum(-1) / 2

    @staticmethod
    def read(mode: str, weights: Tensors, q: Tensor, constants: Tensors) -> Tensor:
        """See `Rule`."""
        return ResidualRegression.output(predict(mode, weights, q), q, constants)

    @staticmethod
    def error(y: Tensor, k: Tensor, v: Tensor, constants: Tensors) -> Tensor:
        """See `PerceptronRule`."""
        gain, bias = constants
        normed, size = _normed(y)
        inward = (normed * gain + bias - (v - k)) * gain
        along = (inward * normed).mean(-1, keepdim=True)
        return (inward - inward.mean(-1, keepdim=True) - normed * along) * size

    @staticmethod
    def output(y: Tensor, q: Tensor, constants: Tensors) -> Tensor:
        """See `PerceptronRule`."""
        gain, bias = constants
        return q + _normed(y)[0] * gain + bias


RULES["regression"] = Regression()
RULES["residual_regression"] = ResidualRegression()

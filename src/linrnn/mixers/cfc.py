"""Closed-form continuous-time network."""

from inspect import Parameter, Signature
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.errors import check_few, check_in, check_positive_int
from linrnn.mixers._contract.choices import Choices
from linrnn.mixers._families.cell_rnn import MOST_WRITTEN_OUT, CellRNN, Family, Timed, timed
from linrnn.nn.affine import affine_of
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.ops.half_linear import half_linear

ACTIVATIONS: dict[str, Any] = {
    "lecun_tanh": lambda z: 1.7159 * torch.tanh(0.666 * z),
    "tanh": torch.tanh,
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
}
_HEADS = {"default": "ghab", "no_gate": "ghab", "pure": "g"}


def _cells(mode: str, layers: int, activation: str) -> Timed:
    """The step with ``layers`` layers in its backbone; ``u`` is the input's share of the first."""
    deeper, heads = range(1, layers), _HEADS[mode]
    matrices = ["R", *(f"W{i}" for i in deeper), *(f"W{head}" for head in heads)]
    constants = [*(f"b{i}" for i in deeper), *(f"b{head}" for head in heads)]
    constants += ["w_tau", "A"] if mode == "pure" else []
    names, act = ["x", "u", "dt", *matrices, *constants], ACTIVATIONS[activation]

    def step(*values: Any, **named: Any) -> tuple[Any, Any]:
        p = dict(zip(names, values, strict=False)) | named
        z = act(p["u"] + F.linear(p["x"], p["R"]))
        for i in deeper:
            z = act(F.linear(z, p[f"W{i}"]) + p[f"b{i}"])
        g, *remaining = (F.linear(z, p[f"W{head}"]) + p[f"b{head}"] for head in heads)
        if mode == "pure":
            x = p["A"] - p["A"] * torch.exp(-p["dt"] * (p["w_tau"].abs() + g.abs())) * g
            return x, x
        h, a, b = remaining
        s = torch.sigmoid(a * p["dt"] + b)
        x = torch.tanh(g) * (1 if mode == "no_gate" else 1 - s) + s * torch.tanh(h)
        return x, x

    step.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    kinds: dict[str, Any] = {"state": "x", "constant": constants, "matrix": matrices}
    return timed(cfc=Cell(step, **kinds, name=f"cfc, {mode}"))["cfc"]


class CfC(CellRNN):
    r"""Closed-form continuous-time network (CfC): a gate approximates the solution of an ODE.

    Equation:
        z = phi(W [u_t; x_{t-1}] + b), phi again for each further layer of the backbone
        default  x_t = (1 - s) * tanh(g) + s * tanh(h),    s = sigmoid(a dt_t + b)
        no_gate  x_t = tanh(g) + s * tanh(h)
        pure     x_t = A - A * exp(-dt_t (|w_tau| + |g|)) * g
        g, h, a, b are linear in z, with biases; u is the input, x in R^{d_state} the state. dt is
        the time since the step before, 1 by default. Read out is x, mapped by a linear layer
        where d_state is not d_model. |x| <= 1 by default.
        Initially matrices are Glorot-uniform, biases as in `torch.nn.Linear`, w_tau = 0, A = 1.

    Args:
        d_state: channels of x. Default: d_model.
        mode: default, pure or no_gate.
        backbone_units, backbone_layers: width and number of layers of the backbone.
        activation: phi, "lecun_tanh" (1.7159 tanh(0.666 z)), "tanh", "silu", "relu" or "gelu".

    Departures from the paper:
        The formulas are those of its public code, which differ from the paper's in sign and in
        that the times' gate has two maps. In "pure" |w_tau| has no slope at 0, where it starts, and
        stays there. No sparse wiring, dropout in the backbone or mixed memory.

    Example:
        >>> layer, dt = CfC(d_model=4), torch.rand(2, 100)
        >>> y, state = layer(torch.randn(2, 100, 4), dt=dt)
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 4]))

    Reference:
        Hasani et al., "Closed-form Continuous-time Neural Networks", Nature Machine Intelligence
        2022, arXiv:2106.13898. Key: hasani2022closed.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "continuous"
    choices = Choices(transition="dense", gate="state", memory="vector", steps="nonlinear")
    cells: ClassVar[Family] = Family(_cells)

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        mode: Literal["default", "pure", "no_gate"] = "default",
        backbone_units: int = 128,
        backbone_layers: int = 1,
        activation: Literal["lecun_tanh", "tanh", "silu", "relu", "gelu"] = "lecun_tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("CfC", "mode", mode, _HEADS)
        check_in("CfC", "activation", activation, ACTIVATIONS)
        check_positive_int("CfC", backbone_units=backbone_units)
        check_few("CfC", MOST_WRITTEN_OUT, backbone_layers=backbone_layers)
        self.mode, self.activation = mode, activation
        self.backbone_units, self.backbone_layers = backbone_units, backbone_layers
        to: Any = {"device": device, "dtype": dtype}
        N, units = self._set_sizes(d_model, d_state, to), backbone_units
        widths = [d_model + N, *[units] * (backbone_layers - 1)]
        self.backbone = nn.ModuleList(Linear(width, units, **to) for width in widths)
        self.heads = nn.ModuleDict({head: Linear(units, N, **to) for head in _HEADS[mode]})
        empty = empty_parameters(device, dtype)
        self.w_tau, self.A = (empty(N) if mode == "pure" else None for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        super().reset_parameters()
        for linear in (*self.backbone, *self.heads.values()):
            linear.reset_parameters()
            nn.init.xavier_uniform_(linear.weight)
        if self.w_tau is not None and self.A is not None:
            nn.init.zeros_(self.w_tau)
            nn.init.ones_(self.A)

    def _key(self) -> tuple[Any, ...]:
        return self.mode, self.backbone_layers, self.activation

    def _given(self, x: Tensor, dt: Tensor | None) -> dict[str, Any]:
        first: Any = self.backbone[0]
        both, b = affine_of(first, x)
        W, R = both.split([self.d_model, self.d_state], 1)  # (units, d_model), (units, d_state)
        inputs = {"u": half_linear(x, W, b), "R": R}
        named = [(str(i), self.backbone[i]) for i in range(1, self.backbone_layers)]
        for name, linear in (*named, *self.heads.items()):
            inputs |= zip((f"W{name}", f"b{name}"), affine_of(linear, x), strict=True)
        return inputs if self.A is None else inputs | {"w_tau": self.w_tau, "A": self.A}

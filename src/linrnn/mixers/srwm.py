"""SRWM: a weight matrix that learns to modify itself."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn import GatedOut, empty_parameters
from linrnn.ops.matrix.fast_weights import self_referential, self_referential_step
from linrnn.state_spec import Part, real


class SRWM(Mixer):
    r"""Self-referential weight matrix: it maps the input and outputs its own update.

    Equation:
        x_t = head's d channels of the input, or their softmax                in each head
        y_t, q', k', b = W_{t-1}^T x_t              W is d by 3 d + 4; y, q', k' in R^d, b in R^4
        q, k, beta = softmax(q'), softmax(k'), sigmoid(b)
        W_t = W_{t-1} + k (beta * (W_{t-1}^T q - W_{t-1}^T k))^T
        output W_o y_t
        The four rates are those of the columns of y, q', k' and b. W_0 is a parameter; the state is
        the change W_t - W_0. Initially W_0 ~ N(0, 1/d), in the columns of b about beta_init; W_o is
        as in `torch.nn.Linear`.
        Nothing bounds W: four heads of 16 channels held 2 after 8,192 steps of white input, and 8e8
        after 24,576; with the softmax of every head's input 2.2 all along.

    Args:
        n_heads: heads, a divisor of d_model. Default: d_model / 16 where 16 divides it, or 1.
        input_softmax: take the softmax of every head's input.
        beta_init: mean of the initial weights of the rates.

    Departures from the paper:
        The survey prints the new matrix in the first lines; all of them read the old one. Norm and
        feed-forward layer around it belong to the block.

    Example:
        >>> y, state = SRWM(d_model=8, n_heads=2)(torch.randn(2, 100, 8))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 8]), torch.Size([2, 2, 4, 16]))

    Reference:
        Irie et al., "A Modern Self-Referential Weight Matrix That Learns to Modify Itself", ICML
        2022, arXiv:2202.05780. Key: irie2022modern.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ()

    family: ClassVar[str] = "linear-attention"
    choices = Choices(transition="delta", gate="state", memory="matrix", steps="nonlinear")
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("W",)

    def __init__(
        self,
        d_model: int,
        *,
        n_heads: int | None = None,
        input_softmax: bool = False,
        beta_init: float = -1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.input_softmax, self.beta_init = d_model, input_softmax, beta_init
        self.n_heads = (1 if d_model % 16 else d_model // 16) if n_heads is None else n_heads
        check_positive_int("SRWM", n_heads=self.n_heads)
        if d_model % self.n_heads:
            raise ArgumentError(
                f"SRWM: n_heads must divide the d_model of {d_model}, got {self.n_heads}."
            )
        self.d_head = d_model // self.n_heads
        self.W = empty_parameters(device, dtype)(self.n_heads, self.d_head, 3 * self.d_head + 4)
        to: Any = {"device": device, "dtype": dtype}
        self.out = GatedOut(d_model, self.n_heads, self.d_head, norm="none", gate="none", **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.normal_(self.W, std=self.d_head**-0.5)
        self.W[..., -4:] += self.beta_init
        self.out.reset_parameters()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`: the change of W."""
        return real(n_heads=self.n_heads, d_head=self.d_head, columns=3 * self.d_head + 4)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        with without_autocast(x.device):
            y, shift = self_referential(self._inputs(x), wide(self.W), state, reset)
        return self.out(y, x), shift

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        with without_autocast(x_t.device):
            y, shift = self_referential_step(self._inputs(x_t), wide(self.W), state)
        return self.out(y, x_t), shift

    def _inputs(self, x: Tensor) -> Tensor:
        inputs: Tensor = wide(x.to(self.W.dtype)).unflatten(-1, (self.n_heads, -1))
        return inputs.softmax(-1) if self.input_softmax else inputs

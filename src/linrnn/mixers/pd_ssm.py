"""PD-SSM, a state space whose transition is a scaled permutation that the input chooses."""

from collections.abc import Mapping
from math import pi
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import block_scan
from linrnn.state_spec import Part

_ONE_HOT = "the largest number of a column has a gradient by agreement, that of a softmax"


class PDSSM(Mixer):
    r"""PD-SSM: the input moves every number of the state to another place, and scales it.

    Equation:
        h_t = P_t D_t h_{t-1} + B u_t             h in C^{d_state},  h_{-1} = (1, 0, .., 0)
        y_t = W_y [Re h_t; Im h_t] + b_y + skip * u_t
        D_t = diag(sigmoid(m(u_t)) exp(2 pi i sigmoid(p(u_t))))
        M_t = sum over k of softmax(S u_t)_k M_k  (d_state, d_state), k < dictionary_size
        P_t has 1 in each column, in the row of the largest number of that column of M_t
        With one_hot "rows" it has 1 in each row, in the column of the largest number of that row,
        and h_t = D_t P_t h_{t-1} + B u_t.
        The gradient takes P_t for the softmax of the columns of M_t, or of its rows. m and p are
        networks with one hidden layer of hidden_factor d_state GELUs.
        Initially M_k is N(0, 1 / d_state), B N(0, 1 / (2 d_state)) in each part and skip
        N(0, 1 / d_model), and maps are as in torch.nn.Linear.
        Parameters: dictionary (dictionary_size, d_state, d_state), B (d_state, 2, d_model) holds
        Re B and Im B

    Args:
        d_state: numbers of the state. Default: d_model.
        dictionary_size: matrices M_k.
        one_hot: "columns", as in the paper and the public code in JAX, or "rows", as in the public
            code in PyTorch, see above.
        hidden_factor: hidden units of m and of p for each number of the state.

    Departures from the paper:
        Extension beyond the survey. The LayerNorm and the dropout that follow belong to the block
        around a mixer. M_t is held for every step, which costs d_state^2 numbers each.

    Example:
        >>> y, state = PDSSM(d_model=4, d_state=8)(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 4]), torch.Size([2, 8]))

    Reference:
        Terzić et al., "Structured Sparse Transition Matrices to Enable State Tracking in
        State-Space Models", NeurIPS 2025, arXiv:2509.22284. Key: terzic2025structured.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("dictionary", "B")

    family: ClassVar[str] = "ssm"
    declared: ClassVar[Mapping[str, str]] = {
        "gradients": _ONE_HOT,
        "higher_derivatives": _ONE_HOT,
    }
    choices = Choices(transition="local", gate="input", memory="vector")
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("dictionary", "B")

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int | None = None,
        dictionary_size: int = 8,
        one_hot: Literal["columns", "rows"] = "columns",
        hidden_factor: int = 2,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.dictionary_size, self.one_hot = dictionary_size, one_hot
        self.hidden_factor = hidden_factor
        check_positive_int("PDSSM", d_state=self.d_state, dictionary_size=dictionary_size)
        check_positive_int("PDSSM", hidden_factor=hidden_factor)
        check_in("PDSSM", "one_hot", one_hot, ("columns", "rows"))
        to: Any = {"device": device, "dtype": dtype}
        empty, N, hidden = (
            empty_parameters(device, dtype),
            self.d_state,
            hidden_factor * self.d_state,
        )
        self.selector = nn.Linear(d_model, dictionary_size, bias=False, **to)
        self.dictionary = empty(dictionary_size, N, N)
        self.magnitude, self.phase = (
            nn.Sequential(nn.Linear(d_model, hidden, **to), nn.GELU(), nn.Linear(hidden, N, **to))
            for _ in range(2)
        )
        self.B = empty(N, 2, d_model)  # Re B, Im B
        self.skip = empty(d_model)
        self.readout = nn.Linear(2 * N, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.normal_(self.dictionary, std=self.d_state**-0.5)
        nn.init.normal_(self.B, std=(2 * self.d_state) ** -0.5)
        nn.init.normal_(self.skip, std=self.d_model**-0.5)
        parts = (self.selector, *self.magnitude, *self.phase, self.readout)
        for part in parts:
            if isinstance(part, nn.Linear):
                part.reset_parameters()

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`: h, which begins from (1, 0, .., 0)."""
        start = torch.zeros(self.d_state)
        start[0] = 1
        return Part("complex", {"d_state": self.d_state}, start)

    def _read(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        dtype = self.B.dtype
        u = x.to(dtype)
        scale = torch.polar(
            wide(self.magnitude(u)).sigmoid(), 2 * pi * wide(self.phase(u)).sigmoid()
        )  # (B, T, N)
        b = wide(F.linear(u, self.B.flatten(0, 1))).unflatten(-1, (self.d_state, 2))
        b = torch.view_as_complex(b)
        with without_autocast(x.device):
            M = self._choices(wide(u))  # (B, T, N, N)
            places = M.argmax(-2 if self.one_hot == "columns" else -1)  # (B, T, N)
            if reset is not None:
                b = b + torch.where(reset.unsqueeze(-1), self._started(scale, places), 0)
            if torch.is_grad_enabled():
                b = b + self._through(M, scale, places, b, h, reset)
            h, last = self._scan(scale, places, b, h, reset)
        read = self.readout(torch.cat([h.real, h.imag], -1).to(dtype))
        return read + self.skip * u, last

    def _choices(self, u: Tensor) -> Tensor:
        """``M``, in single precision at least, for what is largest shall not hang on rounding."""
        weights = F.linear(u, wide(self.selector.weight)).softmax(-1)  # (B, T, K)
        M: Tensor = weights @ wide(self.dictionary).flatten(1)
        return M.view(*M.shape[:-1], self.d_state, self.d_state)

    def _scan(
        self, scale: Tensor, places: Tensor, b: Tensor, h: Tensor, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        index: dict[str, Any] = {"rows" if self.one_hot == "columns" else "columns": places}
        return block_scan(scale, b, h, **index, reset=reset)

    def _started(self, scale: Tensor, places: Tensor) -> Tensor:
        """What the transition makes of the state before the first step."""
        if self.one_hot == "rows":
            return torch.where(places == 0, scale, 0)
        return torch.zeros_like(scale).scatter(-1, places[..., :1], scale[..., :1])

    def _through(
        self,
        M: Tensor,
        scale: Tensor,
        places: Tensor,
        b: Tensor,
        h: Tensor,
        reset: Tensor | None,
    ) -> Tensor:
        """Zero, with the gradient of P for the softmax of M: P moves what the states before are."""
        states, _ = self._scan(scale.detach(), places, b.detach(), h.detach(), reset)
        before = torch.cat([h.detach().unsqueeze(1), states[:, :-1]], 1)
        if reset is not None:
            start = self.state_spec().start
            before = torch.where(reset.unsqueeze(-1), start.to(before), before)  # type: ignore[union-attr]
        soft = M.softmax(-2 if self.one_hot == "columns" else -1)
        P = soft - soft.detach()
        scaled = scale.detach() * before if self.one_hot == "columns" else before
        moved = torch.view_as_complex(P @ torch.view_as_real(scaled))
        return moved if self.one_hot == "columns" else scale.detach() * moved

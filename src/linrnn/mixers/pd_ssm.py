"""PD-SSM, a state space whose transition is a scaled permutation that the input chooses."""

from collections.abc import Mapping
from math import pi
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import check_in, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.choices import Choices
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import block_scan
from linrnn.ops.half_linear import half_linear
from linrnn.state_spec import Part, complex_, integer

_ONE_HOT = "the largest number of a column has a gradient by agreement, that of a softmax"


class PDSSM(Mixer):
    r"""PD-SSM: the transition is an input-dependent one-hot matrix times a diagonal one.

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
        Parameters: selector (dictionary_size, d_model), dictionary (dictionary_size, d_state,
        d_state), B (d_state, 2, d_model) holds
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
        >>> y.shape, state["h"].shape, state["begun"]
        (torch.Size([2, 100, 4]), torch.Size([2, 8]), tensor([1, 1]))

    Reference:
        Terzić et al., "Structured Sparse Transition Matrices to Enable State Tracking in
        State-Space Models", NeurIPS 2025, arXiv:2509.22284. Key: terzic2025structured.
    """

    weight_parameters: ClassVar[tuple[str, ...]] = ("selector", "dictionary", "B")
    # what is the largest number must not hang on rounding
    single_precision: ClassVar[tuple[str, ...]] = ("selector", "dictionary")

    family: ClassVar[str] = "ssm"
    declared: ClassVar[Mapping[str, str]] = {
        "gradients": _ONE_HOT,
        "higher_derivatives": _ONE_HOT,
    }
    choices = Choices(transition="local", gate="input", memory="vector")
    constant_state: ClassVar[tuple[str, ...]] = ("begun",)
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("selector", "dictionary", "B")

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
        self.selector = empty(dictionary_size, d_model)  # S
        self.dictionary = empty(dictionary_size, N, N)
        self.magnitude, self.phase = (
            nn.Sequential(Linear(d_model, hidden, **to), nn.GELU(), Linear(hidden, N, **to))
            for _ in range(2)
        )
        self.B = empty(N, 2, d_model)  # Re B, Im B
        self.skip = empty(d_model)
        self.readout = Linear(2 * N, d_model, **to)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        nn.init.normal_(self.dictionary, std=self.d_state**-0.5)
        nn.init.normal_(self.B, std=(2 * self.d_state) ** -0.5)
        nn.init.normal_(self.skip, std=self.d_model**-0.5)
        nn.init.uniform_(self.selector, -(self.d_model**-0.5), self.d_model**-0.5)
        for part in (*self.magnitude, *self.phase, self.readout):
            if isinstance(part, nn.Linear):
                part.reset_parameters()

    def state_spec(self) -> dict[str, Part]:
        """See `Mixer.state_spec`: h, and 1 once a step was read; before, h is (1, 0, .., 0)."""
        return {"h": complex_(d_state=self.d_state), "begun": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        begins = (state["begun"] == 0).unsqueeze(1)  # (B, 1)
        begins = torch.cat([begins, torch.zeros_like(x[:, 1:, 0], dtype=torch.bool)], 1)  # (B, T)
        begins = begins if reset is None else begins | reset  # (B, T)
        scale, b = self._inputs(x)  # (B, T, N)
        with without_autocast(x.device):
            M = self._choices(x)  # (B, T, N, N)
            places = self._places(M)  # (B, T, N)
            # (B, T, N)
            b = b + torch.where(begins.unsqueeze(-1), self._first_moved(scale, places), 0)
            if torch.is_grad_enabled():
                b = b + self._through(M, scale, places, b, state["h"], begins)
            h, last = self._scan(scale, places, b, state["h"], begins)
        return self._project_out(h, x), {"h": last, "begun": torch.ones_like(state["begun"])}

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        if torch.is_grad_enabled():
            return super()._step(x_t, state)
        scale, b = self._inputs(x_t)  # (B, N)
        with without_autocast(x_t.device):
            P = self._one_hot(self._choices(x_t)).to(scale.real.dtype)
            begins = (state["begun"] == 0).unsqueeze(-1)  # (B, 1)
            h = torch.where(begins, self._unit(scale), state["h"])
            h = self._product(P, scale, h) + b
        return self._project_out(h, x_t), {"h": h, "begun": torch.ones_like(state["begun"])}

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``D`` and ``B u``, complex (..., N)."""
        u = x.to(self.B.dtype)
        size, turn = wide(self.magnitude(u)).sigmoid(), wide(self.phase(u)).sigmoid()
        b = wide(half_linear(u, self.B.flatten(0, 1)))
        b = torch.view_as_complex(b.view(*b.shape[:-1], self.d_state, 2))
        return torch.polar(size, 2 * pi * turn), b

    def _choices(self, x: Tensor) -> Tensor:
        """``M``, (..., N, N)."""
        weights = half_linear(x.to(self.selector.dtype), self.selector).softmax(-1)  # (..., K)
        M: Tensor = weights @ self.dictionary.flatten(1)
        return M.view(*M.shape[:-1], self.d_state, self.d_state)

    def _places(self, M: Tensor) -> Tensor:
        """The row of each column's largest number, or the column of each row's."""
        return M.argmax(-2 if self.one_hot == "columns" else -1)

    def _unit(self, like: Tensor) -> Tensor:
        """``(1, 0, .., 0)``."""
        return (torch.arange(self.d_state, device=like.device) == 0).to(like.dtype)

    def _first_moved(self, scale: Tensor, places: Tensor) -> Tensor:
        """``P D h``, or ``D P h``, of the h before the first step."""
        if self.one_hot == "rows":
            return torch.where(places == 0, scale, 0)
        return torch.zeros_like(scale).scatter(-1, places[..., :1], scale[..., :1])

    def _one_hot(self, M: Tensor) -> Tensor:
        """``P`` as truth values: of equal numbers the first, as argmax, which no record knows."""
        columns = self.one_hot == "columns"
        dim, place = -2 if columns else -1, torch.arange(self.d_state, device=M.device).to(M.dtype)
        place = place.unsqueeze(-1) if columns else place
        largest = M.amax(dim, keepdim=True) == M
        first = torch.where(largest, -place, -self.d_state).amax(dim, keepdim=True)
        return first == -place

    def _product(self, P: Tensor, scale: Tensor, h: Tensor) -> Tensor:
        """``P D h``, or ``D P h``, of a real P."""
        columns = self.one_hot == "columns"
        scaled = scale * h if columns else h
        moved = torch.view_as_complex(P @ torch.view_as_real(scaled.expand(scale.shape)))
        return moved if columns else scale * moved

    def _scan(
        self, scale: Tensor, places: Tensor, b: Tensor, h: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor]:
        index: dict[str, Any] = {"rows" if self.one_hot == "columns" else "columns": places}
        return block_scan(scale, b, h, **index, reset=begins)

    def _through(
        self,
        M: Tensor,
        scale: Tensor,
        places: Tensor,
        b: Tensor,
        h: Tensor,
        begins: Tensor,
    ) -> Tensor:
        """Zero, with the gradient of P for the softmax of M: P moves what the states before are."""
        scale, h = scale.detach(), h.detach()
        states, _ = self._scan(scale, places, b.detach(), h, begins)
        before = torch.cat([h.unsqueeze(1), states[:, :-1]], 1)
        before = torch.where(begins.unsqueeze(-1), self._unit(scale), before)
        soft = M.softmax(-2 if self.one_hot == "columns" else -1)
        return self._product(soft - soft.detach(), scale, before)

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        """``W_y [Re h; Im h] + b_y + skip * u``."""
        out: Tensor = self.readout(torch.cat([h.real, h.imag], -1).to(self.B.dtype))
        return out + self.skip * x.to(self.B.dtype)

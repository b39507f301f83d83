"""Base of the recurrent layers with a full transition matrix."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from linrnn.compute.precision import autocast_dtype, in_dtype_of, wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.starts import LearnedStart
from linrnn.nn.linear import Linear
from linrnn.nn.parameters import empty_parameters
from linrnn.nn.starts import check_gates, start_gates, starts
from linrnn.ops import cell_scan
from linrnn.ops.cell.dense_recurrence import (
    CELLS,
    HEADS,
    KERNELS,
    arguments,
    cell,
    recurrence,
)
from linrnn.ops.half_linear import half_cast, half_linear
from linrnn.state_spec import Part, real

_FIRST = "_l0"  # how torch.nn names the parameters of a first layer


class DenseRNN(Mixer):
    """``h_t = phi(A h_{t-1} + B x_t + b)``, ``y_t = C h_t + D * x_t``, all real.

    A subclass says which nonlinearity phi is, or how a sequence and one step become states. In
    ``n_heads`` heads A has that many diagonal blocks, which lie on top of each other.
    """

    family: ClassVar[str] = "dense"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    nonlinearity: ClassVar[Literal["tanh", "relu"]]
    recurrent_parameters: ClassVar[tuple[str, ...]] = ("A", "B", "b")

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        n_heads: int = 1,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        self.n_heads, where = n_heads, type(self).__name__
        check_positive_int(where, d_state=self.d_state)
        empty, N, D = empty_parameters(device, dtype), self.d_state, d_model
        self.A = empty(N, check_heads(where, n_heads, N))
        self.B, self.C, self.D = empty(N, D), empty(D, N), empty(D)
        self.bias, self.b = bias, empty(N) if bias else None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for weight in (*self._blocks(), self.B, self.C):
            nn.init.xavier_normal_(weight)
        nn.init.normal_(self.D)
        if self.b is not None:
            nn.init.zeros_(self.b)

    def _blocks(self) -> Sequence[Tensor]:
        """The matrix A of each head."""
        return [self.A] if self.n_heads == 1 else self.A.chunk(self.n_heads)

    def state_spec(self) -> Part:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, h: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor]:
        u, weights = in_product_dtype(x.to(self.B.dtype)), self._weights()
        with without_autocast(x.device):
            h, last = self._states(u, h, weights, reset)
        return self._project_out(h, x), last

    def _step(self, x_t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        with without_autocast(x_t.device):
            h = self._next_state(x_t.to(self.B.dtype), h)
        return self._project_out(h, x_t), h

    def _weights(self) -> list[Tensor]:
        """In the order of PyTorch's kernels, which add a second bias; at least float32."""
        weights = [wide(self.B), wide(self.A)]
        if self.b is not None:
            b = wide(self.b)
            weights += [b, torch.zeros_like(b)]
        return weights

    def _states(
        self, x: Tensor, h: Tensor, weights: list[Tensor], reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """All states (batch, time, d_state), and the last."""
        kind = self.nonlinearity
        if self.n_heads == 1:
            states, last = recurrence(x, [h], weights, reset, kind)
            return states, last
        inputs: Any = arguments(kind + HEADS, x, weights)
        return cell_scan(CELLS[kind + HEADS], **inputs, state=h, reset=reset)

    def _next_state(self, x_t: Tensor, h: Tensor) -> Tensor:
        """The state after one step."""
        if self.n_heads == 1:
            return cell(wide(x_t), [h], self._weights(), self.nonlinearity)[0]
        inputs = arguments(self.nonlinearity + HEADS, wide(x_t), self._weights())
        h, _ = CELLS[self.nonlinearity + HEADS](h, **inputs)
        return h

    def _project_out(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(half_linear(in_dtype_of(self.C, h), self.C), self.D, x)


def in_product_dtype(x: Tensor) -> Tensor:
    """The input in the dtype of its products, to which whoever computes these rounds matrices.

    That is bfloat16 inside of `torch.autocast` of it and for parameters of it, else at least
    float32. States, gates and biases are at least float32 in any case, and so are gradients.

    Args:
        x: (batch, time, d_model), in the dtype of the parameters.
    """
    half = torch.bfloat16
    if half not in (x.dtype, autocast_dtype(x)):
        return wide(x)
    return half_cast(x, half)


def check_heads(where: str, n_heads: int, d_state: int) -> int:
    """The channels of each of ``n_heads`` heads, which must be equal."""
    check_positive_int(where, n_heads=n_heads)
    if d_state % n_heads:
        raise ArgumentError(f"{where}: n_heads must divide d_state={d_state}, got {n_heads}.")
    return d_state // n_heads


class TorchRNN(Mixer):
    """One layer of a nonlinear recurrence, with the parameters of its `torch.nn` counterpart.

    A subclass says which recurrence of ``ops/cell/dense_recurrence.py`` it is, and of its gates,
    blocks of d_state rows in each weight, a letter each, which keeps the state and which work
    against it. In ``n_heads`` heads ``weight_hh_l0`` has the columns of a head only: the rows of a
    gate are those of its heads, one after the other.
    """

    family: ClassVar[str] = "gated"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    learned: ClassVar[LearnedStart] = LearnedStart("h")

    def __init__(
        self,
        d_model: int,
        d_state: int | None,
        bias: bool,
        gates: str,
        t_max: int | None,
        learn_initial: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        *,
        kind: str,
        blocks: str,
        keeps: str,
        against: str = "",
        proj_size: int = 0,
        n_heads: int = 1,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state = d_model, d_model if d_state is None else d_state
        d_output = proj_size or self.d_state  # of h
        self.bias, self.gates, self.t_max, self.n_heads = bias, gates, t_max, n_heads
        self._kind = kind if n_heads == 1 else kind + HEADS
        where = type(self).__name__
        check_positive_int(where, d_state=self.d_state)
        columns = d_output if n_heads == 1 else check_heads(where, n_heads, d_output)
        check_gates(where, gates, t_max)
        if starts(gates) and not bias:
            raise ArgumentError(f"{where}: bias must be True for gates={gates!r}, got {bias}.")
        self._keeps = blocks.index(keeps)
        self._against = [blocks.index(gate) for gate in against if gate in blocks]
        self.learned.add(self, learn_initial, self.d_state, device=device, dtype=dtype)
        empty, rows = empty_parameters(device, dtype), len(blocks) * self.d_state
        self.weight_ih_l0, self.weight_hh_l0 = empty(rows, d_model), empty(rows, columns)
        self.bias_ih_l0 = empty(rows) if bias else None
        self.bias_hh_l0 = empty(rows) if bias else None
        self.out_proj: nn.Module = nn.Identity()
        self._lent: list[str] = []  # parameters that are somebody else's: see `lend`
        if d_output != d_model:
            self.out_proj = Linear(d_output, d_model, device=device, dtype=dtype)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        bound = self.d_state**-0.5
        # that of out_proj is torch.nn.Linear's own as well
        for parameter in (*self.parameters(), *(getattr(self, name) for name in self._lent)):
            nn.init.uniform_(parameter, -bound, bound)
        self.learned.reset(self)
        if starts(self.gates):
            input_biases, hidden_biases = (self._bias_blocks(i) for i in ("ih", "hh"))
            for i in (self._keeps, *self._against):
                nn.init.zeros_(hidden_biases[i])  # only their sum acts
            start_gates(
                self.gates,
                self.t_max,
                input_biases[self._keeps],
                *(input_biases[i] for i in self._against),
            )

    def lend(self, owner: nn.Module, suffix: str) -> None:
        """Hand the parameters ``..._l0`` over to a module that has several layers of them.

        They become ``owner``'s, with ``suffix`` in place of ``_l0``, and are looked up there.

        Args:
            owner: whose parameters they are from now on.
            suffix: such as ``_l1_reverse``.
        """
        self._lent = [name for name, p in self._parameters.items() if p is not None]
        self._lent = [name for name in self._lent if name.endswith(_FIRST)]
        for name in self._lent:
            parameter = self._parameters.pop(name)
            owner.register_parameter(name.removesuffix(_FIRST) + suffix, parameter)
        self.look_up(owner, suffix)

    def look_up(self, owner: nn.Module, suffix: str) -> None:
        """Look the parameters that were lent up in ``owner``; arguments are those of `lend`."""
        self.__dict__["_owner"] = owner, suffix  # not as a part of this module

    def __getattr__(self, name: str) -> Any:
        lent = self.__dict__.get("_owner")
        if lent is not None and name in self._lent:
            return getattr(lent[0], name.removesuffix(_FIRST) + lent[1])
        return super().__getattr__(name)

    def _parameter(self) -> Tensor:
        return self.weight_ih_l0

    def _bias_blocks(self, which: str) -> Sequence[Tensor]:
        blocks: Sequence[Tensor] = self.get_parameter(f"bias_{which}_l0").split(self.d_state)
        return blocks

    def state_spec(self) -> Part | dict[str, Part]:
        """See `Mixer.state_spec`."""
        return real(d_state=self.d_state)

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        kind, start = self._kind, self._parts(state)
        u, weights = in_product_dtype(x.to(self.weight_ih_l0.dtype)), self._weights()
        with without_autocast(x.device):
            if kind in KERNELS and not (self.learn_initial and reset is not None):
                y, *last = recurrence(u, start, weights, reset, kind)
            else:
                named = dict(zip(self.learned.parts, start, strict=True))
                inputs = arguments(kind, u, weights, self._constants())
                y, final = self.learned.scan(self, CELLS[kind], named, reset, **inputs)
                last = [*final.values()]
        return self._project_out(y), self._whole(last)

    def _step(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        if self._kind not in KERNELS:
            return super()._step(x_t, state)
        weights = self._weights()
        with without_autocast(x_t.device):
            parts = cell(x_t.to(weights[0].dtype), self._parts(state), weights, self._kind)
        return self._project_out(parts[0]), self._whole(parts)

    def _parts(self, state: Any) -> list[Tensor]:
        """The state as `recurrence` takes it."""
        return [state]

    def _whole(self, parts: list[Tensor]) -> Any:
        """The inverse of `_parts`."""
        return parts[0]

    def _constants(self) -> list[Tensor]:
        """The constants of a recurrence that PyTorch has not, at least float32."""
        return []

    def _weights(self) -> list[Tensor]:
        """The parameters in the order the kernels take them, at least float32."""
        weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        return [wide(w) for w in weights if w is not None]

    def _project_out(self, y: Tensor) -> Tensor:
        out: Tensor = self.out_proj(in_dtype_of(self.weight_ih_l0, y))
        return out

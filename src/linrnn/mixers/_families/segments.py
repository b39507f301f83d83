"""The base of layers that read segments, and carry a memory from one to the next."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from linrnn.compute.precision import wide, without_autocast
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract.base import Mixer
from linrnn.ops.attention import positions
from linrnn.ops.attention.segments import RULES, Age, Tensors, read_segments
from linrnn.state_spec import Part, integer, with_axes


class SegmentMixer(Mixer):
    """A layer that attends within segments and to a memory, which it writes when one ends.

    Segments have ``segment`` steps, counted from the start of a sequence. What each step leaves
    for the others of its segment, its entry, is part of the state until the segment has ended: so
    one pass, any split, single steps, resets and packed rows give the same numbers, and a step
    costs one query. The memory is written once a segment, by the rows whose segment ends.

    An author writes `memory_spec` and `entry_spec`, what each is made of; `tokens`, the queries and
    entries of steps; `output`, what becomes of what was read; and three functions of tensors,
    `attend`, `write` and, where the first memory is not zero, `start`, which get the tensors that
    `weights` names. See `linrnn.ops.attention.segments.Rule`.
    """

    family: ClassVar[str] = "segment"
    cost: ClassVar[Literal["parallel", "sequential", "quadratic"]] = "sequential"
    in_laws: ClassVar[Mapping[str, Any]] = {"segment": 4}
    constant_state: ClassVar[tuple[str, ...]] = ("position",)

    independent: ClassVar[bool] = False
    """Whether `write` makes nothing of the memory that it is given: all segments of a call are then
    read at once."""

    segment: int
    memory_gradient: int | None
    replay: bool

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        RULES[f"{cls.__module__}.{cls.__qualname__}"] = cls

    def set_segments(self, segment: int, memory_gradient: int | None, replay: bool = False) -> None:
        """Check and keep the options that all layers of segments have.

        Args:
            segment: steps of a segment.
            memory_gradient: gradients pass through this many memories; None: through all.
            replay: for the backward pass of a sequence only the memories are kept, and what is
                between two of them is computed once more. The gradients are the same numbers.
        """
        where = type(self).__name__
        check_positive_int(where, segment=segment)
        is_integer = isinstance(memory_gradient, int) and not isinstance(memory_gradient, bool)
        if memory_gradient is not None and not (is_integer and memory_gradient >= 0):
            raise ArgumentError(
                f"{where}: memory_gradient must be None or an integer of at least 0, "
                f"got {memory_gradient!r}."
            )
        self.segment, self.memory_gradient, self.replay = segment, memory_gradient, replay

    def memory_spec(self) -> dict[str, Part]:
        """The parts of the memory, by name."""
        raise NotImplementedError

    def entry_spec(self) -> dict[str, Part]:
        """The parts of an entry, by name."""
        raise NotImplementedError

    def tokens(self, x: Tensor, position: Tensor) -> tuple[Tensors, Tensors]:
        """Queries and entries of the steps ``x`` (B, T, d_model) at ``position`` (B, T)."""
        raise NotImplementedError

    def weights(self) -> Tensors:
        """Parameters that `attend`, `write` and `start` receive; they have no others."""
        return ()

    def output(self, y: Tensor) -> Tensor:
        """(B, T, d_model) of what was read; by default heads (B, T, H, K) through ``o_proj``."""
        o_proj: Any = self.o_proj
        out: Tensor = o_proj(y.flatten(2).to(o_proj.weight.dtype))  # (B, T, d_model)
        return out

    @property
    def mode(self) -> str:
        """Options that `attend`, `write` and `start` receive as words, beside tensors."""
        return ""

    @staticmethod
    def attend(
        mode: str, q: Tensors, entries: Tensors, age: Age, memory: Tensors, weights: Tensors
    ) -> Tensor:
        """See `linrnn.ops.attention.segments.Rule`."""
        raise NotImplementedError

    @staticmethod
    def write(
        mode: str, entries: Tensors, memory: Tensors, weights: Tensors, number: Tensor
    ) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`."""
        raise NotImplementedError

    @staticmethod
    def start(mode: str, memory: Tensors, weights: Tensors) -> Tensors:
        """See `linrnn.ops.attention.segments.Rule`; a caller may write into what comes back."""
        return [torch.zeros_like(h) for h in memory]

    def state_spec(self) -> dict[str, Any]:
        """See `Mixer.state_spec`: the memory, the entries of the segment begun, steps so far."""
        begun = with_axes(self.entry_spec(), entries=self.segment - 1)
        return {"memory": self.memory_spec(), "begun": begun, "position": integer()}

    def _read(self, x: Tensor, state: Any, reset: Tensor | None) -> tuple[Tensor, Any]:
        position = positions(state["position"], x.shape[1], reset)
        q, entries = self.tokens(x.to(self._parameter().dtype), position)
        begun, memory = state["begun"], state["memory"]
        with without_autocast(x.device):
            y, *states = read_segments(
                f"{type(self).__module__}.{type(self).__qualname__}",
                self.mode,
                [wide(z) if z.is_floating_point() else z for z in q],
                [wide(z) for z in entries],
                list(begun.values()),
                list(memory.values()),
                [wide(w) for w in self.weights()],
                position,
                self.segment,
                -1 if self.memory_gradient is None else self.memory_gradient,
                self.replay,
            )
        last = {
            "memory": dict(zip(memory, states[len(begun) :], strict=True)),
            "begun": dict(zip(begun, states, strict=False)),
            "position": position[:, -1] + 1,
        }
        return self.output(y), last

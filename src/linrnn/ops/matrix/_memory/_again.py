"""Calls of few steps of a matrix memory that come again: see `linrnn.compute.replay`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.backend import requested
from linrnn.compute.op import Op, load, watched
from linrnn.compute.replay import Read, Replay, Replays, empty, kinds, outline
from linrnn.ops.matrix._memory import _cpu
from linrnn.ops.matrix._memory._problem import READS, Problem

#: Beyond, what this saves is little beside the computing. `outer_scan` over 3 steps (4 heads of 32
#: by 32) takes 7.2 times as long with 1 here (2026-11-28, EPYC with AVX-512, one core, in turn).
_STEPS = 3

Tensors = tuple[Any, ...]
Key = tuple[Any, ...]
_BACKEND = 5  # of a key
_NUMBERS = frozenset((int, float))
_replays = Replays()


class _MemoryReplay(NamedTuple):
    """A call, and what its results are made like."""

    replay: Replay
    results: tuple[Tensor, Tensor]

    def __call__(self, tensors: Tensors) -> tuple[Tensor, Tensor] | None:
        """The results; None where a tensor lies where the kernel cannot read it."""
        results = empty(self.results[0]), empty(self.results[1])
        return results if self.replay.run(tensors, results) else None


def again(
    tensors: Tensors, reset: Any, cu_seqlens: Any, *flags: Any
) -> tuple[tuple[Tensor, Tensor] | None, Key | None]:
    """The results of a call like one before, and what they have in common.

    The results are None where the call must go the whole way, and the key as well unless it is one
    of few steps, of plain tensors on a CPU, without resets or a gradient, and nobody watches.

    Args:
        tensors: those of a `Problem` before its reset, not looked at yet.
        reset, cu_seqlens: of the call.
        flags: its ``delta, normalizer, read, scale, reverse, backend``.
    """
    q = tensors[0]
    if torch.compiler.is_compiling() or type(q) is not Tensor or q.ndim != 4:
        return None, None
    if q.shape[1] > _STEPS or reset is not None or cu_seqlens is not None or watched():
        return None, None
    _, normalizer, read, scale, reverse, backend = flags
    if (
        read not in READS
        or type(normalizer) is not bool
        or type(reverse) is not bool
        or type(scale) not in _NUMBERS
    ):
        return None, None
    of_tensors = kinds(tensors, gradient=False)
    if of_tensors is None or any([x is not None and x.is_neg() for x in tensors]):
        return None, None
    key = (*flags[:5], requested(backend)[0], native.threads(), *of_tensors)
    call = _replays.get(key)
    return None if call is None or native.load()[0] is None else call(tensors), key


def remember(key: Key | None, op: Op, problem: Problem, tensors: Tensors, results: Any) -> None:
    """Note how a call was computed."""
    if key is None or key in _replays:
        return
    on_cpu = op.kernels(problem.q, problem, key[_BACKEND]) is load(_cpu.__name__)
    _replays.store(
        key, _replay_of(problem, tensors, results) if on_cpu and problem.v.numel() else None
    )


def _replay_of(
    problem: Problem, tensors: Sequence[Any], results: Sequence[Tensor]
) -> _MemoryReplay | None:
    if any(x is not y for x, y in zip(problem, tensors, strict=False)):
        return None
    record = _cpu.record(problem, *results)
    if record is None:
        return None
    alignment_mask = results[1].element_size() - 1
    names = [name.replace("initial_state", "initial") for name in Problem._fields]
    places = [(_cpu.SCAN.places[names[i]], i) for i, x in enumerate(tensors) if x is not None]
    reads = [Read(word, i, 0, alignment_mask) for word, i in places]
    writes = [(_cpu.SCAN.places["o"], 0), (_cpu.SCAN.places["final"], 1)]
    o, final = map(outline, results)
    return _MemoryReplay(Replay("memory_scan", record, reads, writes), (o, final))

"""Fewer instructions for a recorded step: elementwise ones of one size as a graph.

Instructions that follow one another, walk the same axes and compute in the same dtype are written
as a graph (`linrnn.engine.graph`), which knows equal ones and simpler ones, and read back as the
operations of the native machine, which may compute several nodes at once (`linrnn.engine.select`).

Memory holds a value only until somebody writes there. So such a run ends before an instruction that
writes where the run has read what was there before it, or that reads or writes another part of what
the run has written.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from linrnn.engine.graph import ELEMENTWISE, Graph, finish
from linrnn.engine.replay.operands import Instruction, Real, Slot, View
from linrnn.engine.replay.tape import Tape
from linrnn.engine.select import Selection

_LONGEST = 400  # instructions of a run: what a graph costs grows with its size


def fused(
    tape: Tape, instructions: Sequence[Instruction], lasting: Collection[Slot]
) -> list[Instruction]:
    """Instructions that leave the same numbers, but for rounding, where others read them.

    Args:
        tape: which they belong to; gives room to values that have none.
        instructions: in order.
        lasting: memory that is read after all of them.
    """
    instructions = [_flat(step) if _elementwise(step) else step for step in instructions]
    last_reads: dict[Slot, int] = {}
    for i, step in enumerate(instructions):
        last_reads.update((x.slot, i) for x in step.read if isinstance(x, View))
    result: list[Instruction] = []
    for start, end in _runs(tape, instructions):
        run = instructions[start:end]
        outer = {
            step.to.slot
            for step in run
            if step.to.slot.kind != "scratch"
            or step.to.slot in lasting
            or last_reads.get(step.to.slot, -1) >= end
        }
        result += _Run(tape, run, outer).instructions() if len(run) > 1 else run
    return result


def _elementwise(step: Instruction) -> bool:
    return step.op in ELEMENTWISE or step.op == "move"


def _flat(step: Instruction) -> Instruction:
    """An elementwise instruction without axes of one number, so that equal walks are equal."""
    if 1 not in step.size:
        return step
    axes = [axis for axis, n in enumerate(step.size) if n != 1]
    size = tuple(step.size[axis] for axis in axes)

    def flat(x: Real) -> Any:
        if not isinstance(x, View):
            return x
        return View(x.slot, x.offset, size, tuple([x.strides[axis] for axis in axes]))

    return replace(step, size=size, to=flat(step.to), read=list(map(flat, step.read)))


def _runs(tape: Tape, instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Where each run begins and ends; an instruction that is not elementwise is one."""
    start = 0
    reads: set[Slot] = set()
    writes: dict[Slot, View] = {}
    for i, step in enumerate(instructions):
        head = instructions[start]
        joins = (
            i > start
            and i - start < _LONGEST
            and _elementwise(head)
            and _elementwise(step)
            and (step.size, step.dtype) == (head.size, head.dtype)
            and step.to.slot not in reads
            and writes.get(step.to.slot, step.to) == step.to
            and all(_same(tape, step, x, writes) for x in step.read if isinstance(x, View))
        )
        if i > start and not joins:
            yield start, i
            start, reads, writes = i, set(), {}
        reads |= {x.slot for x in step.read if isinstance(x, View) and x.slot not in writes}
        writes[step.to.slot] = step.to
    if instructions:
        yield start, len(instructions)


def _same(tape: Tape, step: Instruction, x: View, writes: dict[Slot, View]) -> bool:
    """Whether what is read is all of what the run has written there, if anything, and unrounded."""
    y = writes.get(x.slot)
    return y is None or (x == y and tape.dtypes[x.slot] is step.dtype)


class _Run:
    """Instructions as a graph.

    Args:
        tape: which they belong to.
        run: the instructions.
        outer: memory that is read by others later.
    """

    def __init__(self, tape: Tape, run: Sequence[Instruction], outer: Collection[Slot]) -> None:
        self._tape, self._size, self._dtype = tape, run[0].size, run[0].dtype
        self._graph = Graph()
        self._leaves: dict[View, int] = {}
        values: dict[View, int] = {}  # what was written, by where it lies
        for step in run:
            nodes = [self._node(x, values) for x in step.read]
            values[step.to] = nodes[0] if step.op == "move" else self._graph(step.op, *nodes)
        #: Nodes whose values must be in memory at the end, by where they lie.
        self._results = {to: node for to, node in values.items() if to.slot in outer}

    def _node(self, x: Real, values: dict[View, int]) -> int:
        if not isinstance(x, View):
            return self._graph.constant(x)
        if x in values:
            return values[x]
        if x not in self._leaves:
            self._leaves[x] = self._graph.leaf("input", len(self._leaves))
        return self._leaves[x]

    def instructions(self) -> list[Instruction]:
        """The instructions that compute the results of the run."""
        nodes = list(dict.fromkeys(self._results.values()))
        names = [str(i) for i in range(len(self._leaves))]
        program = finish(self._graph, ((), names, (), ()), nodes, ())
        views = list(self._leaves)
        places: dict[int, Real] = {}
        for i, node in enumerate(program.nodes):
            if node.op == "input":
                places[i] = views[node.attribute]
            elif node.op == "constant":
                places[i] = node.attribute
        homes: dict[int, View] = {}
        moves: list[tuple[View, int]] = []
        outputs = dict(zip(nodes, program.outputs, strict=True))
        for to, value in self._results.items():
            output = outputs[value]
            # what rounds is no place for a value that others in the run read
            if output in places or output in homes or self._tape.dtypes[to.slot] is not self._dtype:
                moves.append((to, output))
            else:
                homes[output] = to
        result = []
        levels = [2] * len(program.nodes)
        selection = Selection(program, levels, program.outputs, pairs=False)
        for operation in selection.ordered():
            (output,) = operation.results
            to = homes.get(output) or self._tape.fresh(self._size, self._dtype)
            read = [places[x] for x in operation.args]
            result.append(self._written(operation.op, to, read, operation.value))
            places[output] = to
        return result + [self._written("move", to, [places[x]]) for to, x in moves]

    def _written(self, op: str, to: View, read: list[Real], value: float = 0.0) -> Instruction:
        return Instruction(op, self._size, to, read, value, self._dtype)

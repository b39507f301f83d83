"""Cuts the graph of a step into loops over time, and nodes computed for all steps at once.

A node that no state reaches, or that reaches no state, is computed for all steps at once, as if
they were rows of a larger batch; so is what lies between two recurrences, as in a stack of layers.
What is left are the loops, one for each group of states that depend on one another. A state that
depends on no state holds a value of the step before, and is that value, one step later.

A loop is cut out where the least has to be kept of every step: an outer product of keys and values
is made inside of it, and a matrix memory is read inside. A product with weights stays outside
where it can, for there it is one product for all steps.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from linrnn.errors import LinrnnError

_PRODUCTS = ("MatMul", "Gemm", "Conv", "Einsum")
_FAR = 16  # nodes upwards that are looked at for a smaller cut; 8 are too few for `mom`


@dataclass
class Loop:
    """A recurrence: the states it carries, and the nodes inside, by number."""

    states: list[int]
    nodes: set[int] = field(default_factory=set)


class Plan:
    """The graph of a step, whose first axis is the batch of everything that a loop takes or gives.

    Args:
        graph: an ``onnx.GraphProto`` with its shapes: ``(x, *states)`` to ``(y, *next states)``.
        last: whether ``y`` is wanted after the last step alone.
        read: how many inputs each step has, before the states.

    Raises:
        LinrnnError: a loop would have to hand over something without a batch axis.
    """

    def __init__(self, graph: Any, *, last: bool, read: int = 1) -> None:
        self.nodes: list[Any] = list(graph.node)
        inputs = [i.name for i in graph.input]
        self.read, self.states = inputs[:read], inputs[read:]
        self.y, *self.next_states = [o.name for o in graph.output]
        self.types = {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)}
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output}
        self.users: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.input):
                self.users.setdefault(name, []).append(i)
        self._follow()
        self.tail = {i for i in range(len(self.nodes)) if last and not self._feeds[i]}
        self.loops = self._loops()
        for loop in self.loops:
            self._shrink(loop)

    def varies(self, name: str) -> bool:
        """Whether a value depends on the input or a state."""
        return name in self._needs

    def width(self, name: str) -> int | None:
        """Numbers in a row of a value, or None where its first axis is not the batch alone."""
        shape = self.shape(name)
        if shape is None:
            return None
        return math.prod(shape)

    def shape(self, name: str) -> list[int] | None:
        """The axes behind the batch, or None where that is not the first and only open one."""
        if name not in self.types or not self.types[name].tensor_type.HasField("shape"):
            return None
        axes = self.types[name].tensor_type.shape.dim
        if not axes or axes[0].dim_param != "batch":
            return None
        if not all(d.HasField("dim_value") for d in axes[1:]):
            return None
        return [d.dim_value for d in axes[1:]]

    def inputs(self, loop: Loop) -> list[str]:
        """The values that a loop reads at every step, besides its own states."""
        states = {self.states[i] for i in loop.states}
        read = [*(n for i in sorted(loop.nodes) for n in self.nodes[i].input)]
        read += [self.next_states[i] for i in loop.states]
        return [
            n for n in dict.fromkeys(read) if self.varies(n) and not self._inside(n, loop, states)
        ]

    def outputs(self, loop: Loop) -> list[str]:
        """The values of every step of a loop that other nodes read, its states among them.

        A value inside that comes of no state of the loop, they make for themselves.
        """
        values = [self.states[i] for i in loop.states]
        values += [n for i in sorted(loop.nodes) for n in self.nodes[i].output]
        state_bits = _bits(loop.states)
        return [n for n in values if self._all_needs(n) & state_bits and self._is_output(n, loop)]

    def _inside(self, name: str, loop: Loop, states: set[str]) -> bool:
        return name in states or self.maker.get(name) in loop.nodes

    def _is_output(self, name: str, loop: Loop) -> bool:
        if name == self.y and self.maker.get(name) not in self.tail:
            return True
        if name in self.next_states and self.next_states.index(name) not in loop.states:
            return True  # another state is this one, a step later
        finals = [self.next_states[i] for i in loop.states]
        users = [user for user in self.users.get(name, []) if user not in loop.nodes]
        return any(user not in self.tail or name not in finals for user in users)

    def _follow(self) -> None:
        """Which states each value needs and feeds, as sets of bits; of those through others too."""
        self._needs = dict.fromkeys(self.read, 0) | {
            name: 1 << i for i, name in enumerate(self.states)
        }
        for node in self.nodes:
            input_needs = [self._needs[n] for n in node.input if n in self._needs]
            if input_needs:
                bits = 0
                for more in input_needs:
                    bits |= more
                self._needs |= dict.fromkeys(node.output, bits)
        feeds = dict.fromkeys(self.next_states, 0)
        for i, name in enumerate(self.next_states):
            feeds[name] |= 1 << i
        self._feeds = [0] * len(self.nodes)
        for i in reversed(range(len(self.nodes))):
            for name in self.nodes[i].output:
                self._feeds[i] |= feeds.get(name, 0)
            for name in self.nodes[i].input:
                feeds[name] = feeds.get(name, 0) | self._feeds[i]
        self._past = [self._needs.get(name, 0) for name in self.next_states]
        for k in range(len(self.states)):
            for i, bits in enumerate(self._past):
                if bits >> k & 1:
                    self._past[i] |= self._past[k]

    def _loops(self) -> list[Loop]:
        """The states that depend on themselves, together with those they depend on in turn."""
        loops: list[Loop] = []
        for i, past in enumerate(self._past):
            if not past >> i & 1:
                continue
            for loop in loops:
                if past >> loop.states[0] & 1 and self._past[loop.states[0]] >> i & 1:
                    loop.states.append(i)
                    break
            else:
                loops.append(Loop([i]))
        for loop in loops:
            state_bits = _bits(loop.states)
            for i, node in enumerate(self.nodes):
                needs = self._needs.get(node.output[0], 0)
                if needs & state_bits and self._feeds[i] & state_bits:
                    loop.nodes.add(i)
        return loops

    def _cost(self, loop: Loop) -> tuple[int, int]:
        """Values that cannot be handed over, then numbers that are, of every step."""
        sizes = [self.width(n) for n in (*self.inputs(loop), *self.outputs(loop))]
        return sum(size is None for size in sizes), sum(size or 0 for size in sizes)

    def _shrink(self, loop: Loop) -> None:
        """Move nodes around a loop into it while that leaves less to be handed over."""
        for moved in (self._upwards, self._downwards, self._upwards):
            while better := self._better(loop, moved(loop)):
                loop.nodes = better
        if self._cost(loop)[0]:
            names = [n for n in (*self.inputs(loop), *self.outputs(loop)) if self.width(n) is None]
            raise LinrnnError(
                "export_sequence: what goes into and comes out of a recurrence must have the batch "
                f"as its first axis, got {names}. Export a step."
            )

    def _better(self, loop: Loop, offers: Iterator[set[int]]) -> set[int] | None:
        """The first offer that costs less than the loop as it is."""
        cost = self._cost(loop)
        for nodes in offers:
            if self._cost(Loop(loop.states, nodes)) < cost:
                return nodes
        return None

    def _upwards(self, loop: Loop) -> Iterator[set[int]]:
        """The loop with more and more of the nodes that make one of its inputs."""
        before = self.inputs(loop)
        for name in before:
            nodes = set(loop.nodes)
            for _ in range(_FAR):
                maker = self.maker.get(name)
                if maker is None or not self._moves(maker, loop):
                    break
                nodes = nodes | {maker}
                yield nodes
                inputs = self.inputs(Loop(loop.states, nodes))
                # what cannot be handed over comes first, wherever it came in
                left = [n for n in inputs if n not in before and self.width(n) is None]
                left = left or [n for n in self.nodes[maker].input if n in inputs]
                if not left:
                    break
                name = max(reversed(left), key=self._order)  # of several such the last is followed

    def _order(self, name: str) -> float:
        """By what is handed over, that which cannot be last."""
        size = self.width(name)
        return float("inf") if size is None else size

    def _downwards(self, loop: Loop) -> Iterator[set[int]]:
        """The loop with all that reads one of its outputs, until that gets smaller."""
        for name in self.outputs(loop):
            size = self._order(name)
            nodes, todo = set(loop.nodes), [name]
            while todo:
                more = [i for i in self.users.get(todo.pop(), []) if i not in nodes | self.tail]
                if not all(self._moves(i, loop) for i in more):
                    break
                nodes.update(more)
                outputs = [n for i in more for n in self.nodes[i].output]
                todo += [n for n in outputs if self._order(n) >= size]
            else:
                closed = self._closed(nodes, loop)
                if closed is not None:
                    yield closed

    def _moves(self, node: int, loop: Loop) -> bool:
        """Whether a node may be computed inside a loop, and should be if that saves memory."""
        if any(node in another.nodes for another in self.loops if another is not loop):
            return False
        weighted = [n for n in self.nodes[node].input if not self.varies(n)]
        return not (weighted and self.nodes[node].op_type in _PRODUCTS)

    def _closed(self, nodes: set[int], loop: Loop) -> set[int] | None:
        """The nodes and what lies between them: of all that is read nothing comes of the loop.

        None where something of it is not to be moved.
        """
        state_bits = _bits(loop.states)
        while within := [
            n for n in self.inputs(Loop(loop.states, nodes)) if self._of(n, state_bits)
        ]:
            makers = {self.maker[n] for n in within if n in self.maker}
            if len(makers) < len(within) or not all(self._moves(i, loop) for i in makers):
                return None
            nodes = nodes | makers
        return nodes

    def _of(self, name: str, states: int) -> bool:
        return bool(self._all_needs(name) & states)

    def _all_needs(self, name: str) -> int:
        bits = self._needs[name]
        for i, past in enumerate(self._past):
            if bits >> i & 1:
                bits |= past
        return bits


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << i for i in numbers)

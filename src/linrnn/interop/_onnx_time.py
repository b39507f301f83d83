"""From the graph of one step to that of a whole sequence.

Everything is laid out as rows, those of one step after those of the one before: (time x batch,
channels). So the nodes of a step compute all steps without a change, and a loop of `Plan` is a
``Scan`` over (time, batch, channels). The weights stay in the outer graph, where loops see them.
"""

from collections.abc import Sequence
from typing import Any

from linrnn.interop._onnx_plan import Loop, Plan

_ALL = 2**63 - 1  # the end of a slice


def over_time(step: Any, *, last: bool, read: int = 1) -> Any:
    """A model that reads whole sequences, of any batch and time.

    Args:
        step: an ``onnx.ModelProto`` of one step with an open batch, ``(x, *states)`` to
            ``(y, *next states)``.
        last: give ``y`` after the last step alone, and not after each.
        read: how many inputs each step has, before the states: ``x``, and perhaps ``dt``.

    Returns:
        An ``onnx.ModelProto``: what is read and ``y`` have an axis of time behind that of the
        batch, but for a ``y`` of the last step.

    Raises:
        LinrnnError: see `Plan`.
    """
    import onnx

    step = onnx.shape_inference.infer_shapes(step)
    return _Writer(step, Plan(step.graph, last=last, read=read)).model(last)


class _Writer:
    """The nodes of the new graph, and under which name there is the value of every row."""

    def __init__(self, step: Any, plan: Plan) -> None:
        import onnx

        self.step, self.plan, self.make = step, plan, onnx.helper
        self.nodes: list[Any] = []
        self.initializers = list(step.graph.initializer)
        self.rows: dict[str, str] = {}
        self.ends: dict[str, str] = {}

    def model(self, last: bool) -> Any:
        """The whole model."""
        self._constants()
        self._read()
        self._spread()
        self._give(last)
        graph = self.step.graph
        names = {*self.plan.read}
        inputs = [self._outer(i, time=True) if i.name in names else i for i in graph.input]
        outputs = [self._outer(graph.output[0], time=not last), *graph.output[1:]]
        over_time = self.make.make_graph(self.nodes, graph.name, inputs, outputs, self.initializers)
        model = self.make.make_model(over_time, opset_imports=self.step.opset_import)
        model.ir_version = self.step.ir_version
        return model

    def _outer(self, value: Any, *, time: bool) -> Any:
        kind = value.type.tensor_type
        axes = ["batch", *(["time"] if time else []), *self.plan.shape(value.name)]  # type: ignore[misc]
        return self.make.make_tensor_value_info(value.name, kind.elem_type, axes)

    def _add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self.make.make_node(op, list(inputs), [output], **attributes))
        return output

    def _int(self, *numbers: int) -> str:
        name = f":{','.join(map(str, numbers))}"
        if all(t.name != name for t in self.initializers):
            self.initializers.append(self.make.make_tensor(name, 7, [len(numbers)], numbers))
        return name

    def _constants(self) -> None:
        """Copy the nodes that depend on neither input nor state."""
        for node in self.step.graph.node:
            if not any(self.plan.varies(n) for n in node.output):
                self.nodes.append(node)

    def _read(self) -> None:
        """The sizes, and the inputs of steps in rows."""
        x = self.plan.read[0]
        self._add("Shape", [x], ":batch", start=0, end=1)
        self._add("Shape", [x], ":time", start=1, end=2)
        self._add("Mul", [":batch", ":time"], ":rows")
        self._add("Concat", [":time", ":batch"], ":steps", axis=0)
        for name in self.plan.read:
            shape = self.plan.shape(name)
            assert shape is not None
            order = [1, 0, *range(2, 2 + len(shape))]
            self._add("Transpose", [name], f":{name}", perm=order)
            self.rows[name] = self._as_rows(f":{name}", name, f":{name}:rows")

    def _as_rows(self, steps: str, like: str, name: str) -> str:
        return self._shaped(":rows", steps, like, name)

    def _as_steps(self, rows: str, like: str, name: str) -> str:
        return self._shaped(":steps", rows, like, name)

    def _shaped(self, first: str, value: str, like: str, name: str) -> str:
        """A value with some first axes before those that are behind the batch."""
        inner_axes = self.plan.shape(like)
        assert inner_axes is not None
        to = self._add("Concat", [first, self._int(*inner_axes)], f"{name}:shape", axis=0)
        return self._add("Reshape", [value, to], name, allowzero=1)

    def _spread(self) -> None:
        """Write what is wanted, each thing once all that it reads is there."""
        plan = self.plan
        looped = {i for loop in plan.loops for i in loop.states}
        delays = [i for i in range(len(plan.states)) if i not in looped]
        loops, nodes = list(plan.loops), sorted(self._outside())
        while loops or nodes or delays:
            n_waiting = len(loops) + len(nodes) + len(delays)
            nodes = [i for i in nodes if not self._try_node(i)]
            loops = [loop for loop in loops if not self._try_loop(loop)]
            delays = [i for i in delays if not self._try_delay(i)]
            assert len(loops) + len(nodes) + len(delays) < n_waiting, "a loop that was not found"

    def _outside(self) -> set[int]:
        """The nodes to be computed on all rows: what the outputs and the loops read."""
        plan = self.plan
        needed: set[int] = set()
        todo = [n for loop in plan.loops for n in plan.inputs(loop)]
        todo += [n for i in plan.tail for n in plan.nodes[i].input if plan.varies(n)]
        looped = {i for loop in plan.loops for i in loop.states}
        todo += [n for i, n in enumerate(plan.next_states) if i not in looped]
        todo += [plan.y]
        from_loops = {n for loop in plan.loops for n in plan.outputs(loop)}
        from_loops |= {plan.next_states[i] for i in looped}
        while todo:
            name = todo.pop()
            maker = plan.maker.get(name)
            if maker is None or maker in needed | plan.tail or name in from_loops:
                continue
            needed.add(maker)
            todo += [n for n in plan.nodes[maker].input if plan.varies(n)]
        return needed

    def _try_node(self, i: int) -> bool:
        node = self.plan.nodes[i]
        if not all(n in self.rows for n in node.input if self.plan.varies(n)):
            return False
        self._copy(node, self.nodes, self.rows, "rows")
        return True

    def _copy(self, node: Any, to: list[Any], names: dict[str, str], where: str) -> None:
        """A node of the step under other names."""
        new = type(node)()
        new.CopyFrom(node)
        new.name = ""
        new.input[:] = [names.get(n, n) for n in node.input]
        new.output[:] = [f"{n}:{where}" if n else "" for n in node.output]
        names.update(zip(node.output, new.output, strict=True))
        to.append(new)

    def _try_delay(self, i: int) -> bool:
        """A state that is a value of the step before."""
        plan = self.plan
        if plan.next_states[i] not in self.rows:
            return False
        name, rows = plan.states[i], self.rows[plan.next_states[i]]
        both = self._add("Concat", [name, rows], f"{name}:both", axis=0)
        cuts = [self._int(0), ":rows", self._int(0)]
        self.rows[name] = self._add("Slice", [both, *cuts], f"{name}:rows")
        cuts = [":rows", self._int(_ALL), self._int(0)]
        self.ends[plan.next_states[i]] = self._add(
            "Slice", [both, *cuts], f"{plan.next_states[i]}:end{i}"
        )
        self._add("Identity", [self.ends[plan.next_states[i]]], plan.next_states[i])
        return True

    def _try_loop(self, loop: Loop) -> bool:
        plan = self.plan
        read = plan.inputs(loop) or plan.read[:1]  # a loop needs something to count the steps
        if not all(n in self.rows for n in read):
            return False
        k = plan.loops.index(loop)
        outputs = plan.outputs(loop)
        body = self._body(loop, read, outputs, f"in{k}")
        steps = [self._as_steps(self.rows[n], n, f"{n}:to{k}") for n in read]
        starts = [plan.states[i] for i in loop.states]
        ends = [plan.next_states[i] for i in loop.states]
        self.nodes.append(
            self.make.make_node(
                "Scan",
                [*starts, *steps],
                [*ends, *(f"{n}:from{k}" for n in outputs)],
                body=body,
                num_scan_inputs=len(steps),
            )
        )
        self.ends.update(zip(ends, ends, strict=True))
        for n in outputs:
            self.rows[n] = self._as_rows(f"{n}:from{k}", n, f"{n}:rows")
        return True

    def _body(self, loop: Loop, read: Sequence[str], results: Sequence[str], where: str) -> Any:
        """The graph inside a loop."""
        plan, nodes = self.plan, list[Any]()
        starts = [plan.states[i] for i in loop.states]
        names = {n: f"{n}:{where}" for n in (*starts, *read)}
        inputs = [self._inner(n, names[n]) for n in names]
        for i in sorted(loop.nodes):
            self._copy(plan.nodes[i], nodes, names, where)
        outputs = []
        for j, n in enumerate((*(plan.next_states[i] for i in loop.states), *results)):
            out = f"out{j}:{where}"
            nodes.append(self.make.make_node("Identity", [names[n]], [out]))
            outputs.append(self._inner(n, out))
        return self.make.make_graph(nodes, where, inputs, outputs)

    def _inner(self, like: str, name: str) -> Any:
        kind = self.plan.types[like].tensor_type
        axes = ["batch", *(self.plan.shape(like) or ())]
        return self.make.make_tensor_value_info(name, kind.elem_type, axes)

    def _give(self, last: bool) -> None:
        """The output, after every step or after the last one."""
        plan = self.plan
        shape = plan.shape(plan.y)
        assert shape is not None
        if not last:
            self._as_steps(self.rows[plan.y], plan.y, ":y")
            order = [1, 0, *range(2, 2 + len(shape))]
            self._add("Transpose", [":y"], plan.y, perm=order)
            return
        self._add("Sub", [":rows", ":batch"], ":before")
        names: dict[str, str] = {}
        for i in sorted(plan.tail):
            for n in plan.nodes[i].input:
                if plan.varies(n) and n not in names:
                    names[n] = self.ends.get(n) or self._last(n)
            self._copy(plan.nodes[i], self.nodes, names, "last")
        self._add("Identity", [names.get(plan.y) or self._last(plan.y)], plan.y)

    def _last(self, name: str) -> str:
        cuts = [":before", ":rows", self._int(0)]
        return self._add("Slice", [self.rows[name], *cuts], f"{name}:last")

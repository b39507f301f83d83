"""A program with matrices as a Triton kernel that holds them on chip for all steps.

One instance owns a group of sequences, so that a product is one of matrices, which tensor cores
compute: values are tiles (sequences, channels). Where the matrices of a head do not fit in one
multiprocessor, several instances share them: each has the columns that give its own channels. It
publishes its channels of what is multiplied, adds 1 to a counter of its group, waits for all others
and reads the whole vectors. The counter only rises, and what is published lies in two rooms in
turn: an instance that is one exchange ahead writes where nobody reads any more. All of a group must
be on the device at once, which a cooperative launch ensures. No number depends on who is first.

The exchange of a step's state through memory with matrices that stay where they are is that of
Diamos et al., "Persistent RNNs: stashing recurrent weights on-chip", 2016.
"""

from linrnn.engine.graph import CONTRACTIONS
from linrnn.ops.cell.cell_scan._triton_source import Sizes, Source, Task, Writer


def stages(task: Task) -> list[int]:
    """How many products lie one behind the other before each node, it included."""
    depths: list[int] = []
    for node in task.program.nodes:
        before = max((depths[x] for x in node.args), default=0)
        depths.append(before + (node.op in CONTRACTIONS))
    return depths


def multiplied(task: Task) -> dict[int, list[int]]:
    """The vectors that are multiplied with matrices, by their stage, in order."""
    depths, by_stage = stages(task), dict[int, list[int]]()
    for node in task.program.nodes:
        if node.op in CONTRACTIONS:
            vectors = by_stage.setdefault(depths[node.args[1]], [])
            if node.args[1] not in vectors:
                vectors.append(node.args[1])
    return by_stage


class GroupWriter(Writer):
    """The source of a kernel for groups of sequences."""

    #: Beside those of every kernel.
    MORE = ("sequences", "arrived", "published")
    OPTIONS = ("FLIP", "DTYPE", "ROWS", "SHARERS", "CHUNK", "SPLIT", "MATRIX", "DOT", "PRECISION")

    def __init__(self, task: Task, sizes: Sizes) -> None:
        super().__init__(task, sizes)
        self.stages, self.multiplied = stages(task), multiplied(task)
        self.shared = task.sharers > 1

    def source(self) -> Source:
        """All of it; its arguments as of every kernel, then `MORE` and `OPTIONS`."""
        classes = tuple(self.sizes.nodes[x] for group in self.multiplied.values() for x in group)
        return self._assembled(self.MORE, self.OPTIONS)._replace(published=classes)

    def _shape(self, k: int) -> str:
        return f"[ROWS, BLOCK_{k} // SHARERS]"

    def _begin(self) -> list[str]:
        lines = [
            "share = tl.program_id(0) % SHARERS",
            "part = tl.program_id(0) // SHARERS % parts",
            "group = tl.program_id(0) // SHARERS // parts",
            "s = (group * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)",
            "row, first, count = spans(cu_seqlens, s, sequences, time, FLIP)",
            "steps = tl.max(tl.max(count, 1), 0)",
            "sign = tl.full((), -1 if FLIP else 1, tl.int64)",
        ]
        for k in self.widths:
            lines += [
                f"own_{k} = share * (BLOCK_{k} // SHARERS)"
                f" + tl.arange(0, BLOCK_{k} // SHARERS)[None, :]",
                f"inside_{k} = (own_{k} < width_{k}) & (s < sequences)",
                f"lane_{k} = part * width_{k} + own_{k}",
                f"all_{k} = parts * width_{k}",
            ]
        return lines if not self.shared else lines + self._rooms()

    def _rooms(self) -> list[str]:
        """Where this group's counter is, and the two rooms of what it publishes."""
        vectors = [x for group in self.multiplied.values() for x in group]
        numbers = " + ".join(f"ROWS * BLOCK_{self.sizes.nodes[x]}" for x in vectors)
        lines = [
            f"room = {numbers}",
            "published += (group * parts + part).to(tl.int64) * 2 * room",
            "arrived += group * parts + part",
        ]
        before: list[str] = []
        for x in vectors:
            k = self.sizes.nodes[x]
            offset = " + ".join(["0", *before])
            lines.append(
                f"room_{x} = published + ({offset}) + tl.arange(0, ROWS)[:, None] * BLOCK_{k}"
            )
            before.append(f"ROWS * BLOCK_{k}")
        return lines

    def _load_row(self, name: str, kind: str, number: int, k: int) -> str:
        at = f"lane_{k}" if kind == "parameter" else f"s * all_{k} + lane_{k}"
        mask = f"own_{k} < width_{k}" if kind == "parameter" else f"inside_{k}"
        return f"{name} = tl.load({self._operand(kind, number)} + {at}, mask={mask}, other=0)"

    def _matrix(self, operand: str, m: int, n: int) -> str:
        sides = f"width_{m}, width_{n}, BLOCK_{m}, BLOCK_{n} // SHARERS"
        return f"chunks_of_columns({operand}, part, share, {sides}, CHUNK, SPLIT, MATRIX)"

    def _loop(self) -> list[str]:
        """All steps, one after the other; the rows of the next one are on their way."""
        ahead, body = [], ["exists = j < count", "at = first + sign * j"]
        for i in self.inputs:
            k, name = self._input_size(i), self._operand("input", i)
            shift = i in self.task.previous
            left = "count - 1" if shift else "count"
            ahead.append(f"{name} += row * {name}_seq" + f" + sign * {name}_step" * shift)
            place = f"{name} + (first + sign * {{0}}) * {name}_step + lane_{k}"
            row = f"tl.load({place}, mask=inside_{k} & ({{0}} < {left}), other=0)"
            if self.shared:
                ahead.append(f"next_{i} = {row.format(0)}")
                body += [f"now_{i} = next_{i}", f"next_{i} = {row.format('(j + 1)')}"]
            else:
                body.append(f"now_{i} = {row.format('j')}")
        flag = "tl.load(reset + (first + sign * {0}) * reset_step, mask={0} < count, other=0) != 0"
        ahead += [
            "if reset is not None:",
            "    reset += row * reset_seq",
            f"    reset_next = {flag.format(0)}",
        ]
        body += [
            "if reset is not None:",
            "    reset_now = reset_next",
            f"    reset_next = {flag.format('(j + 1)')}",
            *self._step(),
        ]
        return [
            *ahead,
            f"for j in tl.range(0, steps, num_stages={1 if self.shared else 2}):",
            *(f"    {line}" for line in body),
        ]

    def _step(self) -> list[str]:
        lines = []
        for i, node in self.inputs.items():
            lines.append(f"v{node} = now_{i}.to(DTYPE)")
            if i in self.task.previous:
                state = self.task.previous.index(i)
                lines.append(f"v{node} = tl.where(j == count - 1, entering_{state}, v{node})")
                lines += self._restart(f"v{node}", f"start_{state}")
        for i, node in self.program.leaves["state"].items():
            lines += [f"v{node} = state_{i}"]
            lines += [] if self.adjoint else self._restart(f"v{node}", f"start_{i}")
        operations = {x for x, level in self._operations() if level > 0}
        computed = {x for x in operations if self.program.nodes[x].op not in CONTRACTIONS}
        lines += [
            x
            for node in range(len(self.stages))
            if node not in operations
            for x in self._stores(node)
        ]
        for stage in range(max(self.stages) + 1):
            lines += self._products(stage - 1)
            for x in sorted(operations):
                if self.stages[x] == stage:
                    lines += [self._compute(x)] if x in computed else []
                    lines += self._stores(x)
            lines += self._whole(stage)
        for i, node in self.program.sums:
            k = self.sizes.sums[i]
            row = f"tl.where(inside_{k} & exists, {self._row(node, k)}, 0)"
            lines.append(f"total_{i} += {row}.to(tl.float64)")
        return lines + self._next_states()

    def _stores(self, node: int) -> list[str]:
        """Return the lines that write a value, as soon as it is there: it occupies registers."""
        lines = []
        for i, k in enumerate(self.sizes.stored):
            if self.task.stored[i] == node:
                at = f"{self._operand('stored', i)} + (row * time + at) * all_{k} + lane_{k}"
                lines.append(f"tl.store({at}, {self._row(node, k)}, mask=inside_{k} & exists)")
        return lines

    def _restart(self, name: str, start: str) -> list[str]:
        return ["if reset is not None:", f"    {name} = tl.where(reset_now, {start}, {name})"]

    def _whole(self, stage: int) -> list[str]:
        """The vectors of a stage, or if instances share matrices what publishes this one's share.

        Lanes beyond the width may hold anything, and nothing times 0 must be 0.
        """
        vectors = self.multiplied.get(stage, [])
        own = {x: self._own(x) for x in vectors}
        if not self.shared:
            return [f"whole_{x} = ({row},)" for x, row in own.items()]
        lines = []
        for x, row in own.items():
            k = self.sizes.nodes[x]
            lines.append(f"tl.store(room_{x} + j % 2 * room + own_{k}, {row})")
        number = sorted(self.multiplied).index(stage) if vectors else 0
        if vectors:
            lines.append(f"meet(arrived, (j * {len(self.multiplied)} + {number + 1}) * SHARERS)")
        return lines

    def _own(self, x: int) -> str:
        k = self.sizes.nodes[x]
        return f"tl.where(inside_{k}, {self._row(x, k)}, 0).to(MATRIX)"

    def _end(self) -> list[str]:
        lines = []
        named = [("final", i, k, f"state_{i}") for i, k in enumerate(self.sizes.states)]
        named += [("sum", i, self.sizes.sums[i], f"total_{i}") for i, _ in self.program.sums]
        for kind, i, k, value in named:
            at = f"{self._operand(kind, i)} + s * all_{k} + lane_{k}"
            lines.append(f"tl.store({at}, {value}, mask=inside_{k})")
        return lines

    def _products(self, stage: int) -> list[str]:
        """All that a stage's vectors are multiplied with, a chunk of a vector after the other.

        Of a chunk, which is read by many threads, there are then no two in registers at once.
        """
        lines = []
        for x in self.multiplied.get(stage, []):
            nodes = [i for i, y in enumerate(self.program.nodes)
                     if y.op in CONTRACTIONS and y.args[1] == x]  # fmt: skip
            names = {i: self._sides(self.program.nodes[i])[0] for i in nodes}
            if self.shared:
                place = f"room_{x} + j % 2 * room, BLOCK_{self.sizes.nodes[x]}, CHUNK, SPLIT"
                lines.append(f"whole_{x} = published_chunks({place})")
            dot = "tl.dot(whole_{}[{}].to(DOT), {}[{}].to(DOT), {}input_precision=PRECISION)"
            lines += [f"v{i} = {dot.format(x, 0, name, 0, '')}" for i, name in names.items()]
            lines.append(f"for k in tl.static_range(1, len({names[nodes[0]]})):")
            lines += [
                f"    v{i} = {dot.format(x, 'k', name, 'k', f'v{i}, ')}"
                for i, name in names.items()
            ]
            if self.shared:  # the warps' parts, in a fixed order
                sums = [f"    v{i} = tl.sum(v{i}, 0)" for i in names]
                lines += ["if SPLIT > 1:", *sums]
        return lines

    def _row(self, node: int, k: int) -> str:
        """A value with all its sequences and channels, which parameters and numbers have not."""
        return f"tl.broadcast_to(v{node}, {self._shape(k)})"

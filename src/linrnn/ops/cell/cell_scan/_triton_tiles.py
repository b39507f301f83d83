"""An affine program as a Triton kernel that is parallel along time, as `linear_scan`'s is.

The kernel is laid out by `linrnn.ops.linear.linear_scan.triton_plan` and works across warps, and
across instances, by the functions of `triton_tile`. A tile is ``WARPS`` stretches of ``STEPS``
steps. States are solved in the order of `linrnn.engine.derivatives.affine`: of each group, decays
and what is added are computed from the inputs on chip, and make the map of a state by a stretch.
Once the states that enter a stretch are there, the program runs its steps as a loop does. So each
input is read once, each result is written once, and no coefficient is ever in memory.

Numbers are (warps, channels), two of them for a complex one.
"""

from typing import NamedTuple

from linrnn.engine.derivatives import Group, affine
from linrnn.engine.graph import ELEMENTWISE, Program
from linrnn.ops.cell.cell_scan._triton_source import Sizes, Source, Task, Writer, literal

_WHOLE = "[WARPS, BLOCK_0]"


class Solution(NamedTuple):
    """The order in which the states of a program are solved in tiles."""

    scanned: tuple[Group, ...]
    constant: tuple[int, ...]
    """The states that are a number after every step, which need no scan."""

    @property
    def is_complex(self) -> bool:
        """Whether what is scanned are pairs of states."""
        return len(self.scanned[0].states) == 2


def solution(program: Program) -> Solution | str:
    """How tiles solve a program, or why they cannot."""
    if program.mixes:
        return "its channels are mixed"
    groups, reason = affine(program)
    if reason is not None:
        return reason
    constant = [i for i, x in enumerate(program.next_states) if program.nodes[x].op == "constant"]
    scanned = [x for x in groups if not set(x.states) <= set(constant)]
    if not scanned:
        return "no state of it depends on the one before"
    if len({len(x.states) for x in scanned}) > 1:
        return "its states are real and complex"
    return Solution(tuple(scanned), tuple(constant))


class TileWriter(Writer):
    """The source of a kernel whose warps share tiles of time."""

    #: Beside those of every kernel.
    MORE = ("lanes", "chunks", "handed", "maps")
    OPTIONS = ("FLIP", "DTYPE", "WARPS", "STEPS", "AHEAD", "CHAINED", "GROUP")

    def __init__(self, task: Task, sizes: Sizes) -> None:
        super().__init__(task, sizes)
        solved = solution(self.program)
        assert isinstance(solved, Solution)
        self.solution = solved
        coefficients = [x.coefficients for x in solved.scanned]
        #: The states before each step that coefficients of other states depend on.
        self.read_before = {i for x in coefficients for i in x.leaves["state"]}

    def source(self) -> Source:
        """All of it; its arguments as of every kernel, then `MORE` and `OPTIONS`."""
        source = self._assembled(self.MORE, self.OPTIONS)
        nodes = [x for group in self.solution.scanned for x in group.coefficients.nodes]
        weight = sum(ELEMENTWISE[x.op].weight for x in nodes if x.args)
        return source._replace(weight=source.weight + weight, scans=len(self.solution.scanned))

    def _shape(self, k: int) -> str:
        return _WHOLE

    def _row(self, node: int, k: int) -> str:
        return f"tl.broadcast_to(v{node}, {_WHOLE})"

    def _begin(self) -> list[str]:
        scans = len(self.solution.scanned)
        return [
            "lane, k, chunk = tl.program_id(0), 0, time",
            "if CHAINED:",  # tickets go along time, so whoever is waited for runs already
            f"    counter = handed + {2 * scans} * lanes.to(tl.int64) * chunks",
            "    ticket = tl.atomic_add(counter, 1, sem='relaxed')",
            "    lane, k, chunk = ticket % lanes, ticket // lanes, WARPS * STEPS",
            "s = (lane // parts).to(tl.int64)",
            "row, first, left, count = span(cu_seqlens, s, s * 0 + k, time, chunk, FLIP)",
            "warp = tl.arange(0, WARPS)[:, None]",
            "own = warp * 0 + tl.arange(0, BLOCK_0)[None, :]",  # whole tiles, so that all lie alike
            f"places = warp * 0 + tl.arange(0, {1 + self.solution.is_complex} * BLOCK_0)[None, :]",
            "lane_0 = (lane % parts) * BLOCK_0 + own",
            "inside_0 = lane_0 < width_0",
            "all_0 = width_0",
            "steps_0 = tl.where(inside_0, count - warp * STEPS, 0)",
            "sign = tl.full((), -1 if FLIP else 1, tl.int64)",
            f"zero = tl.zeros({_WHOLE}, DTYPE)",
            f"uncut = tl.zeros({_WHOLE}, tl.int32)",
        ]

    def _load_row(self, name: str, kind: str, number: int, k: int) -> str:
        at = "lane_0" if kind == "parameter" else "s * all_0 + lane_0"
        return f"{name} = tl.load({self._operand(kind, number)} + {at}, mask=inside_0, other=0)"

    def _matrix(self, operand: str, m: int, n: int) -> str:
        raise AssertionError("a program with matrices is not solved in tiles")

    def _restart(self, name: str, start: str) -> list[str]:
        return ["if reset is not None:", f"    {name} = tl.where(reset_now[i], {start}, {name})"]

    def _loop(self) -> list[str]:
        """All tiles of an instance, one after the other."""
        ahead = [f"end_{i} = state_{i}" for i in range(len(self.program.states))]
        body = []
        for i in self.inputs:
            name, shift = self._operand("input", i), i in self.task.previous
            steps = "tl.minimum(left - 1, count).to(tl.int32) - warp * STEPS"
            ahead += [
                f"by_{i} = sign * {name}_step",
                f"{name} += row * {name}_seq + first * {name}_step" + f" + by_{i}" * shift,
                f"at_{i} = warp * (STEPS * by_{i}) + lane_0",
                f"left_{i} = tl.where(inside_0, {steps}, 0)" if shift else f"left_{i} = steps_0",
            ]
            row = f"rows({name}, by_{i}, at_{i}, left_{i} - j{{}}, STEPS)"
            onward = f"{name} += WARPS * STEPS * by_{i}"
            ahead += ["if AHEAD:", f"    next_{i} = {row.format('').replace(' - j', '')}"]
            ahead += [f"    {onward}"]
            body += [
                "if AHEAD:",
                f"    now_{i} = next_{i}",
                f"    next_{i} = {row.format(' - WARPS * STEPS')}",
                "else:",
                f"    now_{i} = {row.format('')}",
                onward,
            ]
        for i in range(len(self.task.stored)):
            name = self._operand("stored", i)
            ahead.append(f"{name} += (row * time + first) * all_0")
        ahead += [
            "stored_by = sign * all_0",
            "stored_at = warp * (STEPS * stored_by) + lane_0",
            "if reset is not None:",
            "    reset_by = sign * reset_step",
            "    reset += row * reset_seq + first * reset_step + warp * (STEPS * reset_by)",
        ]
        body += [
            "if reset is not None:",
            "    reset_now = flags(reset, reset_by, count - j - warp * STEPS, STEPS)",
            "    reset += WARPS * STEPS * reset_by",
            "begins = (j == 0) & (warp == 0) & (k == 0)",
            *self._entering(),
            *self._steps(),
            *(
                f"{self._operand('stored', i)} += WARPS * STEPS * stored_by"
                for i in range(len(self.task.stored))
            ),
        ]
        loop = "for j in range(0, count, WARPS * STEPS):"
        return [*ahead, loop, *(f"    {line}" for line in body)]

    def _entering(self) -> list[str]:
        """Return the lines that find the states which enter each stretch."""
        lines = []
        for i in self.solution.constant:
            after = literal(self.program.nodes[self.program.next_states[i]].attribute)
            lines.append(f"enters_{i} = tl.where(begins, state_{i}, {after})")
            if i in self.read_before:
                lines += self._before((i,), [f"y_{i} = zero + {after}"])
        for place, group in enumerate(self.solution.scanned):
            lines += self._scan(place, group)
            if self.read_before.intersection(group.states):
                advance = [*self._coefficients(group), *_advance(group, "y")]
                lines += self._before(group.states, advance)
        return lines

    def _before(self, states: tuple[int, ...], advance: list[str]) -> list[str]:
        """Return the lines that find solved states before each step, by those of one step."""
        step = []
        for i in states:
            step += [] if self.adjoint else self._restart(f"y_{i}", f"start_{i}")
            step.append(f"before_{i} = before_{i} + (y_{i},)")
        step += advance
        for i in states:
            step += self._restart(f"y_{i}", "0") if self.adjoint else []
        return [
            *(f"y_{i}, before_{i} = enters_{i}, ()" for i in states),
            "for i in tl.static_range(STEPS):",
            *(f"    {line}" for line in step),
        ]

    def _scan(self, place: int, group: Group) -> list[str]:
        """Return the lines that find what enters each stretch, of a group of states."""
        first, last = group.states[0], group.states[-1]
        pair = len(group.states) == 2
        step = self._coefficients(group)
        cuts = ["if reset is not None:", "    cut = tl.where(reset_now[i], 1, cut)"]
        sums = [(f"q_{i}", "0" if self.adjoint else f"start_{i}") for i in group.states]
        restart = [line for name, start in sums for line in self._restart(name, start)]
        advance = _advance(group, "q")
        step += [*advance, *restart, *cuts] if self.adjoint else [*restart, *cuts, *advance]
        # roundings of many tiles would add up
        step += [
            f"wide, wide_im = decay_{first}.to(tl.float64), decay_{last}.to(tl.float64)",
            "if i == 0:",
            "    p, p_im = wide, wide_im",
            "else:",
            f"    p, p_im = multiply(wide, wide_im, p, p_im, {pair})",
        ]
        scans = len(self.solution.scanned)
        of_group = f"lane + {place} * lanes, {scans} * lanes, k, chunks, places"
        enters = f"enters_{first}, {f'enters_{last}' if pair else 'unused'}"
        leaves = f"state_{first}, {f'state_{last}' if pair else 'unused'}"
        return [
            *(f"q_{i} = zero" for i in group.states),
            "cut = uncut",
            "for i in tl.static_range(STEPS):",
            *(f"    {line}" for line in step),
            f"{enters}, {leaves} = entered(",
            f"    p.to(DTYPE), p_im.to(DTYPE), q_{first}, q_{last}, cut, state_{first},",
            f"    state_{last}, handed, maps, {of_group},",
            f"    CHAINED, reset is not None, {pair}, DTYPE, GROUP,",
            ")",
        ]

    def _coefficients(self, group: Group) -> list[str]:
        """Return the lines that find a group's decays and what is added, at one step."""
        program, lines, names = group.coefficients, list[str](), list[str]()
        leaves = self.program.leaves
        for i, node in enumerate(program.nodes):
            name = f"of_{group.states[0]}_{i}"
            if node.op == "constant":
                lines.append(f"{name} = {literal(node.attribute)}")
            elif node.op == "state":
                name = f"before_{node.attribute}[i]"
            elif not node.args:
                name = f"v{leaves[node.op][node.attribute]}"
                lines += self._input(node.attribute) if node.op == "input" else []
            else:
                text = ELEMENTWISE[node.op].triton
                assert text is not None
                lines.append(f"{name} = {text.format(*(names[x] for x in node.args))}")
            names.append(name)
        count = len(group.states)
        for i, state in enumerate(group.states):
            decay, added = (names[program.outputs[x]] for x in (i, count + i))
            lines.append(f"decay_{state} = tl.broadcast_to({decay}, {_WHOLE})")
            lines.append(f"added_{state} = tl.broadcast_to({added}, {_WHOLE})")
        return lines

    def _input(self, i: int) -> list[str]:
        """Return the lines that take an input of one step from its row."""
        node = self.inputs[i]
        lines = [f"v{node} = now_{i}[i].to(DTYPE)"]
        if i in self.task.previous:
            state = self.task.previous.index(i)
            more = "i < left - 1 - j - warp * STEPS"
            lines.append(f"v{node} = tl.where({more}, v{node}, entering_{state})")
            lines += self._restart(f"v{node}", f"start_{state}")
        return lines

    def _steps(self) -> list[str]:
        """Return the lines that run the program over each stretch, from what enters it."""
        step = [line for i in self.inputs for line in self._input(i)]
        for i, node in self.program.leaves["state"].items():
            step.append(f"v{node} = y_{i}")
            step += [] if self.adjoint else self._restart(f"v{node}", f"start_{i}")
        step += [self._compute(x) for x, level in self._operations() if level > 0]
        for i, node in enumerate(self.task.stored):
            at = f"{self._operand('stored', i)} + i * stored_by + stored_at"
            step.append(f"tl.store({at}, {self._row(node, 0)}, mask=i < steps_0 - j)")
        for i, node in self.program.sums:
            row = f"tl.where(i < steps_0 - j, {self._row(node, 0)}, 0)"
            step.append(f"part_{i} += {row}")
        step.append("is_last = i == count - 1 - j - warp * STEPS")
        for i, node in enumerate(self.program.next_states):
            step.append(f"y_{i} = {self._row(node, 0)}")
            step += self._restart(f"y_{i}", "0") if self.adjoint else []
            step.append(f"end_{i} = tl.where(is_last, y_{i}, end_{i})")
        return [
            *(f"y_{i} = enters_{i}" for i in range(len(self.program.states))),
            *(f"part_{i} = zero" for i, _ in self.program.sums),
            "for i in tl.static_range(STEPS):",
            *(f"    {line}" for line in step),
            *(f"total_{i} += part_{i}.to(tl.float64)" for i, _ in self.program.sums),
        ]

    def _end(self) -> list[str]:
        lines = ["ends = inside_0 & ends_in(left, k, chunk, count, warp, STEPS)"]
        for i in range(len(self.program.states)):
            at = f"{self._operand('final', i)} + s * all_0 + lane_0"
            lines.append(f"tl.store({at}, end_{i}, mask=ends)")
        for i, _ in self.program.sums:
            at = f"{self._operand('sum', i)} + (s * chunks + k) * all_0 + lane_0"
            total = f"of_all_warps(total_{i}, total_{i}, False)[0]"
            lines.append(f"tl.store({at}, {total}, mask=inside_0 & (warp == 0))")
        return lines


def _advance(group: Group, name: str) -> list[str]:
    """Return the lines that multiply a group's states with its decays and add what is added."""
    if len(group.states) == 1:
        (i,) = group.states
        return [f"{name}_{i} = decay_{i} * {name}_{i} + added_{i}"]
    re, im = group.states
    product = f"multiply(decay_{re}, decay_{im}, {name}_{re}, {name}_{im}, True)"
    return [
        f"{name}_{re}, {name}_{im} = {product}",
        f"{name}_{re} += added_{re}",
        f"{name}_{im} += added_{im}",
    ]

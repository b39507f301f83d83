"""A generated kernel of a cell: its source, what it is compiled for, and its launch.

What a form leaves open is decided here: how many channels, steps and warps an instance has.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import launch
from linrnn.compute.layout import dense, unit_channels, with_strides
from linrnn.engine.graph import Program
from linrnn.ops.cell.cell_scan._arguments import Layout, Leaves
from linrnn.ops.cell.cell_scan._triton_form import CHUNK, FEWEST, WIDEST, Form, reached
from linrnn.ops.cell.cell_scan._triton_groups import GroupWriter
from linrnn.ops.cell.cell_scan._triton_shape import Shape
from linrnn.ops.cell.cell_scan._triton_source import Task, load, write
from linrnn.ops.cell.cell_scan._triton_tiles import TileWriter
from linrnn.ops.linear.linear_scan import triton_plan
from linrnn.ops.linear.linear_scan.triton_plan import Plan

#: Numbers of 32 bits, sides rounded up to powers of two: of all matrices that stay in registers, of
#: one that is read at every step, and what is read of it at once.
RESIDENT = 8192
LARGEST = 65536
AT_ONCE = 16384
#: 32-bit registers of one thread that matrices may occupy, and those of rows under way.
OF_MATRICES = 32
OF_ROWS = 64
#: Numbers of 32 bits of one thread times operations of a step, in tiles. With 960 the gradient of
#: minGRU spills 2 registers, with 1552 that of minLSTM 394: compiled for an H100, Triton 3.7.1,
#: 2026-11-29.
#: Fewer fit where a warp has parts of several stretches: RG-LRU's gradient spills 5 with 880. More
#: fit in a tile that is handed over, which loads nothing ahead. With resets, rows are loaded ahead
#: up to the last of these: RG-LRU spills 6 with 636.
OF_TILES, OF_PARTS, OF_HANDED, OF_RESETS = 900, 800, 1350, 600
MOST_WARPS = 16
#: Bytes of a row that a thread of a walk loads at once.
VECTOR = 16
#: Operations of a step beside which a thread holds parameters of 8 channels: with 83, RG-LRU in
#: bfloat16 spills 4 registers. Compiled for an H100, not run.
OF_EIGHT = 70
#: Steps at once; and operations, since the compiler takes minutes for thousands of them.
MOST_STEPS = 8
MOST_OPERATIONS = 192
#: Steps whose rows are on their way: a step may take a load's latency over as many.
MOST_AHEAD = 32


class Code:
    """A kernel, and how its arguments are found among the tensors of a call."""

    def __init__(
        self,
        program: Program,
        shape: Shape,
        stored: Sequence[tuple[int, int]],
        starts: tuple[float, ...],
        form: Form,
        previous: tuple[int, ...] = (),
    ) -> None:
        (heads,) = shape.parts(program)
        self.form = form
        self.heads, self.stored = heads, [width for _, width in stored]
        self.widths, sizes = shape.of_instance(program, self.stored, heads)
        nodes = tuple(node for node, _ in stored)
        if form.sharers:
            task = Task(program, nodes, starts, previous, True, True, form.sharers)
            self.source = GroupWriter(task, sizes).source()
            return
        if form.plan is not None:
            self.source = TileWriter(Task(program, nodes, starts, previous), sizes).source()
            return
        numbers = [0, *shape.numbers(program).values()]
        resident = sum(numbers) <= RESIDENT
        threads = (sum(numbers) if resident else min(max(numbers), AT_ONCE)) // OF_MATRICES
        self.warps = min(
            max(gpu.power_of_two(max(threads, max(self.widths) // 4) // 32), 1), MOST_WARPS
        )
        self.source = write(Task(program, nodes, starts, previous, heads > 0, resident), sizes)

    @cached_property
    def kernel(self) -> Any:
        """Made by the first call that runs on it."""
        return load(self.source.text)

    def run(
        self,
        leaves: Leaves,
        layout: Layout,
        tensors: dict[str, Sequence[Tensor]],
        *,
        adjoint: bool = False,
    ) -> None:
        """Compute; tensors by the kinds of `Operand`, and those of ``leaves``."""
        tensors = tensors | {"parameter": leaves.parameters, "matrix": leaves.matrices}
        tensors["turned"] = [w.mT for w in leaves.matrices]
        first = leaves.states[0]
        arguments: list[Any] = []
        for kind, number in self.source.operands:
            x = tensors[kind][number]
            arguments += with_strides(unit_channels(x)) if kind == "input" else (dense(x),)
        offsets = layout.cu_seqlens
        if offsets is not None:
            offsets = offsets.to(first.device, torch.long).contiguous()
        parts, options = self.tile(len(first), leaves)
        arguments += [*with_strides(layout.reset), offsets, layout.time, parts, *self.widths]
        programs = len(first) * parts
        if self.form.sharers:
            groups = parts * -(-len(first) // self.form.rows)
            programs = groups * self.form.sharers
            arguments += [len(first), *self._meeting(groups, first.device)]
        elif self.form.plan is not None:
            lanes, tiles = programs, self.tiles(layout.time, first)
            programs = lanes * tiles
            arguments += [lanes, tiles, *self._handed(lanes * tiles, first)]
            options["AHEAD"] = options["AHEAD"] and self._has_room(layout, first)
        with torch.cuda.device_of(first):
            flip = layout.reverse != adjoint
            launch(self.kernel, programs, *arguments, FLIP=flip, **options)

    def _meeting(self, groups: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Counters, which are 0, and room for what instances tell one another, if they do."""
        if self.form.sharers == 1:
            return None, None
        blocks = reached(self.widths)
        numbers = 2 * self.form.rows * sum(blocks[k] for k in self.source.published)
        dtype = torch.bfloat16 if self.form.half else torch.float32
        arrived = torch.zeros(groups, dtype=torch.int32, device=device)
        return arrived, torch.empty(groups * numbers, dtype=dtype, device=device)

    def tiles(self, time: int, state: Tensor) -> int:
        """How many instances share a sequence and block of channels."""
        if self.form.plan is None or not self.form.plan.chained:
            return 1
        stretches, steps = self._tile(state)
        return -(-time // (stretches * steps))

    def _handed(self, instances: int, state: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Flags, which are 0, and room for maps, by which tiles hand their states over."""
        assert self.form.plan is not None
        if not self.form.plan.chained:
            return None, None
        scanned = instances * self.source.scans
        flags = torch.zeros(2 * scanned + 1, dtype=torch.int32, device=state.device)
        # a product, a sum and a state, of pairs if numbers are complex
        return flags, state.new_empty(6 * scanned * self.form.plan.block)

    def _tile(self, state: Tensor) -> tuple[int, int]:
        """Stretches of a tile and steps of each: what registers hold, and what compiles soon."""
        plan, weight = self.form.plan, self.source.weight
        assert plan is not None
        limit, stretches = OF_HANDED if plan.chained else OF_TILES, plan.stretches
        of_step = state.dtype.itemsize // 4 * weight
        while stretches > plan.warps and _numbers(plan, stretches) * of_step > OF_PARTS:
            stretches //= 2
        steps = limit // (_numbers(plan, stretches) * of_step)
        steps = max(1, min(steps, MOST_STEPS, 2 * MOST_OPERATIONS // weight))
        return stretches, 1 << (steps.bit_length() - 1)

    def _has_room(self, layout: Layout, state: Tensor) -> bool:
        """Whether there are registers for the rows of the next tile, beside resets."""
        plan, (stretches, steps) = self.form.plan, self._tile(state)
        assert plan is not None
        numbers = _numbers(plan, stretches) * steps * (state.dtype.itemsize // 4)
        return layout.reset is None or numbers * self.source.weight <= OF_RESETS

    def _of_tiles(self, state: Tensor) -> dict[str, Any]:
        """The options of a kernel whose warps share tiles."""
        plan, (stretches, steps) = self.form.plan, self._tile(state)
        assert plan is not None
        return {
            "DTYPE": triton_plan.dtype_of(state.dtype), "WARPS": stretches, "STEPS": steps,
            "AHEAD": not plan.chained, "CHAINED": plan.chained, "GROUP": plan.group,
            "BLOCK_0": plan.block, "num_warps": plan.warps, "enable_fp_fusion": True,
        }  # fmt: skip

    def _of_groups(self) -> dict[str, Any]:
        """The options of a kernel for groups of sequences."""
        tl, (_, sharers, rows, warps, half, _) = gpu.language(), self.form
        precision = "tf32" if half or gpu.allows_tf32() else "tf32x3"
        matrix = tl.bfloat16 if half else tl.float32
        # a product as exact as float32 has operands in two parts, too many for a warp's registers
        exact = sharers > 1 and precision == "tf32x3"
        split = min(warps, min(reached(self.widths)) // FEWEST) if exact else 1
        options = {
            "DTYPE": tl.float32, "ROWS": rows, "SHARERS": sharers,
            "CHUNK": CHUNK if sharers > 1 else WIDEST, "PRECISION": precision,
            "SPLIT": split,
            # the interpreter multiplies no bfloat16; their products are exact in float32
            "MATRIX": matrix, "DOT": tl.float32 if gpu.interprets() else matrix,
            "enable_fp_fusion": True,
            # a load of what others publish must not be moved to a step before
            "num_warps": warps, "num_stages": 1,
        }  # fmt: skip
        together = {"launch_cooperative_grid": True} if sharers > 1 else {}
        return options | together | _named(reached(self.widths))

    def tile(self, seqs: int, leaves: Leaves) -> tuple[int, dict[str, Any]]:
        """The parts of the channels, and what the kernel is compiled for."""
        if self.form.sharers:
            return self.heads, self._of_groups()
        if self.form.plan is not None:
            return self.form.plan.blocks, self._of_tiles(leaves.states[0])
        tl, words = gpu.language(), leaves.states[0].dtype.itemsize // 4
        options = {"DTYPE": tl.float64 if words == 2 else tl.float32, "enable_fp_fusion": True}
        if self.heads:
            return self.heads, options | self._of_heads(words)
        parts, of_walks = self._of_walks(seqs, leaves)
        return parts, options | of_walks

    def _of_heads(self, words: int) -> dict[str, Any]:
        """The options of a kernel for a sequence and a head, with numbers of 32 bits a word."""
        blocks = _named([gpu.power_of_two(n) for n in self.widths])
        options = {"AT_ONCE": AT_ONCE // words, "UNROLL": 1, "AHEAD": 1, "num_warps": self.warps}
        return options | blocks

    def _of_walks(self, seqs: int, leaves: Leaves) -> tuple[int, dict[str, Any]]:
        """The blocks of channels of a sequence, and the options of a kernel for one of them."""
        state, (width,) = leaves.states[0], self.widths
        words, busy = state.dtype.itemsize // 4, gpu.ENOUGH * gpu.processors(state.device)
        # a thread loads 128 bits of a row, unless that leaves too few programs
        vector = VECTOR // min((x.dtype.itemsize for x in leaves.inputs), default=4)
        has_parameters = any(x.kind == "parameter" for x in self.source.operands)
        if has_parameters and self.source.weight > OF_EIGHT:
            vector = min(vector, 4)
        while vector > 1 and seqs * -(-width // (32 * vector)) < busy:
            vector //= 2
        rows = sum(x.kind == "input" for x in self.source.operands)
        of_step = max(rows, 1) * vector * words
        steps = min(OF_ROWS // (2 * of_step), MOST_OPERATIONS // self.source.weight)
        unroll = min(MOST_STEPS, max(1, gpu.power_of_two(steps + 1) // 2))
        # steps at once are limited by what compiles soon, and those on their way by registers
        ahead = min(OF_ROWS // of_step, MOST_AHEAD) // unroll
        options = {"AT_ONCE": 0, "UNROLL": unroll, "AHEAD": max(1, ahead), "num_warps": 1}
        return -(-width // (32 * vector)), options | _named([32 * vector])


def _numbers(plan: Plan, stretches: int) -> int:
    """How many numbers of a row a thread has."""
    return max(plan.block * stretches // (32 * plan.warps), 1)


def _named(blocks: Sequence[int]) -> dict[str, int]:
    return {f"BLOCK_{k}": n for k, n in enumerate(blocks)}

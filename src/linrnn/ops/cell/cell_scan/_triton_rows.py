"""A function of the channels of one step as a Triton kernel: its source as text.

An instance owns some rows of one head, or of a block of channels where no sum runs over a head. A
value is a tile of rows and channels, or of rows alone. Sums over all rows, which are the gradients
of what is the same in every row, are in double precision, one number for each instance.
"""

from typing import NamedTuple

from linrnn.engine.graph import ELEMENTWISE, SPREADS, Program, levels, reach
from linrnn.ops.cell.cell_scan._triton_source import literal


class Widths(NamedTuple):
    """For each leaf whether it has one number a head, and not one a channel."""

    inputs: tuple[bool, ...]
    parameters: tuple[bool, ...]
    outputs: tuple[bool, ...]


class Kernel(NamedTuple):
    """The source of a kernel, and the inputs and parameters that it reads, by number."""

    text: str
    inputs: tuple[int, ...]
    parameters: tuple[int, ...]


def write_rows(program: Program, widths: Widths) -> Kernel:
    """The kernel ``run`` of a program without states.

    Its arguments are the inputs with their distances of rows, heads and channels, the parameters,
    the outputs likewise, and a tensor for sums (instances along rows, sums, heads, channels).

    Args:
        program: elementwise, with sums over a head: ``fold``, and their ``spread``.
        widths: of its leaves and outputs; a sum is as wide as its parameter.
    """
    used = reach(program.nodes, [*program.outputs, *(node for _, node in program.sums)])
    leaves = {
        kind: [i for i, node in program.leaves[kind].items() if node in used]
        for kind in ("input", "parameter")
    }
    names, once, body = list[str](), list[str](), list[str]()
    for i in leaves["input"]:
        names += [f"input_{i}", *_distances(f"input_{i}")]
        at, mask = _place(f"input_{i}", narrow=widths.inputs[i])
        place = program.leaves["input"][i]
        body.append(f"v{place} = tl.load({at}, mask={mask}, other=0).to(DTYPE)")
    for i in leaves["parameter"]:
        names.append(f"parameter_{i}")
        narrow, place = widths.parameters[i], program.leaves["parameter"][i]
        at, mask = ("head + one", "one == 0") if narrow else ("head * width + lane", "inside")
        once.append(f"v{place} = tl.load(parameter_{i} + {at}, mask={mask}, other=0).to(DTYPE)")
    for i, (node, level) in enumerate(zip(program.nodes, levels(program), strict=True)):
        if i in used and node.op == "constant":
            once.append(f"v{i} = {literal(node.attribute)}")
        elif i in used and node.args:
            (body if level else once).append(_compute(program, i))
    for i, place in enumerate(program.outputs):
        names += [f"output_{i}", *_distances(f"output_{i}")]
        at, mask = _place(f"output_{i}", narrow=widths.outputs[i])
        body.append(f"tl.store({at}, tl.broadcast_to(v{place}, ({mask}).shape), mask={mask})")
    for i, (parameter, place) in enumerate(program.sums):
        narrow = widths.parameters[parameter]
        mask, shape = ("exists", "[1, 1]") if narrow else ("exists & inside", "[1, BLOCK]")
        once.append(f"total_{i} = tl.zeros({shape}, tl.float64)")
        body.append(
            f"total_{i} += tl.sum(tl.where({mask}, v{place}, 0).to(tl.float64), 0, keep_dims=True)"
        )
    return Kernel(_text(program, names, once, body, widths), *map(tuple, leaves.values()))


def _distances(name: str) -> list[str]:
    return [f"{name}_{axis}" for axis in ("row", "head", "lane")]


def _place(name: str, *, narrow: bool) -> tuple[str, str]:
    """The addresses of a tile, and which of them there are."""
    at = f"{name} + row * {name}_row + head * {name}_head"
    return (at, "exists") if narrow else (f"{at} + lane * {name}_lane", "exists & inside")


def _compute(program: Program, i: int) -> str:
    node = program.nodes[i]
    if node.op.startswith("fold"):
        return f"v{i} = tl.sum(tl.where(inside, v{node.args[0]}, 0), 1, keep_dims=True)"
    if node.op in SPREADS:  # a number of each row, which is as wide as whatever it meets
        return f"v{i} = v{node.args[0]}"
    text = ELEMENTWISE[node.op].triton
    assert text is not None
    return f"v{i} = {text.format(*(f'v{x}' for x in node.args))}"


def _text(
    program: Program, names: list[str], once: list[str], body: list[str], widths: Widths
) -> str:
    ends = []
    for i, (parameter, _) in enumerate(program.sums):
        base = f"sums + (turn * {len(program.sums)} + {i}) * heads * width + head * width"
        if widths.parameters[parameter]:
            ends.append(f"tl.store({base} + one, total_{i})")
        else:
            ends.append(f"tl.store({base} + lane, total_{i}, mask=inside)")
    lines = [
        "part = tl.program_id(0) % parts",
        "head = (tl.program_id(0) // parts % heads).to(tl.int64)",
        "turn = (tl.program_id(0) // (parts * heads)).to(tl.int64)",
        "lane = part * BLOCK + tl.arange(0, BLOCK)[None, :]",
        "one = tl.zeros([1, 1], tl.int32)",
        "inside = lane < width",
        *once,
        "for first in range(turn * ROWS, batch, turns * ROWS):",
        "    row = first + tl.arange(0, ROWS)[:, None].to(tl.int64)",
        "    exists = row < batch",
        *(f"    {line}" for line in body),
        *ends,
    ]
    names += ["sums"] if program.sums else []
    names += ["batch", "heads", "width", "parts", "turns"]
    names += [f"{x}: tl.constexpr" for x in ("DTYPE", "ROWS", "BLOCK")]
    return f"@kernel\ndef run({', '.join(names)}):\n" + "".join(f"    {x}\n" for x in lines)

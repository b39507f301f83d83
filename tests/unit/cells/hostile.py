"""Cells that nobody would write, drawn by number, and what a plain loop makes of them.

A case is Python source: printed, it can be read and run. Arguments of every kind may be left
unused; next states and outputs may be equal, constant, an old state or an argument as it came;
values have several widths, and arguments lie in memory in several ways.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.cells import Cell, block_linear, fold, spread
from linrnn.errors import ShapeError
from linrnn.ops.cell.cell_scan._arguments import prepare

SCOPE = {"torch": torch, "F": F, "block_linear": block_linear, "fold": fold, "spread": spread}
WIDTHS = (1, 2, 3, 5, 8, 16, 17, 33, 130)

UNARY = (
    *(
        "torch.sign({})",
        "torch.where({0} > 0.1, torch.ones_like({0}), -0.5)",
        "0.3 * torch.ones_like({})",
    ),
    *("torch.tanh({})", "torch.sigmoid({})", "torch.sin({})", "torch.cos({})", "-{}"),
    *("torch.relu({})", "torch.abs({})", "F.softplus({})", "F.logsigmoid({})", "F.gelu({})"),
    *("torch.exp(-torch.abs({}))", "torch.log1p({0} * {0})", "torch.sqrt(1 + {0} * {0})"),
    *("torch.expm1(torch.tanh({}))", "torch.erf({})", "1 / (1 + {0} * {0})", "{} ** 2", "{} ** 3"),
    *(
        "(2 + torch.sin({})) ** -2",
        "torch.log(2 + torch.tanh({}))",
        "{}.clamp(-0.5, 0.7)",
        "0.5 * {}",
    ),
    *("torch.reciprocal(2 + torch.cos({}))", "1 - {}", "{} + 0.25", "F.silu({})", "F.elu({})"),
    *(
        "torch.floor(3 * {} + 0.3)",
        "torch.round(5 * {})",
        "torch.sinh(torch.sin({}))",
        "torch.atan({})",
    ),
    *("torch.cosh(torch.cos({}))", "(3 * {} + 0.2) % 0.7", "(1.5 + torch.sin({})) ** 1.7"),
)
BINARY = (
    *("{} + {}", "{} - {}", "{} * {}", "{} / (1.5 + torch.cos({}))", "torch.maximum({}, {})"),
    *(
        "torch.minimum({}, {})",
        "torch.where({0} < {1}, {0}, 0.5 * {1})",
        "torch.atan2({}, 2 + {} ** 2)",
    ),
    *("torch.where({} <= 0.1, {}, 1.0)", "torch.lerp({0}, {1}, torch.sigmoid({0}))"),
    *("torch.fmod({}, 1.5 + {} ** 2)", "(1.5 + torch.sin({})) ** torch.tanh({})"),
    *("({0} - {1}) * {0}", "({0} + {1}) * {1}", "(1 - {0} ** 2) * {1}", "torch.logaddexp({}, {})"),
)
COMPLEX_UNARY = (
    "{}.conj()",
    "0.5 * {}",
    "-{}",
    "1j * {}",
    "{0} / (2 + {0}.abs())",
    "torch.exp(1j * {}.real)",
)
COMPLEX_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / (3 + {}.real ** 2)",
    "torch.where({0}.real < {1}.imag, {0}, {1})",
)
TO_REAL = ("{}.real", "{}.imag", "{}.abs()")


@dataclass
class Draw:
    """The source of a cell and the shapes of what it takes."""

    number: int
    random: random.Random
    lines: list[str] = field(default_factory=list)
    pool: list[tuple[str, int, bool]] = field(default_factory=list)  # name, width, complex
    kinds: dict[str, list[str]] = field(
        default_factory=lambda: {k: [] for k in ["state", "input", "constant", "matrix"]}
    )
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    complex: list[str] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    source: str = ""

    @property
    def cell(self) -> Cell:
        scope = dict(SCOPE)
        exec(self.source, scope)
        words = {kind: " ".join(names) for kind, names in self.kinds.items() if kind != "input"}
        return Cell(scope["step"], **words, complex=" ".join(self.complex), start=self.starts)


def draw(number: int) -> Draw:
    """The cell of a number."""
    d = Draw(number, random.Random(number))
    r = d.random
    mixes = r.random() < 0.55
    widths = r.sample(WIDTHS, r.choice((1, 2, 3))) if mixes else [r.choice(WIDTHS)]
    allow_complex = r.random() < 0.2
    for kind, least, most in (
        ("state", 1, 4),
        ("input", 0 if r.random() < 0.1 else 1, 3),
        ("constant", 0, 3),
    ):
        for i in range(r.randint(least, most)):
            name, width = f"{kind[0]}{i}", r.choice(widths)
            d.kinds[kind].append(name)
            is_complex = allow_complex and r.random() < 0.4
            if is_complex:
                d.complex.append(name)
            d.shapes[name] = (width,)
            if r.random() < 0.8:  # others are left unused
                d.pool.append((name, width, is_complex))
            if kind == "state" and r.random() < 0.3:
                d.starts[name] = r.choice((0.5, -1.0))
    if mixes:
        for i in range(r.choice((0, 0, 1, 2))):
            _matrix(d, f"W{i}", widths)
            if allow_complex and r.random() < 0.5:
                d.complex.append(f"W{i}")
    if not d.pool:
        d.pool.append((d.kinds["state"][0], *_sized(d, d.kinds["state"][0])))
    for _ in range(r.randint(1, 14)):
        _line(d, widths, mixes)
    _results(d)
    return d


def _sized(d: Draw, name: str) -> tuple[int, bool]:
    return d.shapes[name][-1], name in d.complex


def _matrix(d: Draw, name: str, widths: Sequence[int]) -> None:
    r = d.random
    rows, columns = r.choice(widths), r.choice(widths)
    heads = r.choice([k for k in (1, 2, 3) if rows % k == 0 and columns % k == 0])
    d.kinds["matrix"].append(name)
    d.shapes[name] = (
        (rows, columns) if r.random() < 0.6 else (heads, rows // heads, columns // heads)
    )


def _add(d: Draw, text: str, width: int, is_complex: bool) -> None:
    name = f"v{len(d.lines)}"
    d.lines.append(f"    {name} = {text}")
    d.pool.append((name, width, is_complex))


def _line(d: Draw, widths: Sequence[int], mixes: bool) -> None:
    r = d.random
    name, width, is_complex = r.choice(d.pool)
    how = r.random()
    if mixes and how < 0.3:
        return _mixed(d, name, width, is_complex)
    others = [x for x in d.pool if x[1] == width]
    other, _, other_complex = r.choice(others)
    if is_complex and how < 0.45:
        return _add(d, r.choice(TO_REAL).format(name), width, False)
    if how < 0.7:
        both = is_complex or other_complex
        if both and (is_complex != other_complex):
            return _add(
                d, r.choice(("{} + {}", "{} * {}", "{} - {}")).format(name, other), width, True
            )
        return _add(
            d, r.choice(COMPLEX_BINARY if both else BINARY).format(name, other), width, both
        )
    _add(d, r.choice(COMPLEX_UNARY if is_complex else UNARY).format(name), width, is_complex)


def _mixed(d: Draw, name: str, width: int, is_complex: bool) -> None:
    """A product with a matrix, a spread, a fold or a turn around the channels."""
    r, each = d.random, d.random.choice(("", ", each=True"))
    fits = [x for x in d.kinds["matrix"] if (x in d.complex) == is_complex]
    for matrix in r.sample(fits, len(fits)):
        shape = d.shapes[matrix]
        heads = shape[0] if len(shape) == 3 else 1
        sides = heads * shape[-2], heads * shape[-1]
        if r.random() < 0.5 and width in sides:
            turned = width == sides[0] and (width != sides[1] or r.random() < 0.5)
            call = "block_linear" if len(shape) == 3 else "F.linear"
            scaled = f"{call}({name}, {matrix}{'.mT' if turned else ''})"
            return _add(d, scaled, sides[1] if turned else sides[0], is_complex)
    if r.random() < 0.4:
        return _add(d, f"torch.roll({name}, {r.randint(-3, 4)}, -1)", width, is_complex)
    n = r.choice((2, 3))
    if width % n == 0 and r.random() < 0.6:
        return _add(d, f"fold({name}, {n}{each}) / {n}", width // n, is_complex)
    if width * n <= 300:
        return _add(d, f"spread({name}, {n}{each})", width * n, is_complex)
    return None


def _results(d: Draw) -> None:
    r = d.random
    after: list[str] = []
    for name in d.kinds["state"]:
        width, is_complex = _sized(d, name)
        fits = [n for n, w, c in d.pool if w == width and (is_complex or not c)]
        how = r.random()
        if after and how < 0.25 and (same := [x for x in after if x in fits]):
            after.append(r.choice(same))  # equal to another one
        elif how < 0.35 or not fits:
            after.append(r.choice(("0.5", "0.0", name, name)))
        elif how < 0.5:
            after.append(r.choice(fits))
        else:
            value = r.choice(fits)
            bounded = (
                f"0.7 * {value} / (1 + {value}.abs())"
                if value in _complex(d)
                else f"torch.tanh({value})"
            )
            d.lines.append(f"    n_{name} = {bounded}")
            d.pool.append((f"n_{name}", width, value in _complex(d)))
            after.append(f"n_{name}")
    everything = [n for n, _, _ in d.pool]
    outputs = [r.choice([*after, *everything, *everything]) for _ in range(r.choice((1, 1, 2, 3)))]
    if r.random() < 0.1:
        outputs[0] = r.choice(("1.5", "0.0"))
    names = [n for some in d.kinds.values() for n in some]
    r.shuffle(names)
    given = f"({', '.join(outputs)},)" if len(outputs) > 1 or r.random() < 0.2 else outputs[0]
    last = f"({', '.join(after)},)" if len(after) > 1 else after[0]
    d.source = "\n".join(
        [f"def step({', '.join(names)}):", *d.lines, f"    return {given}, {last}", ""]
    )


def _complex(d: Draw) -> set[str]:
    return {n for n, _, c in d.pool if c}


# ------------------------------------------------------------------------------------ arguments


@dataclass
class Problem:
    """A call: arguments, state and layout; and which results have gradients."""

    given: dict[str, Tensor]
    state: tuple[Tensor, ...] | None
    marks: dict[str, Any]

    @property
    def sources(self) -> list[Tensor]:
        return [x for x in (*self.given.values(), *(self.state or ())) if x.requires_grad]

    def options(self) -> dict[str, Any]:
        """Options of `cell_scan`."""
        return {"state": self.state, **self.marks, **self.given}


def problem(d: Draw, cell: Cell, dtype: torch.dtype = torch.float64) -> Problem:
    """Arguments for a cell, as they come: narrow, strided, some without a gradient."""
    r, g = random.Random(d.number + 1), torch.Generator().manual_seed(d.number)
    vectors = (*d.kinds["input"], *d.kinds["constant"])
    narrowed = [] if cell.program.mixes else [n for n in vectors[1:] if r.random() < 0.15]
    rows, time = r.choice((1, 1, 2, 3, 4, 9, 20)), r.choice((1, 2, 3, 7, 12, 18, 40))
    marks: dict[str, Any] = {"reverse": r.random() < 0.3}
    packed = r.random() < 0.3 and d.kinds["input"]
    seqs = rows
    if packed:
        rows, seqs = 1, r.choice((1, 2, 5, 9))
        cuts = sorted(r.randint(0, time) for _ in range(seqs - 1))
        marks["cu_seqlens"] = torch.tensor(
            [0, *cuts, time], dtype=r.choice((torch.int32, torch.int64))
        )
    if r.random() < 0.4:
        marks["reset"] = torch.rand(rows, time, generator=g) < r.choice((0.1, 0.5))
    if not d.kinds["input"]:
        marks["time"] = time

    def tensor(name: str, *leading: int) -> Tensor:
        width = d.shapes[name]
        if name in narrowed:
            width = (1,)
        shape = (*leading, *width)
        kind = (
            {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
            if name in d.complex
            else dtype
        )
        x = torch.randn(
            shape, generator=g, dtype=torch.float64 if name not in d.complex else torch.complex128
        )
        if name in d.kinds["matrix"]:
            x = x / shape[-1] ** 0.5
        return strided(x.to(kind), r).requires_grad_(r.random() < 0.85)

    given = {n: tensor(n, rows, time) for n in d.kinds["input"]}
    given |= {n: tensor(n) for n in (*d.kinds["constant"], *d.kinds["matrix"])}
    state = None
    if not d.kinds["input"] or r.random() < 0.7 or not _says_widths(d, cell, given):
        state = tuple(tensor(n, seqs) for n in d.kinds["state"])
    return Problem(given, state, marks)


def _says_widths(d: Draw, cell: Cell, given: dict[str, Tensor]) -> bool:
    """Whether the arguments say how wide all states are: not of one that is read by nothing."""
    try:
        states = prepare(cell, given, None, None, None, False, None).leaves.states
    except ShapeError:
        return False
    widths = [h.shape[-1] for h in cell.joined(0, states)]
    return widths == [d.shapes[name][-1] for name in d.kinds["state"]]


def strided(x: Tensor, r: random.Random) -> Tensor:
    """The same numbers, somewhere else in memory."""
    how = r.choice(("dense", "dense", "dense", "turned", "apart", "odd", "one row"))
    if how == "turned" and x.ndim > 1:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "apart":
        room = x.new_full((*x.shape[:-1], x.shape[-1] + 3), float("nan"))
        room[..., 1:-2] = x
        return room[..., 1:-2]
    if how == "odd":
        room = x.new_full((x.numel() + 1,), float("nan"))
        room[1:] = x.flatten()
        return room[1:].view(x.shape)
    if how == "one row" and x.ndim == 3 and x.shape[0] > 1:
        return x[:1].clone().expand(x.shape)
    return x


# ---------------------------------------------------------------------------------- the plain loop


def by_loop(
    d: Draw, cell: Cell, p: Problem, widths: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and final states by calling the function, step after step.

    Args:
        d, cell, p: what is computed.
        widths: of the states, where none are given.
    """
    inputs, rest = d.kinds["input"], (*d.kinds["constant"], *d.kinds["matrix"])
    full = {
        n: x if n in d.kinds["matrix"] else _wide(x, d.shapes[n][-1]) for n, x in p.given.items()
    }
    time = full[inputs[0]].shape[1] if inputs else p.marks["time"]
    offsets = p.marks.get("cu_seqlens")
    rows = full[inputs[0]].shape[0] if inputs else p.state[0].shape[0]
    dtype = next(iter(p.given.values()), p.state[0] if p.state else None).real.dtype
    fresh = []
    for name, width in zip(d.kinds["state"], widths, strict=True):
        kind = torch.complex128 if name in d.complex else torch.float64
        fresh.append(
            torch.full((width,), d.starts.get(name, 0.0), dtype=kind).to(
                kind if dtype == torch.float64 else None
            )
        )
    reset, reverse = p.marks.get("reset"), p.marks["reverse"]
    edges = [0, time] if offsets is None else offsets.tolist()
    outputs: dict[int, list[Any]] = {}
    finals: list[list[Tensor]] = []
    for s, (first, last) in enumerate(itertools.pairwise(edges)):
        count = rows if offsets is None else 1
        if p.state is None:
            states = [x.expand(count, *x.shape) for x in fresh]
        else:
            states = [h if offsets is None else h[s : s + 1] for h in p.state]
        for t in range(last - 1, first - 1, -1) if reverse else range(first, last):
            if reset is not None:
                now = reset[:, t, None]
                states = [torch.where(now, x, h) for x, h in zip(fresh, states, strict=True)]
            values = {n: full[n][:, t] for n in inputs} | {n: full[n] for n in rest}
            values |= dict(zip(d.kinds["state"], states, strict=True))
            y, after = cell.function(*(values[n] for n in cell.arguments))
            outputs[t] = list(y) if isinstance(y, tuple) else [y]
            after = after if isinstance(after, tuple) else (after,)
            states = [_like(a, h) for a, h in zip(after, states, strict=True)]
        finals.append(states)
    stacked = [
        torch.stack([_tensor(outputs[t][i], rows) for t in range(time)], 1)
        for i in range(len(outputs[0]))
    ]
    return stacked, [torch.cat(some) for some in zip(*finals, strict=True)]


def _wide(x: Tensor, width: int) -> Tensor:
    return x.expand(*x.shape[:-1], width)


def _like(x: Any, h: Tensor) -> Tensor:
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
    return x.to(h.dtype).expand(h.shape)


def _tensor(y: Any, rows: int) -> Tensor:
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=torch.float64)
    y = y if y.ndim else y[None]
    return y.expand(rows, y.shape[-1])


def flat(results: Any) -> list[Tensor]:
    """Outputs, then final states."""
    return [y for some in results for y in (some if isinstance(some, (tuple, list)) else (some,))]


def with_gradients(results: Sequence[Tensor], p: Problem, number: int) -> list[Tensor]:
    """The results, and the gradients of all arguments from some of them."""
    r = random.Random(number + 2)
    chosen, into = [], []
    everything = r.random() < 0.6
    for i, y in enumerate(results):
        g = torch.Generator().manual_seed(100 * number + i)
        weight = torch.randn(y.shape, generator=g, dtype=torch.float64)
        if (r.random() < 0.5 or everything) and y.requires_grad:
            chosen.append(y)
            into.append(weight.to(y.dtype))
    grads = [torch.zeros_like(x) for x in p.sources]
    if chosen and p.sources:
        grads = torch.autograd.grad(chosen, p.sources, into, materialize_grads=True)
    return [y.detach() for y in (*results, *grads)]


Run = Callable[[], Any]

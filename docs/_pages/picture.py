"""A picture of a mixer, drawn from what it declares: its choices, its state and its weights."""

import textwrap
from collections.abc import Iterator
from html import escape

from _pages import measures, parts
from linrnn import mixers
from linrnn.mixers._contract.choices import WORDS, Choices
from linrnn.nn import CausalConv
from linrnn.state_spec import Part

WIDTH = 340
"""The picture's width, a telephone's: there its words are as large as those around it."""
LETTERS = 42
"""Letters that fit into a line of a box."""
LINE = 'fill="none" stroke="currentColor"'
LINE_HEIGHT, GAP = 15, 22
EDGE = 30  # beside the memory, for the arrow from it to itself
PART_HEIGHT = 36

Drawn = tuple[str, float]
"""Elements that begin at height 0, and how high they are together."""

_NORMALISER = {
    "scaled": "inputs are scaled",
    "convex": "what stays and is written: weights of sum 1",
    "sum": "divided by the sum of its weights",
    "softmax": "weights pass a softmax",
    "norm": "what is read passes a norm",
}
_ON_READ = ("sum", "softmax", "norm")


def page(name: str) -> str:
    """An SVG with the path of a step, from above: input, what is before the memory, it, output."""
    choices = mixers.load(name).choices
    if choices is None:
        return ""
    stack, drawn, y = [*_stack(name, choices)], [], 2.0
    for i, (element, height) in enumerate(stack):
        drawn.append(_moved(element, y))
        y += height
        if i + 1 < len(stack):
            drawn.append(_arrow(y, y + GAP))
            y += GAP
    learned, height = _learned(name)
    drawn.append(_moved(learned, y + 12))
    label = f"A step of {mixers.load(name).__name__}, and the tensors it carries to the next"
    return (
        '<div class="linrnn-structure" data-search-exclude>'
        f'<svg viewBox="0 0 {WIDTH} {y + height + 14:.0f}" role="img" aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(drawn)}</svg></div>"
    )


def _stack(name: str, choices: Choices) -> Iterator[Drawn]:
    """Boxes of a step, from the input to the output."""
    state = parts.of_state(name)
    before = {path: part for path, part in state.items() if "past" in part.axes}
    times = "and the times between steps" if mixers.load(name).timed else ""
    yield _box("input x", [f"{measures.WIDTH} channels {times}".strip()])
    if before:
        yield _box(_before(name, before), [], before)
    inside = {path: part for path, part in state.items() if path not in before}
    yield _memory(choices, inside)
    if choices.normaliser in _ON_READ:
        yield _box("normaliser", [_NORMALISER[choices.normaliser]])
    if choices.output == "gated":
        yield _box("output gate", ["read-out × gate"])
    yield _box("output y", [f"{measures.WIDTH} channels"])


def _before(name: str, before: dict[str, Part]) -> str:
    """The step's use of the inputs that are carried beside the memory."""
    for module in measures.built(name).modules():
        if isinstance(module, CausalConv):
            return f"causal convolution, {module.width} taps"
    steps = max(part.axes["past"] or 0 for part in before.values())
    return "the input before" if steps == 1 else f"the last {steps} inputs"


def _memory(choices: Choices, state: dict[str, Part]) -> Drawn:
    """The box of what is carried, with an arrow to itself."""
    words = [f"transition: {choices.transition}, {choices.steps} steps", f"gate: {choices.gate}"]
    if choices.normaliser in _NORMALISER and choices.normaliser not in _ON_READ:
        words.append(_NORMALISER[choices.normaliser])
    box, height = _box(f"memory: {choices.memory}", words, state, right=EDGE, stroke=2.5)
    right, out, top, bottom = WIDTH - EDGE, WIDTH - 6, 24, height - 24
    loop = (
        f'<path d="M{right} {bottom} C{out} {bottom} {out} {bottom} {out} {bottom - 20} '
        f'V{top + 20} C{out} {top} {out} {top} {right + 6} {top}" {LINE} stroke-width="1.5"/>'
        f'<polygon points="{right + 2},{top} {right + 9},{top - 4} {right + 9},{top + 4}" '
        'fill="currentColor"/>'
    )
    return box + loop, height


def _learned(name: str) -> Drawn:
    """Trained parameters, by name and shape."""
    shapes: dict[str, str] = {}
    for path, parameter in measures.built(name).named_parameters():
        owner = path.removesuffix(".weight").removesuffix(".bias")
        shapes.setdefault(owner, "×".join(map(str, parameter.shape)))
    # no break between a name and its shape
    listed = ", ".join(f"{owner}\N{NO-BREAK SPACE}{shape}" for owner, shape in shapes.items())
    return _box("learned", textwrap.wrap(listed, LETTERS), stroke=0.8)


def _box(
    title: str,
    words: list[str],
    state: dict[str, Part] | None = None,
    *,
    right: float = EDGE,
    stroke: float = 1.2,
) -> Drawn:
    """A box with a title, lines of words, and in it one for each tensor."""
    drawn, y = [_text(12, 18, title, bold=True)], 18.0
    for line in words:
        y += LINE_HEIGHT
        drawn.append(_text(12, y, line))
    y += 10
    for path, part in (state or {}).items():
        drawn.append(_moved(_part(path, part, WIDTH - right - 20), y))
        y += PART_HEIGHT + 6
    width = WIDTH - right - 2
    return (
        f'<rect x="2" y="0" width="{width}" height="{y:.0f}" rx="6" {LINE} '
        f'stroke-width="{stroke}"/>{"".join(drawn)}',
        y,
    )


def _part(path: str, part: Part, width: float) -> str:
    """A tensor that is carried: its outline, name and shape."""
    kind = "" if part.kind == "real" else f", {part.kind}"
    return (
        f'<g class="part"><rect x="10" y="0" width="{width}" height="{PART_HEIGHT}" rx="3" {LINE} '
        f'stroke-width="0.8"/>{_outline(part)}{_text(54, 15, path + kind, bold=True)}'
        f"{_text(54, 30, parts.shape(part), size=11)}</g>"
    )


def _outline(part: Part) -> str:
    """A cell for a number, a row for a vector, a grid for a matrix, one behind it for more."""
    rank, dashed = len(part.axes), ' stroke-dasharray="3 2"' if None in part.axes.values() else ""
    columns, rows = (4 if rank else 1), (3 if rank > 1 else 1)
    width, height = 8 * columns, 7 * rows
    x, y = 29 - width / 2, 18 - height / 2
    lines = [f"M{x:g} {y + 7 * i:g}h{width}" for i in range(rows + 1)]
    lines += [f"M{x + 8 * i:g} {y:g}v{height}" for i in range(columns + 1)]
    if rank > 2:
        lines.append(f"M{x + 4:g} {y:g}v-4h{width}v{height}h-4")
    return f'<path d="{"".join(lines)}" {LINE} stroke-width="0.8"{dashed}/>'


def _arrow(start: float, end: float) -> str:
    x = (WIDTH - EDGE) / 2
    return (
        f'<path d="M{x:g} {start + 2:.0f} V{end - 4:.0f}" {LINE} stroke-width="1.5"/>'
        f'<polygon points="{x:g},{end - 2:.0f} {x - 4:g},{end - 9:.0f} {x + 4:g},{end - 9:.0f}" '
        'fill="currentColor"/>'
    )


def _moved(drawn: str, y: float) -> str:
    return f'<g transform="translate(0 {y:.0f})">{drawn}</g>'


def _text(x: float, y: float, words: str, *, bold: bool = False, size: int = 12) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:.0f}" font-size="{size}" fill="currentColor"{weight}>'
        f"{escape(words)}</text>"
    )


def explained(choices: Choices) -> str:
    """A sentence for each choice."""
    return "\n".join(
        f"- **{choice}**: {getattr(choices, choice)}, {meanings[getattr(choices, choice)]}"
        for choice, meanings in WORDS.items()
    )

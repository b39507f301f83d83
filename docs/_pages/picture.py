"""A picture of a mixer, drawn from what it declares."""

from html import escape

from _pages import measures
from linrnn import mixers
from linrnn.mixers._choices import WORDS, Choices

LINE = 'fill="none" stroke="currentColor" stroke-width="1.5"'
MEMORY = {
    "vector": "h",
    "systems": "h of each channel",
    "matrix": "S, keys × values",
    "window": "the last inputs",
    "past": "all inputs",
}


def page(name: str) -> str:
    """An SVG with the path of a step: input, memory and its transition, what is read, output."""
    choices = mixers.load(name).choices
    if choices is None:
        return ""
    boxes = _boxes(name, choices)
    width, parts, x = 720, [], 8
    step = (width - 16) / len(boxes)
    for i, (title, text, memory) in enumerate(boxes):
        parts.append(_box(x, step - 26, title, text, thick=memory))
        if memory:
            parts.append(_loop(x, step - 26, choices))
        if i + 1 < len(boxes):
            parts.append(_arrow(x + step - 26, x + step))
        x += step
    label = f"A step of {mixers.load(name).__name__}: {', '.join(b[0] for b in boxes)}"
    return (
        f'<div class="linrnn-structure"><svg viewBox="0 0 {width} 170" role="img" '
        f'aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg></div>"
    )


def _boxes(name: str, choices: Choices) -> list[tuple[str, list[str], bool]]:
    """Title, words below it, and whether it is the memory."""
    numbers = measures.state_numbers(name)
    size = "grows" if numbers is None else f"{numbers:,} numbers"
    boxes = [
        ("input x", [f"{measures.WIDTH} channels"], False),
        (f"memory: {choices.memory}", [MEMORY[choices.memory], size], True),
    ]
    if choices.normaliser in ("sum", "softmax", "norm"):
        boxes.append(("normaliser", _NORMALISER[choices.normaliser], False))
    if choices.output == "gated":
        boxes.append(("output gate", ["× a gate"], False))
    return [*boxes, ("output y", [f"{measures.WIDTH} channels"], False)]


_NORMALISER = {
    "sum": ["÷ sum of", "weights"],
    "softmax": ["softmax", "weights"],
    "norm": ["norm of", "what is read"],
}


def _box(x: float, width: float, title: str, text: list[str], *, thick: bool) -> str:
    middle, stroke = x + width / 2, 2.5 if thick else 1.2
    lines = [_text(middle, 112, title, bold=True)]
    lines += [_text(middle, 128 + 14 * i, line) for i, line in enumerate(text)]
    return (
        f'<rect x="{x:.0f}" y="94" width="{width:.0f}" height="64" rx="6" fill="none" '
        f'stroke="currentColor" stroke-width="{stroke}"/>{"".join(lines)}'
    )


def _loop(x: float, width: float, choices: Choices) -> str:
    """The arrow from the memory to itself, with what happens on it."""
    left, right, middle = x + width * 0.2, x + width * 0.8, x + width / 2
    words = [
        f"transition: {choices.transition}, {choices.steps}",
        f"decided by: {'nothing' if choices.gate == 'none' else choices.gate}",
    ]
    if choices.normaliser in ("scaled", "convex"):
        words.append(
            {"scaled": "input scaled", "convex": "weights add up to 1"}[choices.normaliser]
        )
    written = "".join(_text(middle, 14 + 14 * i, word) for i, word in enumerate(words))
    path = f"M{right:.0f} 94 C{right + 24:.0f} 50 {left - 24:.0f} 50 {left:.0f} 92"
    return f"{written}<path d='{path}' {LINE}/>{_head(left, 94, down=True)}"


def _arrow(start: float, end: float) -> str:
    return f'<path d="M{start + 2:.0f} 126 H{end - 3:.0f}" {LINE}/>{_head(end - 2, 126)}'


def _head(x: float, y: float, *, down: bool = False) -> str:
    dx, dy = (4, 7) if down else (7, 4)
    points = f"{x:.0f},{y} {x - dx:.0f},{y - dy} " + (
        f"{x + dx:.0f},{y - dy}" if down else f"{x - dx:.0f},{y + dy}"
    )
    return f'<polygon points="{points}" fill="currentColor"/>'


def _text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="12" '
        f'fill="currentColor"{weight}>{escape(words)}</text>'
    )


def explained(choices: Choices) -> str:
    """A sentence for each choice."""
    return "\n".join(
        f"- **{choice}**: {getattr(choices, choice)}, {meanings[getattr(choices, choice)]}"
        for choice, meanings in WORDS.items()
    )

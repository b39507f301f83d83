"""One line that says how far a run is, however narrow the terminal."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

WIDEST = 24
"""Columns of the bar, where there is room."""
_NARROWEST = 6

_LINES = (
    ("epoch", "bar", "part", "loss", "metric", "validation", "speed", "left"),
    ("epoch", "bar", "part", "loss", "metric", "validation", "left"),
    ("epoch", "bar", "part", "loss", "metric", "valid", "left"),
    ("epoch", "bar", "part", "loss", "valid", "left"),
    ("epoch", "bar", "part", "valid", "left"),
    ("epoch", "part", "valid", "left"),
    ("epoch", "part", "left"),
    ("part", "left"),
)
"""Fields of the line, from the widest terminal to the narrowest: the least important go first."""


class Said(NamedTuple):
    """The texts that a run reports; empty ones are left out."""

    epoch: str
    loss: str = ""
    metric: str = ""
    """On the training data, with its name."""
    validation: str = ""
    """The same on the validation data."""


def bar_line(
    width: int, said: Said, *, done: float, speed: float | None, left: float | None, ascii: bool
) -> str:
    """A line of at most ``width`` columns.

    Args:
        width: of the terminal.
        said: by the run.
        done: part of all steps, in [0, 1].
        speed: steps a second, where known.
        left: seconds, where known.
        ascii: draw the bar with letters that every terminal has.

    Example:
        >>> said = Said("epoch 3/40", "loss 0.1234", "accuracy 97.12 %", "accuracy 96.50 %")
        >>> bar_line(60, said, done=0.5, speed=80.0, left=83.0, ascii=True)
        'epoch 3/40  ####---   50 %  validation 96.50 %  0:01:23 left'
    """
    texts = _texts(said, done, speed, left)
    for names in _LINES:
        shown = [name for name in names if name == "bar" or texts[name]]
        text_width = sum(len(texts[name]) for name in shown if name != "bar") + 2 * (len(shown) - 1)
        room = min(WIDEST, width - text_width) if "bar" in shown else 0
        if text_width <= width and ("bar" not in shown or room >= _NARROWEST):
            texts["bar"] = _bar(room, done, ascii)
            return "  ".join(texts[name] for name in shown)
    return texts["part"][:width]


def line_column(console: "Console") -> "ProgressColumn":
    """The line as the one column of a progress bar of ``rich``.

    Args:
        console: the terminal, whose width is read each time.
    """
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Line(ProgressColumn):
        def render(self, task: Any) -> Text:
            text = bar_line(
                console.width,
                task.fields["said"],
                done=task.percentage / 100,
                speed=task.finished_speed or task.speed,
                left=task.time_remaining,
                ascii=not console.encoding.lower().startswith("utf"),
            )
            return Text(text, no_wrap=True, overflow="crop")

    return Line()


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> clock(83.0), clock(7322.0)
        ('0:01:23', '2:02:02')
    """
    minutes, left_seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left_seconds:02}"


def _texts(said: Said, done: float, speed: float | None, left: float | None) -> dict[str, str]:
    value = said.validation.partition(" ")[2]
    return {
        "epoch": said.epoch,
        "part": f"{done:4.0%}".replace("%", " %"),
        "loss": said.loss,
        "metric": said.metric,
        "validation": f"validation {said.validation}" if value else "",
        "valid": f"validation {value}" if value else "",
        "speed": "" if speed is None else f"{speed:.1f} steps/s",
        "left": "" if left is None else f"{clock(left)} left",
    }


def _bar(width: int, done: float, ascii: bool) -> str:
    full, empty = ("#", "-") if ascii else ("━", "╌")
    filled = round(width * done)
    return full * filled + empty * (width - filled)

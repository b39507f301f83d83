"""Draw the pictures of the first page into docs/assets: `python docs/draw.py`.

One shows a layer's output computed in three ways. The other shows times from the committed
benchmark, and says inside of the file which; a test compares the two.
"""

import io
import re
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from notebooks import STYLE, day_and_night

from linrnn.mixers import LRU
from linrnn.train.styles import COLOURS, styles

ASSETS = Path(__file__).with_name("assets")
TIMES = Path(__file__).parents[1] / "benchmarks" / "results" / "layers-cpu.md"
SHOWN = {"nn.GRU": "nn.GRU", "nn.LSTM": "nn.LSTM", "linrnn lru": "lru", "linrnn mingru": "mingru"}


Times = dict[str, dict[tuple[int, int], float]]


def times() -> Times:
    """Milliseconds of a training step by layer and (steps, batch), from the benchmark's page."""
    page = TIMES.read_text(encoding="utf-8")
    table = page.split("[start:training]")[1].split("[end:training]")[0]
    head, _, *rows = [line for line in table.split("\n") if line.startswith("|")]
    lengths = [(int(t), int(b)) for t, b in re.findall(r"T = (\d+), batch (\d+)", head)]
    read = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {
        SHOWN[name]: dict(zip(lengths, map(float, cells), strict=True))
        for name, *cells in read
        if name in SHOWN
    }


def description(found: Times) -> str:
    """The numbers of a picture as text."""
    return "; ".join(
        f"{name}: {', '.join(f'{t} x {b} steps {ms:g} ms' for (t, b), ms in row.items())}"
        for name, row in found.items()
    )


def draw_times() -> None:
    """Times a step of a sequence, so that a line that is flat costs the same at any length."""
    from matplotlib import pyplot

    found = times()
    figure, axes = pyplot.subplots(figsize=(5.2, 3.2))
    looks = styles([*found])
    for name, row in found.items():
        lengths = [steps for steps, _ in row]
        micro = [1e3 * ms / (steps * batch) for (steps, batch), ms in row.items()]
        axes.loglog(lengths, micro, **looks[name])
        axes.annotate(name, (lengths[-1], micro[-1]), (6, -3), textcoords="offset points")
    axes.set(xlabel="steps of a sequence", ylabel="µs a step, forward and backward")
    axes.set_xticks(lengths, [f"{steps:,}" for steps in lengths])
    axes.minorticks_off()
    axes.margins(x=0.2)
    save(figure, "landing-speed", description(found))


def draw_forms() -> None:
    """The same numbers step by step, scanned, and streamed in pieces."""
    from matplotlib import pyplot

    torch.manual_seed(3)
    layer, x = LRU(1, d_state=8, r_min=0.8, r_max=0.98, max_phase=1.0), torch.randn(1, 120, 1)
    with torch.no_grad():
        scanned = layer(x)[0]
        state, steps = layer.init_state(1), []
        for t in range(120):
            y, state = layer.step(x[:, t], state)
            steps.append(y)
        first, state = layer(x[:, :50])
        pieces = torch.cat([first, layer(x[:, 50:], state)[0]], 1)
    stepped = torch.stack(steps, 1)
    largest = max((stepped - scanned).abs().max().item(), (pieces - scanned).abs().max().item())
    figure, axes = pyplot.subplots(figsize=(5.2, 3.2))
    curve = scanned[0, :, 0]
    axes.plot(curve, linewidth=5, alpha=0.5, color=COLOURS[2], label="scanned at once")
    axes.plot(pieces[0, :, 0], "-", linewidth=1.2, color=COLOURS[0], label="streamed in two pieces")
    axes.plot(
        range(0, 120, 3), stepped[0, ::3, 0], ".", color=COLOURS[1], label="one step at a time"
    )
    axes.set(xlabel="step", ylabel="output of an LRU", ylim=(None, 1.5 * curve.max().item()))
    axes.legend(loc="upper left", ncols=2, fontsize="small")
    axes.set_title(f"largest difference {largest:.0e}", fontsize="medium", loc="right")
    save(figure, "landing-forms", f"largest difference {largest:.0e}")


def save(figure: Figure, name: str, text: str) -> None:
    """Write a picture that both colour schemes show."""
    made = io.StringIO()
    about = {"Date": None, "Description": text, "Creator": None}
    figure.savefig(made, format="svg", metadata=about)
    (ASSETS / f"{name}.svg").write_text(day_and_night(made.getvalue()), encoding="utf-8")


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        draw_times()
        draw_forms()

"""Measure what every mixer costs at one width, and keep it in results/mixers/costs.csv.

    python docs/measure_costs.py [--missing | NAME ...]

Without names all mixers are measured, with --missing those that have no
rows. Rows of mixers that are not named stay. Times are those of the processor with one thread, the
least of some repetitions, so that other work matters little.
"""

import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from linrnn import mixers
from linrnn._options.catalogue import stems
from linrnn.mixers import Mixer

TABLE = Path(__file__).parents[1] / "results" / "mixers" / "costs.csv"
WIDTH, STEPS, ROWS = 64, 512, 8
COLUMNS = ("mixer", "us_per_token", "us_per_step", "saved_numbers_per_token", "products_per_token")


def measured(name: str) -> dict[str, str]:
    """The costs of one mixer with its default options."""
    torch.manual_seed(0)
    mixer = mixers.build(name, WIDTH)
    x = torch.randn(ROWS, STEPS, WIDTH)
    if not any(p.requires_grad for p in mixer.parameters()):
        x.requires_grad_()  # of one that is not trained: what is before it may be
    training = _least(lambda: mixer(x)[0].sum().backward(), repeats=5)
    return {
        "mixer": name,
        "us_per_token": _short(training / (ROWS * STEPS) * 1e6, 3),
        "us_per_step": _short(_stepping(mixer) * 1e6, 3),
        "saved_numbers_per_token": _short(_saved(mixer, x) / (ROWS * STEPS), 4),
        "products_per_token": _short(_products(name) / STEPS, 4),
    }


def _short(x: float, figures: int) -> str:
    """Rounded to that many figures, without a power of ten."""
    return f"{float(f'{x:.{figures}g}'):.12g}"


def _least(run: Callable[[], object], repeats: int) -> float:
    """Processor time in seconds, the least of some."""
    found = []
    for _ in range(repeats + 1):  # the first warms up
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found[1:])


@torch.no_grad()
def _stepping(mixer: Mixer) -> float:
    """Seconds a step of one sequence, after those that have been read."""
    _, state = mixer(torch.randn(1, STEPS, WIDTH))
    x_t = torch.randn(1, WIDTH)

    def steps() -> None:
        held = state
        for _ in range(50):
            _, held = mixer.step(x_t, held)

    return _least(steps, repeats=5) / 50


def _saved(mixer: Mixer, x: torch.Tensor) -> int:
    """Numbers of four bytes that a forward pass keeps for its gradient, parameters and x apart."""
    known = {p.untyped_storage().data_ptr() for p in (x, *mixer.parameters(), *mixer.buffers())}
    found: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = mixer(x)[0]
    del y
    return sum(found.values()) // 4


def _products(name: str) -> int:
    """Multiplications and additions of matrix products in a forward pass of one sequence."""
    mixer = mixers.build(name, WIDTH, device="meta")
    with FlopCounterMode(display=False) as counter:
        mixer(torch.empty(1, STEPS, WIDTH, device="meta"))
    return counter.get_total_flops()


def kept() -> dict[str, dict[str, str]]:
    """The rows there are, by mixer."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {row["mixer"]: row for row in csv.DictReader(file)}


def keep(found: dict[str, dict[str, str]]) -> None:
    """Write the table, sorted by mixer, without those that are gone."""
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found[name] for name in stems(mixers.__name__) if name in found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1:] or stems(mixers.__name__)
    if names == ["--missing"]:
        names = [name for name in stems(mixers.__name__) if name not in kept()]
    for name in names:
        row = measured(name)
        keep({**kept(), name: row})

"""How much a recurrence blows up white noise."""

import math
import statistics
from collections.abc import Mapping
from math import log, pi
from typing import ClassVar

import torch

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.ops import linear_scan
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.timing import digits

RINGS = ((0.0, 0.9), (0.0, 0.99), (0.5, 0.9), (0.9, 0.99), (0.9, 0.999), (0.99, 0.999))
THIN = (1e-1, 1e-2, 1e-3)  # rho = 1 - |lam|^2
TOLERANCE = 0.03
"""Relative tolerance between a measured size and the formula."""
PART, WITHOUT, WITH = "rings", "without gamma", "with gamma"
_MODES, _ROWS, _CHUNK = 256, 16, 512
_MEMORIES = 8  # of the slowest mode, before the state is taken for stationary


def gain(r_min: float, r_max: float) -> float:
    """``E |h|^2 / E |b|^2`` of stationary states, eigenvalues uniform by area on a ring.

    Example:
        >>> round(gain(0.9, 0.999), 1)
        24.2
    """
    return log((1 - r_min**2) / (1 - r_max**2)) / (r_max**2 - r_min**2)


class LRUProposition3(Reproduction):
    """Forward pass of a linear recurrence with white input: the state grows like 1 / rho."""

    summary: ClassVar[str] = "stationary size of the state, with and without the gamma factor"
    source: ClassVar[str] = "Orvieto et al. 2023, arXiv:2303.06349, proposition 3"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": "Monte Carlo over eigenvalues and white inputs; shows the whole claim in minutes"
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Expected squared state over squared input, from the formula of the proposition",
            ["ring [r_min, r_max]", "without gamma", "with gamma"],
            [[f"[{a:g}, {b:g}]", f"{gain(a, b):.3g}", "1"] for a, b in RINGS],
        ),
    )

    def run(self, setting: Setting) -> Findings:
        """Scan white noise from zero until it is stationary, and average."""
        rings, rows = [], list[Run]()
        for r_min, r_max in RINGS:
            by_seed = [_measure(r_min, r_max, (seed,)) for seed in setting.seeds]
            unscaled, scaled = (statistics.fmean(gains[i] for gains in by_seed) for i in (0, 1))
            spread = math.hypot(*(gains[2] for gains in by_seed)) / len(by_seed)
            rows += [
                Run(scale=setting.scale, part=slug(PART), row=safe_name(ring(r_min, r_max)),
                    seed=seed, measures={WITHOUT: gains[0], WITH: gains[1]})
                for seed, gains in zip(setting.seeds, by_seed, strict=True)
            ]  # fmt: skip
            cells = [f"{unscaled:.3g} ± {spread:.2g}", f"{scaled:.3g}", f"{gain(r_min, r_max):.3g}"]
            rings.append([f"[{r_min:g}, {r_max:g}]", *cells])
            setting.say(f"ring [{r_min:g}, {r_max:g}]: {unscaled:.3g}, formula {cells[2]}")
        thin = []
        for rho in THIN:
            r = (1 - rho) ** 0.5
            unscaled, scaled, _ = _measure(r, r, setting.seeds)
            thin.append([f"{rho:g}", digits(unscaled), digits(1 / rho), digits(scaled)])
        runs = Runs(tuple(rows))
        head = ["ring [r_min, r_max]", "measured (± s.e.)", "measured, with gamma", "formula"]
        thin_head = [
            "rho = 1 - squared radius",
            "measured",
            "1 / rho",
            "measured, with gamma",
        ]
        return Findings(
            tables=(
                Table("Measured on rings", head, rings),
                Table("Blow-up at one radius", thin_head, thin),
            ),
            comparable="everything; the proposition is a formula and this is its Monte Carlo.",
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            notes=(
                f"a size agrees where the interval of its mean is within {TOLERANCE:.0%} of the "
                "formula.",
                "complex white noise, float64, from rest; mean over modes, rows, last steps.",
            ),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether the mean of what the seeds measured is what the formula says."""
        part = runs.part(PART)
        judgements = []
        for r_min, r_max in RINGS:
            size, label = gain(r_min, r_max), ring(r_min, r_max)
            grows = f"{label}: the state grows to the size of the formula"
            same = f"{label}: with gamma it is that of the input"
            for claim, measure, formula in ((grows, WITHOUT, size), (same, WITH, 1.0)):
                values = part.values(label, measure).values()
                off = tuple(value / formula - 1 for value in values)
                within = tuple(abs(x) <= TOLERANCE for x in off)
                judged = Judged(claim, f"{formula:.3g}", within, differences=off, scale="")
                judgements.append(judged._replace(unit="of the formula", within=TOLERANCE))
        return judgements


def ring(r_min: float, r_max: float) -> str:
    """Name of a ring on the page."""
    return f"ring [{r_min:g}, {r_max:g}]"


def _measure(r_min: float, r_max: float, seeds: tuple[int, ...]) -> tuple[float, float, float]:
    """Mean gain without and with gamma, and the standard error of the first over rows and seeds."""
    u = (torch.arange(_MODES, dtype=torch.float64) + 0.5) / _MODES
    size = (u * (r_max**2 - r_min**2) + r_min**2).sqrt()
    chunks = 2 + round(_MEMORIES / (1 - size.max().item()) / _CHUNK)
    unscaled, scaled = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        lam = torch.polar(size, 2 * pi * torch.rand(_MODES, dtype=size.dtype, generator=generator))
        h = last = torch.zeros(_ROWS, _MODES, dtype=lam.dtype)
        for _ in range(chunks):  # from rest until what came first is forgotten
            noise = torch.randn(_ROWS, _CHUNK, _MODES, dtype=lam.dtype, generator=generator)
            h, last = linear_scan(lam, noise, last)
        power = h.abs().square().mean(1)  # (rows, modes)
        unscaled.append(power.mean(1))
        scaled.append((power * (1 - size**2)).mean(1))
    rows, normed = torch.cat(unscaled), torch.cat(scaled)
    return rows.mean().item(), normed.mean().item(), (rows.std() / len(rows) ** 0.5).item()

"""Errors of polynomial memories without training: a signal's past, and delays of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.mixers.lmu import lmu_system
from linrnn.nn.discretise import dense
from linrnn.nn.hippo import hippo
from linrnn.nn.legs import legendre, legs_step
from linrnn.ops.linear.matrix_scan import dense_scan
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs, decades
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.reproductions._runs.signals import signals
from linrnn.reproductions._runs.timing import digits
from linrnn.train.figures import legend_below, log_axis, new_figure, over_seeds
from linrnn.train.styles import styles

STEPS = 10_000
CYCLES = 20  # the highest frequency of the signal that is reconstructed, in all of it
MEASURES = ("legs", "legt", "lagt")
ORDERS = (8, 16, 32, 64)
DELAYS = (100, 1000, 10_000)
IN_WINDOW = 10  # cycles of the highest frequency in a delay, as published
DELAY_ORDERS = (6, 12, 24, 48, 96)
MAX_NRMSE = 0.05
"""A signal is held if the NRMSE is below this."""
MAX_RATIO = 1.25
"""Errors at two delays are alike if they differ by no more than this factor."""
_GU, _VOELKER = "arXiv:2008.07669", "NeurIPS 2019, section 3.1"
PAST, DELAY, NRMSE = "past", "delay", "nrmse"
_SCALE = "on signals of 10,000 steps, without training"
Errors = Mapping[tuple[Any, int], list[float]]
"""By measure or delay, and by order: one for each seed."""


class HippoMemory(Reproduction):
    """Memories that follow from mathematics alone read band-limited noise; nothing is trained.

    First a signal is read to its end and rebuilt from N numbers: by LegS all of it, by LegT its
    last quarter, a window, and by LagT the same part from a memory that fades with time. Then the
    memory of the LMU gives a signal back after a delay, at every step, by the published read-out.

    Args:
        steps: of the signal that is rebuilt.
        delays: in steps.
        orders, delay_orders: sizes of the memories.
    """

    summary: ClassVar[str] = "what memories of polynomials hold of a signal, and how long"
    source: ClassVar[str] = (
        "Gu et al. 2020, arXiv:2008.07669, figures 1 and 2; Voelker, Kajic & Eliasmith, Legendre "
        "Memory Units, NeurIPS 2019, section 3.1 and figures 1 and 2"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "signals of 10,000 steps and delays of 100 to 10,000; shows what the memories hold, "
            "not what a network learns to do with them; a minute of processor time"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about these memories; their figures have no numbers to compare",
            ["statement", "published", "where"],
            [
                ["LegS holds all of the past, ever more coarsely", "yes", _GU],
                ["what is held grows with the order", "yes", "both"],
                [
                    "a delay's error depends on the cycles in it, not on its steps",
                    "yes",
                    f"{_VOELKER}: 100 to 100,000 steps",
                ],
            ],
        ),
    )

    def __init__(
        self,
        steps: int = STEPS,
        delays: Sequence[int] = DELAYS,
        orders: Sequence[int] = ORDERS,
        delay_orders: Sequence[int] = DELAY_ORDERS,
    ) -> None:
        self.steps, self.delays = steps, delays
        self.orders, self.delay_orders = orders, delay_orders

    def run(self, setting: Setting) -> Findings:
        """Read signals, one a seed, with every memory."""
        signal = signals(self.steps, CYCLES / self.steps, setting.seeds)
        rebuilt, past = {}, {}
        for measure in MEASURES:
            for order in self.orders:
                part, reconstruction = reconstruct(measure, signal, order)
                past[measure, order] = nrmse(reconstruction, part)
                rebuilt[measure] = reconstruction[0]
            setting.say(f"{measure} reconstructed")
        late: dict[tuple[Any, int], list[float]] = {}
        for delay in self.delays:
            read = signals(5 * delay // 2, IN_WINDOW / delay, setting.seeds)
            for order in self.delay_orders:
                late[delay, order] = nrmse(*delayed(read, delay, order))
            setting.say(f"delay of {delay}")
        runs = Runs((*_runs(PAST, past, setting), *_runs(DELAY, late, setting)))
        tables = (
            _table("NRMSE of the past, rebuilt from N numbers", "memory", past),
            _table("NRMSE of a delay by the memory of an LMU of order N", "delay", late),
        )
        return Findings(
            tables=tables,
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "whether the statements hold; the published figures show single signals, and what "
                "the LMU's paper reports of delays is after training a read-out, which here is "
                "the one of its equations."
            ),
            notes=NOTES,
            figures={"signal": _signal_figure(signal[0], rebuilt), "delay": _errors(late)},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """By how many decades errors are below their bounds."""
        past = _errors_of(runs.part(PAST), MEASURES, self.orders)
        return judged(past, _errors_of(runs.part(DELAY), self.delays, self.delay_orders))


NOTES = (
    f"a signal is held where the NRMSE, the root of the mean squared error over that of the "
    f"signal, is below {MAX_NRMSE:g}; what is held grows if each order has a smaller error than "
    f"the one before, down to that; errors are alike within a factor of {MAX_RATIO:g}; means over "
    "seeds. Claims are judged by the smallest margin of all orders, in decades.",
    "a short delay has an error of its few steps beside that of the memory, which shows at orders "
    "whose own is small.",
    f"the signal that is rebuilt has frequencies up to {CYCLES} cycles in all of it; LegT and LagT "
    "rebuild its last quarter, and the unit of time of LagT is a 25th of that. LegS steps by "
    "the bilinear rule, the others by the exact solution.",
    f"delayed signals have frequencies up to {IN_WINDOW} cycles in the delay, and are read for 2.5 "
    "delays, of which the last 1.5 count.",
)


def nrmse(estimate: Tensor, target: Tensor) -> list[float]:
    """Return the normalised root mean squared error of each row."""
    errors = (estimate - target).square().mean(1) / target.square().mean(1)
    return [float(x) for x in errors.sqrt()]


def reconstruct(measure: str, signal: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """The part of ``signal`` (B, T) that a memory stands for, and its reconstruction.

    An input is held for a step, so that it stands for the middle of that.
    """
    steps = signal.shape[1]
    if measure == "legs":
        c = signal.new_zeros(len(signal), order)
        for k, f in enumerate(signal.unbind(1)):
            c = legs_step(c, f, torch.tensor(k))
        return signal, c @ legendre(order, (torch.arange(steps).double() + 0.5) / steps).T
    window = steps // 4
    ago = torch.arange(window - 1, -1, -1).double() + 0.5  # steps before the end
    unit = window if measure == "legt" else window / 25
    a, b = dense(*hippo(measure, order), 1 / unit)
    start = signal.new_zeros(len(signal), order)
    c = dense_scan(a, signal[..., None] * b, start, None)[1]  # (B, order)
    if measure == "legt":
        basis = legendre(order, 1 - ago / window)
    else:
        degrees = torch.arange(order)
        basis = torch.special.laguerre_polynomial_l(ago[:, None] / unit, degrees)
    return signal[:, -window:], c @ basis.T  # (B, window) each


def delayed(signal: Tensor, delay: int, order: int) -> tuple[Tensor, Tensor]:
    """Read an LMU's memory from step ``delay`` on, beside the signal ``delay`` steps before.

    Its window is half a step longer, for an input is held for a step.
    """
    a, b = dense(*lmu_system(order), 1 / (delay + 0.5))
    start = signal.new_zeros(len(signal), order)
    states, _ = dense_scan(a, signal[..., None] * b, start, None)
    return states[:, delay:].sum(-1), signal[:, :-delay]  # P_i(1) = 1: the end of the window


def _table(title: str, what: str, errors: Errors) -> Table:
    kinds, orders = (list(dict.fromkeys(key[i] for key in errors)) for i in (0, 1))
    rows = [
        [_name(kind), *(digits(float(np.mean(errors[kind, order])), 2) for order in orders)]
        for kind in kinds
    ]
    return Table(title, [what, *(f"N = {order}" for order in orders)], rows)


def _name(kind: Any) -> str:
    names = {"legs": "LegS, all", "legt": "LegT, window", "lagt": "LagT, fading"}
    return names.get(kind, f"{kind:,} steps" if isinstance(kind, int) else kind)


def _runs(part: str, errors: Errors, setting: Setting) -> Iterator[Run]:
    for (kind, order), by_seed in errors.items():
        for seed, error in zip(setting.seeds, by_seed, strict=True):
            yield Run(
                scale=setting.scale, part=part, row=safe_name(_label(kind, order)), seed=seed,
                measures={NRMSE: error},
            )  # fmt: skip


def _label(kind: Any, order: int) -> str:
    return f"{kind}, N = {order}"


def _errors_of(part: Part, kinds: Sequence[Any], orders: Sequence[int]) -> Errors:
    """Errors from runs, in the order of the seeds."""
    errors = {}
    for kind, order in product(kinds, orders):
        by_seed = part.values(_label(kind, order), NRMSE)
        errors[kind, order] = [by_seed[seed] for seed in sorted(by_seed)]
    return errors


def judged(past: Errors, late: Errors) -> list[Judged]:
    """Judge the claims about the memories, seed by seed.

    Args:
        past: errors of the signal, rebuilt.
        late: errors of delays.
    """
    largest, longest = max(n for _, n in past), max(n for _, n in late)
    delays, orders = (sorted({key[i] for key in late}) for i in (0, 1))
    words = f"{_VOELKER}: 100 to 100,000 steps"
    verdicts = [_margin("LegS holds all of the past", _GU, map(_below, past["legs", largest]))]
    for errors, what, where in ((past, "the past", _GU), (late, "delays", _VOELKER)):
        verdicts.append(
            _margin(f"what is held of {what} grows with the order", where, _falls(errors))
        )
    worst = [max(x) for x in zip(*(late[d, longest] for d in delays), strict=True)]
    claim = f"delays of {delays[0]:,} to {delays[-1]:,} steps are held"
    verdicts.append(_margin(claim, _VOELKER, map(_below, worst)))
    for delay in delays[:-1]:
        ratios = [
            max(_spread([late[d, n][seed] for d in (delay, delays[-1])]) for n in orders)
            for seed in range(len(worst))
        ]
        claim = f"a delay of {delay:,} steps has the error of one of {delays[-1]:,} at every order"
        verdicts.append(_margin(claim, words, (decades(x, MAX_RATIO) for x in ratios)))
    return verdicts


def _margin(claim: str, published: str, margins: Iterable[float]) -> Judged:
    return margin(claim, published, dict(enumerate(margins)), scale=_SCALE)


def _below(error: float) -> float:
    """Decades below what is held."""
    return decades(error, MAX_NRMSE)


def _falls(errors: Errors) -> Iterator[float]:
    """For each seed, the smallest fall of an error to that at the next order, unless it is held."""
    orders = sorted({n for _, n in errors})
    kinds = dict.fromkeys(kind for kind, _ in errors)
    for seed in range(len(next(iter(errors.values())))):
        yield min(
            decades(errors[kind, larger][seed], max(MAX_NRMSE, errors[kind, smaller][seed]))
            for kind in kinds
            for smaller, larger in pairwise(orders)
        )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)


def _signal_figure(signal: Tensor, rebuilt: Mapping[str, Tensor]) -> Any:
    figure = new_figure(8.6, 5.6)
    panels = figure.subplots(len(rebuilt), 1, sharex=True, sharey=True)
    for axes, (measure, reconstruction) in zip(panels, rebuilt.items(), strict=True):
        steps = range(len(signal) - len(reconstruction), len(signal))
        axes.plot(signal.tolist(), color="0.7", linewidth=3, label="signal")
        axes.plot(steps, reconstruction.tolist(), color="black", linewidth=1, label=_name(measure))
        axes.legend(loc="lower left", fontsize=8)
        axes.grid(alpha=0.3)
    panels[-1].set(xlabel="steps")
    panels[0].set(title="a signal and its reconstruction from the memory of the largest order")
    return figure


def _errors(late: Errors) -> Any:
    figure = new_figure()
    axes = figure.subplots()
    orders, delays = sorted({n for _, n in late}), sorted({d for d, _ in late})
    looks = styles([_name(delay) for delay in delays])
    for delay in delays:
        values = [float(np.mean(late[delay, n])) for n in orders]
        axes.plot(orders, values, label=f"delay of {_name(delay)}", **looks[_name(delay)])
    axes.set(yscale="log", xlabel="order", ylabel="NRMSE of the delayed signal")
    axes.set(title=over_seeds([len(x) for x in late.values()]))
    log_axis(axes, orders, [str(order) for order in orders])
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure

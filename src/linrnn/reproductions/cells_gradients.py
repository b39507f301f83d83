"""The norm of a loss's gradient with respect to states hundreds of steps before."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.mixers import Mixer, load
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs, decades
from linrnn.reproductions._page.verdict import Judged, margin
from linrnn.train.figures import legend_below, new_figure, over_seeds
from linrnn.train.styles import dense_styles

LENGTH, WIDTH, ROWS = 1000, 128, 4
STRIDE = 10  # steps between two states whose gradients are looked at
BOUND = 100.0
"""A gradient is bounded if its norm stays within this factor of that at the last step."""
VANISHED = 1e-6
"""It has vanished if what reaches the first steps is below this part of it."""
SHOWN = (10, 100, 500, 990)
PART, SMALLEST, LARGEST, FIRST = "norms", "smallest", "largest", "at the first steps"
_PLOT_FLOOR = 1e-12  # of the plot
_LEAST = 1e-300  # below which double precision has no number
_SCALE = "in layers of 128 channels as they are drawn"


_ELSEWHERE = "bounded at steps of about 1/T; nothing of this one"


class Case(NamedTuple):
    """A layer as it starts, and the published statement about its gradients."""

    mixer: str
    options: Mapping[str, Any]
    claim: Literal["bounded", "vanishes", ""]
    """Empty where the statements are not of such settings."""
    where: str


CASES: Mapping[str, Case] = {
    "coRNN, steps of 1/T": Case(
        "co_rnn", {"step_size": 1 / LENGTH, "gamma": 1.0, "eps": 1.0}, "bounded", "arXiv:2010.00951"
    ),
    "coRNN, psMNIST": Case(
        "co_rnn", {"step_size": 0.076, "gamma": 0.4, "eps": 8.0}, "", "arXiv:2010.00951"
    ),
    "coRNN, sMNIST": Case(
        "co_rnn", {"step_size": 0.042, "gamma": 2.7, "eps": 4.7}, "", "arXiv:2010.00951"
    ),
    "coRNN, adding": Case(
        "co_rnn", {"step_size": 0.06, "gamma": 66.0, "eps": 15.0}, "", "its public code"
    ),
    "UnICORNN, psMNIST": Case(
        "unicornn", {"step_size": 0.19, "alpha": 30.65}, "", "arXiv:2103.05487"
    ),
    "LEM, steps of 1/T": Case("lem", {"step_size": 1 / LENGTH}, "bounded", "arXiv:2110.04744"),
    "LEM, adding": Case("lem", {"step_size": 0.0242}, "", "arXiv:2110.04744, public code"),
    "LEM, psMNIST": Case("lem", {"step_size": 0.31}, "", "arXiv:2110.04744, public code"),
    "expRNN": Case("exp_rnn", {"init": "cayley"}, "bounded", "arXiv:1901.08428"),
    "IndRNN": Case("ind_rnn", {"t_max": LENGTH}, "bounded", "arXiv:1803.04831"),
    "LSTM, chrono": Case(
        "lstm", {"gates": "chrono", "t_max": LENGTH}, "bounded", "arXiv:1804.11188"
    ),
    "LSTM": Case("lstm", {}, "vanishes", "arXiv:1804.11188, of forget gates near 1/2"),
    "GRU": Case("gru", {}, "vanishes", "the same"),
    "tanh RNN": Case("tanh_rnn", {}, "vanishes", "arXiv:1211.5063"),
}
"""Published settings by what they were chosen for; and steps so short that proofs hold for them."""


class CellsGradients(Reproduction):
    """Norms of the gradient of a loss at the last step, with respect to every tenth state before.

    The loss is ``v . y_T`` with a random v of norm 1 for each sequence; the input is white noise of
    variance 1 in every channel; nothing is trained.

    Args:
        cases: in place of `CASES`.
        length: steps of a sequence.
        width: channels of the layers.
    """

    summary: ClassVar[str] = "gradients through 1,000 steps: oscillators, orthogonal, gated, plain"
    source: ClassVar[str] = (
        "Rusch & Mishra 2020, arXiv:2010.00951 and 2021, arXiv:2103.05487; Rusch et al. 2021, "
        "arXiv:2110.04744: statements about gradients; Pascanu et al. 2012, arXiv:1211.5063"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "layers of 128 channels as they are drawn, at published settings, on noise; shows what "
            "of a gradient comes through before training, not what training makes of it; a minute"
        )
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Published statements about the gradient over long times; no numbers are printed",
            ["layer", "published", "where"],
            [[label, case.claim or _ELSEWHERE, case.where] for label, case in CASES.items()],
        ),
    )

    def __init__(
        self, cases: Mapping[str, Case] = CASES, length: int = LENGTH, width: int = WIDTH
    ) -> None:
        self.cases, self.length, self.width = cases, length, width

    def run(self, setting: Setting) -> Findings:
        """Measure every layer with every seed."""
        rows, curves, records = [], {}, list[Run]()
        for label, case in self.cases.items():
            seeds = [self._norms(case, seed) for seed in setting.seeds]
            curves[label] = torch.stack(seeds).mean(0)
            rows.append([label, *_cells(curves[label], seeds)])
            records += [
                Run(scale=setting.scale, part=PART, row=safe_name(label), seed=seed,
                    mixer=case.mixer, measures=measures(norms))
                for seed, norms in zip(setting.seeds, seeds, strict=True)
            ]  # fmt: skip
            setting.say(f"{label}: smallest {rows[-1][-2]}, largest {rows[-1][-1]}")
        shown = [lag for lag in SHOWN if lag < self.length]
        head = ["layer", *(f"{lag} before" for lag in shown), "smallest", "largest"]
        title = (
            "Norm of the gradient, times that at the last step: mean over seeds; extremes of all"
        )
        runs = Runs(tuple(records))
        return Findings(
            tables=(Table(title, head, rows),),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "whether a gradient stays bounded or vanishes, with weights as they are drawn and "
                "at the settings named; the published statements are of oscillators with steps of "
                "about 1/T, as in two rows, and training changes the weights."
            ),
            notes=NOTES,
            figures={"gradients": _figure(curves, len(setting.seeds))},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """By how many decades a gradient stays inside of its bounds, or below what has vanished."""
        part = runs.part(PART)
        return [
            judged(label, case, {run.seed: run.measures for run in part.runs(label)})
            for label, case in self.cases.items()
            if case.claim
        ]

    def _norms(self, case: Case, seed: int) -> Tensor:
        torch.manual_seed(seed)
        layer = load(case.mixer)(self.width, dtype=torch.float64, **case.options)
        x = torch.randn(ROWS, self.length, self.width, dtype=torch.float64)
        return gradient_norms(layer, x)


NOTES = (
    f"bounded: from 1/{BOUND:g} to {BOUND:g} times the norm at the last step, at all steps before; "
    f"vanishes: below {VANISHED:g} of it at the first ones.",
    "in double precision, where what has vanished is still a number; the gradient is that with "
    "respect to the whole state, so of oscillators to the velocity too, "
    "and of an LSTM to the cell.",
)


def gradient_norms(layer: Mixer, x: Tensor) -> Tensor:
    """Norms of ``d (v . y_T) / d state``, the mean over sequences, the latest state first.

    Args:
        layer: whose output at the last step enters the loss.
        x: (batch, time, channels).

    Returns:
        (states,), of those after the steps ``T - STRIDE``, ``T - 2 STRIDE``, ...
    """
    v = F.normalize(torch.randn(len(x), x.shape[2]), dim=1).to(x)  # (batch, channels)
    state, states = layer.init_state(len(x)), []
    last = x.shape[1] % STRIDE
    for begin in range(last - STRIDE if last else 0, x.shape[1], STRIDE):
        y, state = layer(x[:, max(begin, 0) : begin + STRIDE], state)
        states.append([h for h in tree_leaves(state) if h.requires_grad])
    flat_states = [h for leaves in states[:-1] for h in leaves]
    gradients = iter(torch.autograd.grad((y[:, -1] * v).sum(), flat_states, materialize_grads=True))
    norms = []
    for leaves in states[:-1]:
        flat = torch.cat([next(gradients).flatten(1) for _ in leaves], 1)  # (batch, numbers)
        size = flat.abs().amax().clamp_min(_LEAST)  # the square of what has vanished is 0
        norms.append(size * (flat / size).norm(dim=1).mean())
    return torch.stack(norms).flip(0)


def _cells(mean: Tensor, seeds: list[Tensor]) -> list[str]:
    every = torch.stack(seeds)
    shown = [mean[lag // STRIDE - 1].item() for lag in SHOWN if lag // STRIDE <= len(mean)]
    return [f"{value:.2g}" for value in (*shown, every.min().item(), every.max().item())]


def measures(norms: Tensor) -> dict[str, float]:
    """Return what is kept of the norms (states,) of a seed."""
    smallest, largest = (float(x) for x in norms.aminmax())
    return {SMALLEST: smallest, LARGEST: largest, FIRST: float(norms[-1])}


def judged(label: str, case: Case, seeds: Mapping[int, Mapping[str, float]]) -> Judged:
    """Judge the claim about a layer's gradient, by the measures of each seed."""
    margins = {}
    for seed, sizes in seeds.items():
        low, high, first = (max(sizes[name], _LEAST) for name in (SMALLEST, LARGEST, FIRST))
        if case.claim == "vanishes":
            margins[seed] = decades(first, VANISHED)
        else:
            margins[seed] = min(decades(high, BOUND), decades(1 / BOUND, low))
    return margin(f"{label}: {case.claim}", case.where, margins, scale=_SCALE)


def _figure(curves: Mapping[str, Tensor], seeds: int) -> Any:
    figure = new_figure(8.6, 4.8)
    axes = figure.subplots()
    looks = dense_styles(list(curves))
    for label, norms in curves.items():
        steps = [STRIDE * (n + 1) for n in range(len(norms))]
        shown = [value if value >= _PLOT_FLOOR else float("nan") for value in norms.tolist()]
        axes.plot(steps, shown, label=label, **looks[label])
    axes.axhspan(1 / BOUND, BOUND, color="0.93", zorder=0)
    axes.set(yscale="log", ylim=(_PLOT_FLOOR, 10 * BOUND), xlabel="steps before the loss")
    axes.set(
        ylabel="norm of the gradient of the state", title=f"shaded: bounded; {over_seeds([seeds])}"
    )
    axes.grid(alpha=0.3)
    legend_below(figure, axes)
    return figure

"""Training speed of a dense tanh RNN and of diagonal linear ones in the same residual stack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from linrnn.backbone import SequenceModel
from linrnn.ops import use_backend
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Runs, reduction
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.timing import (
    DEVICE,
    Call,
    Timing,
    Turns,
    conditions,
    device,
    faster,
    published_on_gpu,
    ratio,
    rounds,
    times,
)
from linrnn.train import OptimConfig
from linrnn.train.optim import make_optimizer

LAYERS = 6
"""Depth of a published stack."""
BASELINE, OWN = "Tanh RNN", "Tanh RNN, our cell"
MIXERS = {BASELINE: "tanh_rnn", OWN: "tanh_rnn", "LRU": "lru", "S4D": "s4d", "S5": "s5"}


class Workload(NamedTuple):
    """One column of the paper's tables 4 and 9: what a training step of a task reads."""

    length: int
    d_input: int  # channels, or the size of the vocabulary
    tokens: bool
    classes: int
    d_model: int
    d_state: int
    batch: int
    dropout: float = 0.0
    bidirectional: bool = False
    documents: int = 1  # read for one answer

    def text(self) -> str:
        """Sizes in words."""
        both = ", both directions" if self.bidirectional else ""
        rows = f"{self.documents}×{self.batch}" if self.documents > 1 else f"{self.batch}"
        return f"T={self.length}, H={self.d_model}, N={self.d_state}, batch {rows}{both}"


WORKLOADS = {
    "sCIFAR": Workload(1024, 3, False, 10, 512, 384, 50, dropout=0.1),
    "ListOps": Workload(2048, 18, True, 10, 128, 256, 32),
    "Text": Workload(4096, 135, True, 2, 256, 192, 32, dropout=0.1),
    "Retrieval": Workload(4000, 98, True, 2, 128, 256, 64, documents=2),
    "Pathfinder": Workload(1024, 1, False, 2, 192, 256, 64, bidirectional=True),
    "PathX": Workload(16384, 1, False, 2, 128, 256, 32, bidirectional=True),
}
#: Training steps a second on an A100, in the order of `WORKLOADS`.
STEPS = {
    BASELINE: (2.0, 1.1, 0.5, 0.5, 2.1, 0.14),
    "LRU": (15.9, 2.1, 14.7, 5.7, 15.5, 2.4),
    "S4D": (13.5, 2.2, 10.6, 3.0, 24.5, 2.6),
    "S5": (15.9, 2.2, 14.4, 5.7, 15.6, 2.3),
}
PRINTED = ("8×", "1.9×", "29×", "11.4×", "7.4×", "17×")  # of the LRU, as the paper rounds them


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How far a workload is scaled down; its length stays, for the ratio depends on it."""

    n_layers: int = LAYERS
    divisor: int = 1
    """Divisor of the width and of the state size."""
    most_rows: int | None = None
    """Largest batch."""

    def of(self, work: Workload) -> Workload:
        """The workload at this scale."""
        return work._replace(
            d_model=max(2, work.d_model // self.divisor // 2 * 2),
            d_state=max(2, work.d_state // self.divisor // 2 * 2),
            batch=min(work.batch, self.most_rows or work.batch),
        )

    @property
    def text(self) -> str:
        """Beside the published one, in words."""
        smaller = reduction({"layers": (self.n_layers, LAYERS), "width": (1, self.divisor)})
        rows = f"batches of at most {self.most_rows}" if self.most_rows else ""
        return ", ".join(filter(None, (smaller, rows, DEVICE)))


SCALES = {"cpu": Scale(n_layers=2, divisor=4, most_rows=2), "paper": Scale()}


def published_ratio(model: str, task: str) -> float:
    """Return the published ratio of steps a second to those of the tanh RNN.

    Example:
        >>> round(published_ratio("LRU", "Text"))
        29
    """
    i = list(WORKLOADS).index(task)
    return STEPS[model][i] / STEPS[BASELINE][i]


class LRUTable4(Reproduction):
    """A whole training step, AdamW included, on data drawn once: only its speed is looked at."""

    summary: ClassVar[str] = "training steps a second: tanh RNN, LRU, S4D and S5 in one stack"
    source: ClassVar[str] = "Orvieto et al. 2023, arXiv:2303.06349, table 4, at table 9's sizes"
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "the published lengths; 2 of 6 layers, a quarter of width and state, batches of 2; "
            "shows how the ratio to the tanh RNN grows, not its published size; a minute on a core"
        ),
        "paper": "the published depth, width, state, batch and length of all six tasks; for a GPU",
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Training steps a second on an A100",
            ["model", *WORKLOADS],
            [[model, *map(str, steps)] for model, steps in STEPS.items()],
        ),
        Table(
            "Times the tanh RNN: printed for the LRU, for the others from the table above",
            ["model", *WORKLOADS],
            [["LRU", *PRINTED]]
            + [[m, *(times(published_ratio(m, t)) for t in WORKLOADS)] for m in ("S4D", "S5")],
        ),
    )

    def __init__(
        self,
        workloads: Mapping[str, Workload] = WORKLOADS,
        scales: Mapping[str, Scale] = SCALES,
        turns: Turns | None = None,
    ) -> None:
        self.workloads, self.sizes, self.turns = workloads, scales, turns or Turns()

    def run(self, setting: Setting) -> Findings:
        """Time the four models on every task, in turn."""
        scale = self.sizes[setting.scale]
        timings: dict[str, dict[str, Timing]] = {}
        for task, published in self.workloads.items():
            work = scale.of(published)
            calls = {model: training_step(mixer, work, scale) for model, mixer in MIXERS.items()}
            calls[BASELINE] = _by_pytorch(calls[BASELINE])
            timings[task] = self.turns.measure(calls)
            rates = ", ".join(f"{model} {t.rate()}" for model, t in timings[task].items())
            setting.say(f"{task}, {work.text()} [steps/s]: {rates}")
        sizes = [[task, scale.of(work).text()] for task, work in self.workloads.items()]
        changed = f"{scale.n_layers} of {LAYERS} layers, 1/{scale.divisor} of H and N, at most "
        changed += f"{scale.most_rows} rows" if scale.most_rows else "the published rows"
        runs = Runs(tuple(rounds(timings, setting.scale)))
        return Findings(
            tables=(
                _rates(timings),
                _ratios(timings),
                Table("Sizes measured", ["task", f"{scale.n_layers} layers"], sizes),
            ),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "the ratio to the tanh RNN, not steps a second, which belong to the published "
                f"A100; and the ratio with the caveat of scale ({changed}), of the device, and of "
                "the tanh RNN's kernel: the paper's, in JAX, is not named."
            ),
            notes=(
                conditions(self.turns),
                "tanh RNN: torch.rnn_tanh (cuDNN on a GPU, PyTorch's own kernel on a CPU), and "
                "linrnn's cell, which on a CPU is its native kernel: what a recurrence gains "
                "depends on the kernel it is held against. LRU, S5: linrnn's, by its scan for the "
                "device; S4D: linrnn's, by its convolution.",
                "a step is forward, cross-entropy, backward and AdamW on one batch of random "
                "numbers; blocks, norm and GLU as in the paper's figure 1. Steps a second hold "
                "no reading of data.",
                "ours where the paper gives no size, or differs: ListOps at its longest, 2048; "
                "Retrieval reads two documents an answer and adds their logits; S4D has 64 modes "
                "a channel, by FFT; PathX has the GLU of the other tasks.",
            ),
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Whether each model is faster than the tanh RNN, task by task."""
        return [
            faster(
                runs.part(task, self.sizes[scale].text),
                model,
                BASELINE,
                f"{task}: {model} is faster than the {BASELINE}",
                f"{times(published_ratio(model, task))} on a GPU",
            )
            for task in self.workloads
            if task in WORKLOADS
            for model in STEPS
            if model != BASELINE
        ]


def training_step(mixer: str, work: Workload, scale: Scale) -> Call:
    """One step of training on one batch."""
    where = device()
    torch.manual_seed(0)
    options: dict[str, Any] = {"d_state": work.d_state}
    if mixer == "s4d":  # its scan would hold d_state numbers a channel and step
        options = {"form": "conv"}
    model = SequenceModel(
        work.d_input,
        work.classes,
        mixer=mixer,
        mixer_options=options,
        d_model=work.d_model,
        n_layers=scale.n_layers,
        dropout=work.dropout,
        bidirectional=work.bidirectional,
        encoder="tokens" if work.tokens else "linear",
        device=where,
    ).train()
    optimizer = make_optimizer(model, OptimConfig(lr=1e-3))
    rows = work.batch * work.documents
    if work.tokens:
        x = torch.randint(work.d_input, (rows, work.length), device=where)
    else:
        x = torch.randn(rows, work.length, work.d_input, device=where)
    target = torch.randint(work.classes, (work.batch,), device=where)

    def call() -> object:
        optimizer.zero_grad(set_to_none=True)
        # of one answer: the sum over its documents, (batch, classes)
        logits = model(x)[0].unflatten(0, (work.batch, work.documents)).sum(1)
        loss = F.cross_entropy(logits, target)
        loss.backward()
        optimizer.step()
        return loss

    return call


def _by_pytorch(step: Call) -> Call:
    """The step with no kernel of ours, in whose place a dense recurrence has PyTorch's."""

    def call() -> object:
        with use_backend("reference"):
            return step()

    return call


def _rates(timings: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = [[model, *(t[model].rate() for t in timings.values())] for model in MIXERS]
    return Table("Training steps a second", ["model", *timings], rows)


def _ratios(timings: Mapping[str, Mapping[str, Timing]]) -> Table:
    """Ours with the published ratio in parentheses."""
    rows: list[Sequence[str]] = []
    for model in list(MIXERS)[1:]:
        cells = []
        for task, t in timings.items():
            ours = times(ratio(t[BASELINE], t[model]))
            if task in WORKLOADS and model in STEPS:
                ours += f" ({published_on_gpu(times(published_ratio(model, task)))})"
            cells.append(ours)
        rows.append([model, *cells])
    return Table("Times the tanh RNN, in the same run (published)", ["model", *timings], rows)

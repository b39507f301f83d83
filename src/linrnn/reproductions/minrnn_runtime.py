"""Time and memory of one training step of minimal and classical RNNs against the length."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from linrnn.compare.run_table import Run
from linrnn.compare.tune import safe_name
from linrnn.reproductions._page.base import Findings, Reproduction, Setting, Table
from linrnn.reproductions._page.runs import Part, Runs, reduction, slug
from linrnn.reproductions._page.verdict import Judged
from linrnn.reproductions._runs.layers import (
    KERNELS,
    LAYERS,
    reading,
    streaming_step,
    training_step,
)
from linrnn.reproductions._runs.peak import peak_of_step
from linrnn.reproductions._runs.timing import (
    DEVICE,
    NO_VALUE,
    Timing,
    Turns,
    conditions,
    device,
    digits,
    faster,
    over_lengths,
    percent_more,
    published_on_gpu,
    ratio,
    rounds,
    times,
)
from linrnn.train.figures import new_figure, time_against_length

#: Faster by how many times, at which length.
FASTER = {("minGRU", "GRU"): {512: 175, 4096: 1324}, ("minLSTM", "LSTM"): {512: 235, 4096: 1361}}
#: Inference: per cent faster (slower: below 0) at batches of 8, 16, 32, 64.
AGAINST_MAMBA = {"minGRU": (6.6, 4.1, 4.9, 2.9), "minLSTM": (-3.6, -2.9, 0.0, -1.3)}
AGAINST_CLASSICAL = {("minGRU", "GRU"): 19.6, ("minLSTM", "LSTM"): 41.5}  # batch 64

_BATCHES = (8, 16, 32, 64)
ByBatch = Mapping[int, Mapping[str, Timing]]
"""Times by batch and layer."""
Peak = Callable[[str, int, int, int], int | None]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that one scale measures."""

    d_model: int
    batch: int
    lengths: Sequence[int]
    memory_lengths: Sequence[int]
    batches: Sequence[int] = _BATCHES
    context: int = 512


SIZES = {
    "cpu": Sizes(
        d_model=64, batch=8, lengths=(256, 512, 1024, 2048, 4096), memory_lengths=(512, 4096)
    ),
    "paper": Sizes(
        d_model=64, batch=64, lengths=(512, 1024, 2048, 4096), memory_lengths=(512, 1024, 4096)
    ),
}


class MinRNNRuntime(Reproduction):
    """One layer, forward and backward, at rising lengths; everyone in turn in one run."""

    summary: ClassVar[str] = "speed and memory of minGRU and minLSTM against GRU, LSTM and Mamba"
    source: ClassVar[str] = (
        "Feng et al. 2024, arXiv:2410.01201 v3, runtime and memory of a training step, and of "
        "inference"
    )
    scales: ClassVar[Mapping[str, str]] = {
        "cpu": (
            "width 64, batch 8, lengths 256 to 4096; shows how the ratios grow with the length, "
            "and how they depend on the baseline's kernel; three minutes of a core"
        ),
        "paper": (
            "the published batch of 64 at lengths 512 to 4096, width 64 (ours: our source does not "
            "state one); for a GPU"
        ),
    }
    published: ClassVar[tuple[Table, ...]] = (
        Table(
            "Times faster, one training step, batch 64, T4 GPU; baseline's kernel not named",
            ["", "T = 512", "T = 4096"],
            [
                [f"{ours} against {theirs}", *(f"{n}×" for n in by_length.values())]
                for (ours, theirs), by_length in FASTER.items()
            ],
        ),
        Table(
            "Memory of a training step, batch 64, T4 GPU",
            ["", "more memory"],
            [["minGRU, minLSTM over GRU, LSTM", "+88 %"], ["Mamba over minGRU", "+56 %"]],
        ),
        Table(
            "Inference: faster by (slower: below 0)",
            ["", "batch 8", "batch 16", "batch 32", "batch 64"],
            [
                *([f"{n} against Mamba", *(f"{p:+.1f} %" for p in ps)]
                  for n, ps in AGAINST_MAMBA.items()),
                *([f"{ours} against {theirs}", *[NO_VALUE] * 3, f"{p:+.1f} %"]
                  for (ours, theirs), p in AGAINST_CLASSICAL.items()),
            ],
        ),
    )  # fmt: skip

    def __init__(
        self,
        sizes: Mapping[str, Sizes] = SIZES,
        turns: Turns | None = None,
        peak: Peak = peak_of_step,
    ) -> None:
        self.sizes, self.turns, self.peak = sizes, turns or Turns(), peak

    def run(self, setting: Setting) -> Findings:
        """Time, measure memory, draw."""
        new_figure()  # a missing matplotlib is told before minutes are spent
        sizes = self.sizes[setting.scale]
        where = device()
        training_times = over_lengths(
            self.turns,
            list(LAYERS),
            sizes.lengths,
            lambda name, time: training_step(name, sizes.d_model, sizes.batch, time, where),
            setting.say,
        )
        size = f"width {sizes.d_model}, batch {sizes.batch}"
        peaks = self._peaks(sizes, setting)
        streams, reads = self._inference(sizes, setting)
        tables = [
            _time_table(f"One training step [ms], {size}", training_times),
            _faster_table(f"Times faster, {size} (published ones: batch 64, T4)", training_times),
            *_memory_tables(peaks, sizes),
        ]
        measured = {_training(time): dict(t) for time, t in training_times.items()}
        for what, timings in ((STREAMING, streams), (_reading(sizes), reads)):
            title = f"Inference, {what}"
            tables.append(_time_table(f"{title} [ms], width {sizes.d_model}", timings, "batch"))
            tables.append(_inference_table(f"{title}: faster by", timings))
            measured |= {_inference(what, batch): dict(t) for batch, t in timings.items()}
        memory = _runs_of_memory(peaks, sizes, setting.scale)
        runs = Runs((*rounds(measured, setting.scale), *memory))
        return Findings(
            tables=tuple(tables),
            runs=runs,
            verdicts=tuple(self.claims(runs, setting.scale)),
            comparable=(
                "ratios to a baseline of the same kind, not milliseconds or megabytes, which "
                "belong to a device. What a layer gains depends on the baseline's kernel as much "
                "as on the layer: compare a ratio published against a loop with the rows with "
                "loop; the rows with fused show how much of it remains."
            ),
            notes=(
                conditions(self.turns),
                KERNELS,
                "one layer each, state as wide as the input; a step is forward and backward to the "
                "input and all parameters, without an optimiser.",
                "memory is what a step adds to layer and input at its peak, each in a new process: "
                "one measurement of each, so no verdict, and as much of the baseline's kernel as "
                "of the layer.",
                "faster by: the other's time over ours, less one. Our source does not say whether "
                "inference reads a context or streams: both are here.",
            ),
            figures={"time-against-length": _figure(training_times, sizes)},
        )

    def claims(self, runs: Runs, scale: str) -> list[Judged]:
        """Which layer is faster, at the lengths and batches of which numbers are printed."""
        sizes = self.sizes[scale]
        smaller = reduction({"batch": (sizes.batch, max(_BATCHES))})
        words = ", ".join(filter(None, (smaller, DEVICE)))
        inference = [
            (what, batch, runs.part(_inference(what, batch), DEVICE))
            for what in (STREAMING, _reading(sizes))
            for batch in sizes.batches
        ]
        return [
            *(
                judged
                for length in sizes.lengths
                for judged in judged_training(runs.part(_training(length), words), length)
            ),
            *(judged for case in inference for judged in judged_inference(*case)),
        ]

    def _peaks(self, sizes: Sizes, setting: Setting) -> dict[str, list[float]]:
        """Bytes of a training step by layer, at each length of memory; NaN: not measured."""
        peaks: dict[str, list[float]] = {}
        for name in LAYERS:
            peaks[name] = []
            for time in sizes.memory_lengths:
                peak = self.peak(name, sizes.d_model, sizes.batch, time)
                peaks[name].append(math.nan if peak is None else peak)
            text = ", ".join(_megabytes(p) for p in peaks[name])
            setting.say(f"peak of a training step, {name} [MB]: {text}")
        return peaks

    def _inference(self, sizes: Sizes, setting: Setting) -> tuple[ByBatch, ByBatch]:
        """A streaming step, and reading a context, at every batch."""
        where, width = device(), sizes.d_model
        streams: dict[int, dict[str, Timing]] = {}
        reads: dict[int, dict[str, Timing]] = {}
        for batch in sizes.batches:
            calls = {n: streaming_step(n, width, batch, where) for n in _WITHOUT_LOG_SPACE}
            streams[batch] = self.turns.measure(calls)
            calls = {n: reading(n, width, batch, sizes.context, where) for n in _WITHOUT_LOG_SPACE}
            reads[batch] = self.turns.measure(calls)
            setting.say(f"inference, batch {batch}: done")
        return streams, reads


_WITHOUT_LOG_SPACE = [name for name in LAYERS if "log" not in name]
_KERNELS = ("loop", "fused")


STREAMING = "one streaming step"


def _reading(sizes: Sizes) -> str:
    return f"reading {sizes.context} steps at once"


def _training(length: int) -> str:
    return f"training, T = {length}"


def _inference(what: str, batch: int) -> str:
    return f"{what}, batch {batch}"


def judged_training(part: Part, length: int) -> list[Judged]:
    """Whether the parallel layers train faster, if numbers of this length are printed.

    Args:
        part: rounds of a training step.
        length: of its sequences.
    """
    return [
        faster(
            part,
            ours,
            f"{classical}, {kernel}",
            f"T = {length}: {ours} trains faster than {classical}, {kernel}",
            f"{published[length]}× on a GPU",
        )
        for (ours, classical), published in FASTER.items()
        if length in published
        for kernel in _KERNELS
    ]


def judged_inference(what: str, batch: int, part: Part) -> list[Judged]:
    """Verdicts on which layer is faster, if a difference is printed for this batch.

    Args:
        what: is read.
        batch: rows.
        part: rounds of it.
    """
    verdicts = []
    for ours, theirs, percent in _printed(batch):
        first, second = (ours, theirs) if percent > 0 else (theirs, ours)
        text = f"{_inference(what, batch)}: {first} is faster than {second}"
        if percent:
            published = f"{ours} {percent:+.1f} % on a GPU"
            verdicts.append(faster(part, first, second, text, published))
    return verdicts


def _printed(batch: int) -> list[tuple[str, str, float]]:
    """Pairs of layers, and by how many per cent the first is published to be faster."""
    if batch not in _BATCHES:
        return []
    place = _BATCHES.index(batch)
    pairs = [(ours, "Mamba", published[place]) for ours, published in AGAINST_MAMBA.items()]
    if batch == max(_BATCHES):
        pairs += [
            (ours, f"{classical}, {kernel}", percent)
            for (ours, classical), percent in AGAINST_CLASSICAL.items()
            for kernel in _KERNELS
        ]
    return pairs


def _time_table(title: str, timings: Mapping[int, Mapping[str, Timing]], what: str = "T") -> Table:
    names = next(iter(timings.values()))
    rows = [[name, *(t[name].milliseconds() for t in timings.values())] for name in names]
    return Table(title, ["layer", *(f"{what} = {size}" for size in timings)], rows)


def _faster_table(title: str, timings: Mapping[int, Mapping[str, Timing]]) -> Table:
    rows = []
    for (kind, classical), published in FASTER.items():
        for ours in (kind, f"{kind}, log space"):
            for theirs in (f"{classical}, {kernel}" for kernel in _KERNELS):
                cells = [times(ratio(t[theirs], t[ours])) for t in timings.values()]
                rows.append([f"{ours} against {theirs}", *cells])
        cells = [
            published_on_gpu(f"{published[t]}×") if t in published else NO_VALUE for t in timings
        ]
        rows.append([f"published, {kind} against {classical}", *cells])
    cells = [times(ratio(t["Mamba"], t["minGRU"])) for t in timings.values()]
    rows.append(["minGRU against Mamba", *cells])
    return Table(title, ["", *(f"T = {time}" for time in timings)], rows)


def _inference_table(title: str, timings: Mapping[int, Mapping[str, Timing]]) -> Table:
    """How much faster than Mamba and than the classical layers, with the published beside."""
    rows = []
    for ours, percents in AGAINST_MAMBA.items():
        published = dict(zip(_BATCHES, percents, strict=True))
        rows.append(_faster_by(ours, "Mamba", timings, published))
    for (ours, classical), percent in AGAINST_CLASSICAL.items():
        for kernel in ("fused", "loop"):
            rows.append(_faster_by(ours, f"{classical}, {kernel}", timings, {64: percent}))
    return Table(
        f"{title} (published in parentheses)", ["", *(f"batch {b}" for b in timings)], rows
    )


def _faster_by(
    ours: str,
    theirs: str,
    timings: Mapping[int, Mapping[str, Timing]],
    published: Mapping[int, float],
) -> list[str]:
    cells = []
    for batch, t in timings.items():
        theirs_said = published_on_gpu(f"{published[batch]:+.1f} %") if batch in published else ""
        suffix = f" ({theirs_said})" if theirs_said else ""
        cells.append(percent_more(ratio(t[theirs], t[ours])) + suffix)
    return [f"{ours} against {theirs}", *cells]


def _memory_tables(peaks: Mapping[str, Sequence[float]], sizes: Sizes) -> list[Table]:
    lengths = [f"T = {t}" for t in sizes.memory_lengths]
    size = f"width {sizes.d_model}, batch {sizes.batch}"
    rows = [[name, *map(_megabytes, measured)] for name, measured in peaks.items()]
    quotients = [
        [f"{a} over {b}", *map(percent_more, _quotients(peaks[a], peaks[b])), published]
        for a, b, published in _memory_pairs()
    ]
    return [
        Table(f"Peak memory of a training step [MB], {size}", ["layer", *lengths], rows),
        Table(f"More memory, {size}", ["", *lengths, "published, T4"], quotients),
    ]


def _runs_of_memory(
    peaks: Mapping[str, Sequence[float]], sizes: Sizes, scale: str
) -> Iterator[Run]:
    """A run of each measured peak."""
    for name, by_length in peaks.items():
        for length, n_bytes in zip(sizes.memory_lengths, by_length, strict=True):
            if not math.isnan(n_bytes):
                yield Run(
                    scale=scale, part=slug(f"memory, T = {length}"), row=safe_name(name), seed=0,
                    measures={"bytes": n_bytes},
                )  # fmt: skip


def _memory_pairs() -> list[tuple[str, str, str]]:
    """Pairs of layers compared in memory, and the published difference."""
    pairs = []
    for kind, classical in FASTER:
        for ours in (kind, f"{kind}, log space"):
            published = published_on_gpu("+88 %")
            pairs += [(ours, f"{classical}, {k}", published) for k in ("fused", "loop")]
    published = published_on_gpu("+56 %")
    return [*pairs, ("Mamba", "minGRU", published), ("Mamba", "minGRU, log space", published)]


def _quotients(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x / y if y > 0 else math.nan for x, y in zip(a, b, strict=True)]


def _megabytes(n_bytes: float) -> str:
    return "not measured" if math.isnan(n_bytes) else digits(n_bytes / 2**20)


def _figure(timings_by_length: Mapping[int, Mapping[str, Timing]], sizes: Sizes) -> Any:
    series = {
        name: [
            (float(time), timings[name].median, timings[name].error)
            for time, timings in timings_by_length.items()
            if timings[name].seconds
        ]
        for name in LAYERS
    }
    return time_against_length(
        {name: points for name, points in series.items() if points},
        what="one training step",
        title=f"Width {sizes.d_model}, batch {sizes.batch}; medians, s.e. over rounds",
    )

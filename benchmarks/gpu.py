"""`make bench-gpu`: check every op, cell and mixer on this GPU, and time them beside a copy.

Prints, and writes to benchmarks/results/, what is wrong, and the median time of scans, cells,
matrix memories, Mamba's scan and steps of training, with the rate in GB/s: the fewest bytes that
must be moved (every input read once, every output written once) over the time, beside the rate of a
plain copy measured in the same rounds. Peers run where they are installed: accelerated-scan,
flash-linear-attention (HGRN and matrix memories), mamba-ssm; cuDNN's GRU is there for scale. What
the time does not suffice for is said.
"""

import argparse
import datetime
import itertools
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import linrnn
from _gpu_checks import NOT_CHECKED, checks, large_checks, problems
from _gpu_times import (
    LAYER_SHAPE,
    ROUNDS,
    ROUNDS_MS,
    Jobs,
    Profile,
    Row,
    Split,
    compiled,
    peer_jobs,
    profiled,
    scan_jobs,
    small_jobs,
    split,
    timed,
    version,
)
from linrnn import mixers
from linrnn.ops import backend_report

CHECKS = 0.65  # of the time; then what is left is reported as not checked
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "triton", "accelerated-scan", "fla-core", "mamba-ssm")


class Found(NamedTuple):
    """All there is to say."""

    rows: list[Row]
    others: list[Row]
    skipped: list[str]
    wrong: list[str]
    unchecked: list[str]
    profiles: dict[str, Profile]
    splits: list[Split]


def main() -> int:
    """Check, measure, print and write; 1 without a GPU or when a number is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--no-times", action="store_true", help="check the numbers alone")
    arguments.add_argument("--kernels", action="store_true", help="where steps of layers spend it")
    arguments.add_argument(
        "--graph",
        action="store_true",
        help="beside the time of a call that of its graph and of its kernels: what is Python's",
    )
    arguments.add_argument("--tf32", action="store_true", help="products of float32 may use TF32")
    arguments.add_argument("--no-checks", action="store_true", help="measure alone")
    arguments.add_argument("--seconds", type=float, default=540.0, help="then stop (540)")
    arguments.add_argument(
        "--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="by their names"
    )
    asked = arguments.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("bench-gpu: needs a GPU that PyTorch can use; this machine has none.\n")
        return 1
    problem = backend_report()["triton"]
    if problem != "available":
        sys.stderr.write(f"bench-gpu: the backend 'triton' cannot run: {problem}.\n")
        return 1
    if asked.tf32:
        torch.set_float32_matmul_precision("high")
    start, found = time.monotonic(), Found([], [], [], [], [], {}, [])
    torch.manual_seed(0)
    small, large = {}, {}
    if not asked.no_times:
        small = {what: partial(compiled, job) for what, job in small_jobs()}
    if not asked.no_checks:
        # a layer that is timed has the name of its check, too
        small = small | {f"check of {what}": check for what, check in checks()}
        large = dict(large_checks())
    if not asked.no_times:
        small |= {what: partial(compiled, job) for what, job in peer_jobs()}
    small, large = (
        {what: check for what, check in some.items() if asked.only.search(what)}
        for some in (small, large)
    )
    for said in problems(small, large, CHECKS * asked.seconds):
        print(said, flush=True)
        (found.unchecked if said.startswith(NOT_CHECKED) else found.wrong).append(said)

    def save() -> None:
        write(report(found, time.monotonic() - start), say=False)

    print(f"{len(found.wrong)} wrong numbers on {torch.cuda.get_device_name()}", flush=True)
    if not asked.no_times:
        for jobs, into in (
            (itertools.chain(scan_jobs(), small_jobs()), found.rows),
            (peer_jobs(), found.others),
        ):
            jobs = ((what, job) for what, job in jobs if asked.only.search(what))
            splits = found.splits if asked.graph else None
            found.skipped.extend(measured(jobs, into, start + asked.seconds, splits, save))
            write(report(found, time.monotonic() - start))
        if asked.kernels:
            some = [n for n in mixers.names() if asked.only.search(f"{LAYER_SHAPE} {n}")]
            for name in some:
                if time.monotonic() < start + asked.seconds:
                    found.profiles[name] = profiled(name)
            write(report(found, time.monotonic() - start))
    return bool(found.wrong)


def write(text: str, *, say: bool = True) -> None:
    """Keep a report, and print it."""
    if say:
        print(text, flush=True)
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"\W+", "-", torch.cuda.get_device_name().lower())
    (RESULTS / f"gpu-{name}-{datetime.date.today()}.md").write_text(text, encoding="utf-8")


def measured(
    jobs: Jobs,
    rows: list[Row],
    end: float,
    splits: list[Split] | None,
    save: Callable[[], None],
) -> list[str]:
    """Add to the rows, or to ``splits``, all there is time for up to ``end``; say what was not.

    A machine may be taken away at any time: once a minute all is saved.
    """
    skipped, saved = [], time.monotonic()
    for what, prepare in jobs:
        if time.monotonic() > saved + 60:
            save()
            saved = time.monotonic()
        if time.monotonic() > end:
            skipped.append(f"{what}: no time was left")
            continue
        try:
            if splits is None:
                rows += timed(prepare())
            else:
                splits += split(prepare())
        except Exception as error:  # noqa: BLE001 - the others are measured
            skipped.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            print(skipped[-1], flush=True)
        torch.cuda.empty_cache()
    return skipped


def report(found: Found, seconds: float) -> str:
    """The tables and what they were measured with, as Markdown."""
    device = torch.cuda.get_device_properties(0)
    lines = [
        f"# Scans, cells and matrix memories on {device.name}, {datetime.date.today()}",
        "",
        f"`make bench-gpu`: medians of {ROUNDS} rounds in turn, of fewer where one takes more than "
        f"{ROUNDS_MS / ROUNDS:.0f} ms, {seconds:.0f} s in all. GB/s "
        "counts the fewest bytes the work must move; the last column divides it by the faster of "
        "a clone and `torch.add` on the same tensors. `both` is forward and backward.",
        "",
        f"{device.multi_processor_count} multiprocessors, CUDA {torch.version.cuda}; "
        + f"linrnn {linrnn.__version__}, "
        + ", ".join(f"{p} {version(p) or 'not installed'}" for p in PACKAGES)
        + ".",
        "",
        "Matrix memories are (batch, time, heads, d_key, d_value), Mamba's scan is (batch, time, "
        "channels, d_state).",
        "",
        *table(found.rows),
    ]
    if found.splits:
        lines += ["", "## Python and the GPU", "", *host_and_device(found.splits)]
    if found.others:
        lines += ["", "## Beside others, in turn", "", *table(found.others)]
    if found.profiles:
        lines += ["", "## Kernels of a training step", "", *kernels(found.profiles)]
    for title, some in (
        ("Wrong numbers", found.wrong),
        ("Not checked, for want of time", found.unchecked),
        ("Not measured", found.skipped),
    ):
        if some:
            lines += ["", f"## {title}", "", *(f"- {what}" for what in some)]
    return "\n".join([*lines, ""])


def table(rows: list[Row]) -> list[str]:
    """Rows as Markdown."""
    return [
        "| (batch, time, channels) | dtype | a, or what | work | what | ms | GB/s | of copy |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: |",
        *(
            f"| {row.shape} | {row.dtype} | {row.decay} | {row.work} | {row.name} "
            f"| {row.ms:.3f} | {row.rate:.0f} | {row.of_copy:.0%} |"
            for row in rows
        ),
    ]


def host_and_device(splits: list[Split]) -> list[str]:
    """Splits as Markdown: a call that is bound by its host says nothing of its kernels."""
    return [
        "| shape | dtype | a, or what | work | what | eager, ms | graph, ms | kernels, ms "
        "| launches | MB | GB/s | bound by |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *(
            f"| {x.shape} | {x.dtype} | {x.decay} | {x.work} | {x.name} | {x.eager:.3f} "
            f"| {x.replay:.3f} | {x.kernels:.3f} | {x.launches} | {x.megabytes:.0f} "
            f"| {x.rate:.0f} | {'its host' if x.host_bound else 'its kernels'} |"
            for x in splits
        ),
    ]


def kernels(profiles: dict[str, Profile]) -> list[str]:
    """Profiles as Markdown."""
    return [
        "| layer | step, ms | launching, ms | kernels | all kernels, ms | the longest | ms |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
        *(
            f"| {name} | {p.step_ms:.1f} | {p.launching_ms:.1f} | {p.kernels} | {p.busy_ms:.1f} "
            f"| `{p.longest}` | {p.longest_ms:.1f} |"
            for name, p in profiles.items()
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())

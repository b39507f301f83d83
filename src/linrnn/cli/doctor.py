"""Describe this installation: versions, machine, backends, extras, and a self-test."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linrnn import __version__
from linrnn.cli._line.output import answer, joined, row
from linrnn.cli._line.parser import Parser
from linrnn.errors import how_to_install

if TYPE_CHECKING:
    import torch

#: How many times the error of a loop in its own dtype a backend may have.
ALLOWANCE = 8


_SELF_TEST = (
    "self-test: largest relative error of a small scan and its gradients in float32 "
    f"and complex64;\na backend may have {ALLOWANCE} times that of the reference loop"
)


def parser() -> Parser:
    """The parser of the verb's arguments."""
    wrong = "Exit code 1: an available backend computes wrong numbers."
    return Parser("doctor", __doc__, wrap=True, epilog=wrong)


def main(argv: Sequence[str]) -> int:
    """Print the report; the exit code is 1 when a backend computes wrong numbers."""
    parser().parse_args(argv)
    tables = {}
    for heading, report in (
        ("versions", versions),
        ("machine", machine),
        ("backends", backends),
        ("ops: what computes them on this machine", ops),
        ("native kernels", native_kernels),
        ("extras", extras),
        ("models of transformers", foreign_models),
        (_SELF_TEST, self_test),
    ):
        name = re.split("[:-]", heading)[0] if heading != _SELF_TEST else "self_test"
        tables[name.replace(" ", "_")] = rows = report()
        _print(heading, rows)
    right = not any(result.endswith("WRONG") for result in tables["self_test"].values())
    answer(lambda: joined({"ok": right}, tables))
    return 0 if right else 1


def versions() -> dict[str, str]:
    """The versions that decide what numbers come out."""
    rows = {"linrnn": f"{__version__} in {Path(__file__).parents[1]}"}
    rows["python"] = platform.python_version()
    for package in ("torch", "numpy", "safetensors", "jaxtyping"):
        rows[package] = importlib.metadata.version(package)
    return rows


def machine() -> dict[str, str]:
    """Operating system, processor, threads and GPU."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that PyTorch can use"
    return {
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": f"{usable} usable of {os.cpu_count()}",
        "threads": f"{torch.get_num_threads()} (torch.get_num_threads)",
        "gpu": gpu,
    }


def backends() -> dict[str, str]:
    """Each backend: available, or why not."""
    from linrnn.ops import backend_report

    return backend_report()


def ops() -> dict[str, str]:
    """The backends that can compute each public op, fastest first; of the others, why not."""
    import linrnn.ops
    from linrnn.compute.op import ALL
    from linrnn.ops import backend_report

    rows = {}
    for op in sorted({*ALL} & {*linrnn.ops.__all__}):
        report = backend_report(op)
        able = [name for name, state in report.items() if state == "available"]
        unable = [f"{name}: {why}" for name, why in report.items() if why != "available"]
        rows[op] = "; ".join([", ".join(able), *unable])
    return rows


def native_kernels() -> dict[str, str]:
    """The shared library behind the backend ``cpu``, or why there is none."""
    from linrnn.compute import native

    library, problem = native.load()
    if library is None:
        return {"missing": problem}
    return {
        "library": str(library.path),
        "instruction set": f"{library.isa}, picked for this processor",
        "OpenMP": "yes" if library.openmp else "no: every kernel runs on one thread",
    }


def extras() -> dict[str, str]:
    """Each optional extra of the package: installed, or what is missing."""
    try:
        requirements = importlib.metadata.requires("linrnn") or []
    except importlib.metadata.PackageNotFoundError:
        return {"unknown": "linrnn runs from its source folder and was not installed by pip"}
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", requirement)
        if match:
            packages.setdefault(match[2], []).append(match[1])
    return {extra: _installed(extra, names) for extra, names in packages.items()}


def foreign_models() -> dict[str, str]:
    """Whether models of transformers run on our ops, and how they would."""
    from linrnn.interop import accelerate_report

    return {"accelerate": accelerate_report()}


def self_test() -> dict[str, str]:
    """Compare every available backend with the float64 loop: its error, and ok or WRONG."""
    from linrnn.ops import backend_report

    available = [name for name, state in backend_report().items() if state == "available"]
    errors = {name: _errors(name) for name in {"reference", *available}}
    results = {}
    for name in available:
        pairs = list(zip(errors[name], errors["reference"], strict=True))
        good = all(error <= ALLOWANCE * loop for error, loop in pairs)
        results[name] = f"{max(errors[name]):.1e}  {'ok' if good else 'WRONG'}"
    return results


def _installed(extra: str, packages: Sequence[str]) -> str:
    missing = []
    for package in packages:
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    if not missing:
        return "installed"
    return f"missing {', '.join(missing)}; {how_to_install(extra)}"


def _errors(backend: str) -> list[float]:
    """Error of every output and gradient against float64, relative to the largest true value.

    At least one rounding, so that a loop that happens to be exact asks nothing impossible.
    """
    import torch

    errors = []
    for narrow, double in ((torch.float32, torch.float64), (torch.complex64, torch.complex128)):
        generator = torch.Generator().manual_seed(0)
        a, b, h0, weight = (
            torch.randn(shape, dtype=narrow, generator=generator)
            for shape in ((2, 257, 5), (2, 257, 5), (2, 5), (2, 257, 5))
        )
        inputs = (a / (a.abs() + 0.01), b, h0, weight)  # decays close to 1: a long memory
        truth = _scan("reference", *(x.to(double) for x in inputs))
        for x, true in zip(_scan(backend, *inputs), truth, strict=True):
            error = float((x.to(double) - true).abs().max() / true.abs().max())
            errors.append(max(error, torch.finfo(narrow).eps))
    return errors


def _scan(
    backend: str, a: "torch.Tensor", b: "torch.Tensor", h0: "torch.Tensor", weight: "torch.Tensor"
) -> "tuple[torch.Tensor, ...]":
    """Outputs, final state and the gradients of the inputs, by one backend."""
    import torch

    from linrnn.ops import linear_scan

    inputs = [x.detach().requires_grad_() for x in (a, b, h0)]
    h, final = linear_scan(*inputs, backend=backend)
    loss = (h * weight).real.sum() + final.abs().square().sum()
    return (h.detach(), final.detach(), *torch.autograd.grad(loss, inputs))


def _cpu_name() -> str:
    """The processor's marketing name where the system tells, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        match = re.search(r"^model name\s*: (.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()


def _print(heading: str, rows: Mapping[str, str]) -> None:
    width = max(map(len, rows))
    lines = [f"  {name:<{width}}  {value}" for name, value in rows.items()]
    row("\n".join([heading, *lines, "", ""]))

"""A GPU that is not here: Triton's kernels compile as a call launches them, and do not run.

For a process of its own: it stands in for Triton's driver and for what the package knows of
devices. Tensors lie on the CPU, so numbers mean nothing; what is launched, with which grids and
which machine code, is what an H100 would be given. So is the time that Python takes.
"""

import collections
import gc
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from linrnn.compute import backend, gpu, modes

PROCESSORS = 132
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

#: Operators that are no kernels: views, memory without numbers.
_FREE = re.compile(
    r"empty|view|expand|transpose|permute|slice|select|squeeze|detach|alias|split|unbind|"
    r"as_strided|::t$|::to$|flatten|resolve|lift|promote|result_type|::item|is_nonzero|movedim|"
    r"chunk|narrow|set_|resize|broadcast|::zeros$|zeros_like|new_zeros|::full$|new_full|"
    r"mT$|mH$|::real$|::imag$|::_conj$|::_neg_view$|::contiguous$|_unsafe_view|::reshape$|::clone$|_has_same_storage"
)


#: Operators that are nothing but others on any device, which count in their place: what a product
#: copies is a kernel, too.
_COMPOSED = re.compile(r"::(matmul|linear|einsum|tensordot|pad|constant_pad_nd|index_put)$")


class Launch(NamedTuple):
    """A kernel that a call launched."""

    name: str
    programs: int
    cubin: bytes
    warps: int


#: What was launched since it was last cleared.
LAUNCHES: list[Launch] = []


class _Utils:
    shared = 227 * 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared, "multiprocessor_count": PROCESSORS, "warpSize": 32}

    def load_binary(self, name: str, kernel: bytes, *arguments: Any) -> tuple[int, ...]:
        handle, registers, spilled, threads = len(_LOADED), 32, 0, 1024
        _LOADED.append(kernel)
        found = 1, handle, registers, spilled, threads
        return found[:4] if version("triton").startswith("3.3.") else found  # knew no threads


_LOADED: list[bytes] = []


class _Driver:
    utils = _Utils()

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(x: int, y: int, z: int, stream: int, function: int, *arguments: Any) -> None:
            LAUNCHES.append(Launch(metadata.name, x * y * z, _LOADED[function], metadata.num_warps))

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def pretend(shared: int = 227 * 1024) -> None:
    """From here on every launch of this process compiles alone.

    Args:
        shared: memory that a program may have; an H100's.
    """
    _Utils.shared = shared
    driver.set_active(_Driver())
    gpu.processors = lambda device: PROCESSORS
    gpu.cooperates = lambda device: True
    _look_at_no_number()

    def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
        return None if dtype in gpu.DTYPES else f"it has no kernel for {dtype}"

    gpu.unavailable = unavailable
    backend.WRITTEN_FOR.pop("triton", None)


def _look_at_no_number() -> None:
    """A look would wait for the device; modules imported before this call have the name, too."""
    looks = modes.may_look
    for module in [x for name, x in sys.modules.items() if name.startswith("linrnn.")]:
        if vars(module).get("may_look") is looks:
            vars(module)["may_look"] = lambda x: False


def launch_uncompiled() -> None:
    """Note launches and compile nothing: to count them needs no machine code."""

    def run(kernel: Any, *arguments: Any, grid: tuple[int, ...], **options: Any) -> _Uncompiled:
        compiled = _Uncompiled(kernel.fn.__name__, options.get("num_warps", 4))
        compiled[grid](*arguments)
        return compiled

    triton.JITFunction.run = run


class _Uncompiled:
    """Stands for what a first launch compiled; by its grid, later launches call it."""

    def __init__(self, name: str, warps: int) -> None:
        self.name, self.warps = name, warps

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            LAUNCHES.append(Launch(self.name, math.prod(grid), b"", self.warps))

        return launch


class Code(NamedTuple):
    """Figures of a kernel's machine code."""

    registers: int
    spills: int  # instructions that load or store registers in memory
    widest: int  # bits of a load
    loads: dict[int, int]  # of global memory, by bits
    barriers: int
    loop_barriers: int  # of the innermost loop that has most
    instructions: int


#: An instruction: its address, name and operands.
_Line = tuple[int, str, str]


def _disassembled(cubin: bytes) -> tuple[str, list[_Line]]:
    """The resources of a kernel, as cuobjdump prints them, and its machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, sass = (
            subprocess.run(
                [TOOLS / "cuobjdump", option, file.name], capture_output=True, text=True, check=True
            ).stdout
            for option in ("-res-usage", "-sass")
        )
    lines = []
    for line in sass.splitlines():
        m = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line)
        if m:
            lines.append((int(m[1], 16), m[2], m[3]))
    return usage, lines


class Loop(NamedTuple):
    """Figures of one turn of a loop."""

    bytes: int  # that each thread loads from global memory
    barriers: int
    matrix: int  # instructions of tensor cores
    instructions: int


def longest_loop(cubin: bytes) -> Loop:
    """The loop with most instructions, and what is inside of it."""
    _, lines = _disassembled(cubin)
    first, last = max(_loops(lines), key=lambda x: x[1] - x[0])
    inside = [x for at, x, _ in lines if first <= at <= last]
    heads = collections.Counter(x.split(".")[0] for x in inside)
    size = sum(_bits(x) // 8 for x in inside if x.split(".")[0] in ("LDG", "LDGSTS"))
    return Loop(size, heads["BAR"], heads["HMMA"] + heads["HGMMA"], len(inside))


def code(cubin: bytes) -> Code:
    """Registers, spills, loads and barriers of compiled code."""
    usage, lines = _disassembled(cubin)
    found = re.search(r"REG:(\d+)", usage)
    loads: dict[int, int] = collections.Counter()
    for _, operation, _ in lines:
        if operation.split(".")[0] in ("LDG", "LDGSTS"):
            loads[_bits(operation)] += 1
    heads = [x.split(".")[0] for _, x, _ in lines]
    return Code(
        int(found[1]) if found else 0,
        sum(x in ("LDL", "STL") for x in heads),
        max(loads, default=0),
        dict(loads),
        heads.count("BAR"),
        max((_barriers(lines, *loop) for loop in _inner_loops(lines)), default=0),
        len(lines),
    )


def _bits(operation: str) -> int:
    wide = re.search(r"\.(128|64)\b", operation)
    narrow = re.search(r"\.[US](16|8)\b", operation)
    return int(wide[1]) if wide else int(narrow[1]) if narrow else 32


def _loops(lines: list[_Line]) -> list[tuple[int, int]]:
    """First and last address of each loop."""
    loops = []
    for at, operation, operands in lines:
        to = re.search(r"0x([0-9a-f]+)", operands)
        if operation.startswith("BRA") and to and int(to[1], 16) < at:
            loops.append((int(to[1], 16), at))
    return loops


def _inner_loops(lines: list[_Line]) -> list[tuple[int, int]]:
    """The loops that hold no other."""
    loops = _loops(lines)
    return [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]


def _barriers(lines: list[_Line], first: int, last: int) -> int:
    return sum(x.split(".")[0] == "BAR" for at, x, _ in lines if first <= at <= last)


def launched(run: Callable[[], object]) -> list[Launch]:
    """Launches of a call once its kernels are compiled."""
    run()
    LAUNCHES.clear()
    run()
    return list(LAUNCHES)


def operators(run: Callable[[], object]) -> dict[str, int]:
    """Operators of PyTorch that would be kernels, by name: the outermost of nested ones.

    A `clone`, `contiguous` or `reshape` that copies counts as its `copy_`, and one that does not
    as nothing.
    """
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile:
        run()
    found: dict[str, int] = collections.Counter()
    for event in profile.events():
        above = event.cpu_parent
        while above is not None and not _is_kernel(above.name):
            above = above.cpu_parent
        if above is None and _is_kernel(event.name):
            found[event.name.removeprefix("aten::")] += 1
    return dict(found)


def _is_kernel(name: str) -> bool:
    return name.startswith("aten::") and not _FREE.search(name) and not _COMPOSED.search(name)


def host_us(run: Callable[[], object], rounds: int = 200) -> float:
    """The fastest of many calls, in microseconds: of small tensors it is Python's own time."""
    for _ in range(5):
        run()
    best, collects = math.inf, gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
            LAUNCHES.clear()
    finally:
        if collects:
            gc.enable()
    return 1e6 * best

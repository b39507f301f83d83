"""Times for `make bench-gpu`: scans, cells, memories, layers, and those of other packages.

Each is a `Job`: calls that take turns, with the fewest bytes that they must move.
"""

import contextlib
import importlib.metadata
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _gpu_checks import CUDA, cases, inputs
from _memory_calls import MEMORIES, MEMORY_SHAPES, fla_peer, has_fla_peer, memory, op_of, options_of
from cells import CELLS
from cells import arguments as of_cell
from linrnn import mixers
from linrnn.ops import causal_conv, cell_scan, gated_scan, linear_scan, selective_scan

CELL_SHAPES = ((8, 1024, 256), (1, 16384, 256), (64, 1024, 64))
SELECTIVE_SHAPES = ((8, 2048, 2048, 16), (1, 16384, 2048, 16))
CONV_SHAPE = (32, 1024, 512)
LAYER_SHAPE = (32, 1024, 256)
LAYERS = (
    *("lru", "mingru", "gla", "mamba", "gated_delta_net", "s5", "rg_lru", "lstm", "rwkv7"),
    *("slstm", "s4d", "mlstm", "delta_net", "kda", "mamba2", "rwkv6", "hgrn", "retnet", "gru"),
    *("minlstm", "s4", "attention"),
)
PEER_SHAPES = ((8, 2048, 1024), (64, 1024, 256))
ROUNDS, LEAST_ROUNDS, ROUNDS_MS = 25, 5, 300.0  # of what is slow there are fewer

Run = Callable[[], object]
Scan = tuple[Callable[[], Tensor], tuple[Tensor, ...]]  # and what it is differentiated by


class Row(NamedTuple):
    """One measured line of the table."""

    shape: tuple[int, ...]
    dtype: str
    decay: str  # or which cell, or memory
    work: str
    name: str
    ms: float
    rate: float  # GB/s of the fewest bytes
    of_copy: float


class Split(NamedTuple):
    """Where the time of one call goes, in milliseconds: Python, or the GPU."""

    shape: tuple[int, ...]
    dtype: str
    decay: str  # or which cell, or memory
    work: str
    name: str
    eager: float
    replay: float  # of the same call in a CUDA graph; NaN where it cannot be captured
    kernels: float  # all of them together, by the profiler
    launches: int
    megabytes: float  # the fewest that must be moved
    rate: float  # GB/s of these over the time of the replay

    @property
    def host_bound(self) -> bool:
        """Whether launching takes longer than the kernels, by a fifth at least."""
        alone = self.kernels if math.isnan(self.replay) else max(self.replay, self.kernels)
        return self.eager > 1.2 * alone


class Job(NamedTuple):
    """A job that is timed in turn."""

    runs: dict[tuple[str, str], tuple[Run, int]]
    """And the fewest units of bytes that each moves."""
    unit: int
    shape: tuple[int, ...]
    kinds: tuple[str, str]


Jobs = Iterator[tuple[str, Callable[[], Job]]]


def scan_jobs() -> Jobs:
    """Scans of every kind, by name."""
    for shape, dtype, constant in cases():
        what = f"{shape} {dtype}{' constant' if constant else ''}"
        yield what, partial(measure, shape, dtype, constant, CUDA)


def small_jobs() -> Jobs:
    """Further jobs with so little memory that they may be compiled side by side."""
    for shape, name in itertools.product(CELL_SHAPES, CELLS):
        yield f"{shape} {name}", partial(measure_cell, name, shape, CUDA)
    for shape, name in itertools.product(MEMORY_SHAPES, MEMORIES):
        yield f"{shape} {name}", partial(measure_memory, name, shape, CUDA)
    for name in MEMORIES:
        shape = MEMORY_SHAPES[-1]
        yield f"{shape} {name} float32", partial(measure_memory, name, shape, CUDA, torch.float32)
    for shape in CELL_SHAPES:
        for parts in (2, 3):
            yield f"{shape} gated_scan, {parts} parts", partial(measure_gated, shape, parts, CUDA)
    for dtype in (torch.float32, torch.bfloat16):
        yield f"{CONV_SHAPE} causal_conv {dtype}", partial(measure_conv, CONV_SHAPE, dtype, CUDA)
    for shape in SELECTIVE_SHAPES:
        yield f"{shape} selective scan", partial(measure_selective, shape, CUDA)
    for name in LAYERS:
        yield f"{LAYER_SHAPE} {name}", partial(measure_layers, name, LAYER_SHAPE, CUDA)


def peer_jobs() -> Jobs:
    """Jobs that other installed packages compute as well."""
    for shape, who in itertools.product(PEER_SHAPES, SCANS_OF_OTHERS):
        if version(PACKAGE_OF.get(who, "torch")):
            yield f"{shape} {who}", partial(measure, shape, torch.float32, False, CUDA, who)
    for name in MEMORIES if version("fla-core") else ():
        if has_fla_peer(name):
            shape = MEMORY_SHAPES[0]
            yield f"{shape} {name}, fla", partial(measure_memory, name, shape, CUDA, beside=True)


def measure(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    constant: bool,
    device: torch.device,
    other: str | None = None,
) -> Job:
    """A scan, its gradients and copies; and another's scan."""
    a, b, into = inputs(shape, dtype, constant, device)
    unit = b.numel() * b.element_size()
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (b.detach().clone, 2),
        ("copy", "torch.add"): (lambda: torch.add(b.detach(), into), 3),
    }
    scans: dict[str, Scan] = {"linrnn": (lambda: linear_scan(a, b)[0], (a, b))}
    if other is not None:
        scans[other] = SCANS_OF_OTHERS[other](a.detach(), b.detach())
    for name, scan in scans.items():
        runs["forward", name] = (without_gradient(scan), 2 if constant else 3)
        runs["both", name] = (with_gradient(scan), 5 if constant else 8)
    kinds = (str(dtype).removeprefix("torch."), "constant" if constant else "varying")
    return Job(runs, unit, shape, kinds)


def measure_cell(name: str, shape: tuple[int, int, int], device: torch.device) -> Job:
    """A cell and its gradients, and a copy."""
    cell = CELLS[name]
    given = {n: x.to(device).requires_grad_() for n, x in of_cell(cell, shape).items()}
    scan = (lambda: cell_scan(cell, **given, backend="triton")[0], tuple(given.values()))
    x, n = given[cell.inputs[0]].detach(), len(cell.inputs)
    kept = len(cell.states)  # read again: inputs, states, the gradient of the output
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (x.clone, 2),
        ("forward", "linrnn"): (without_gradient(scan), n + 1),
        ("both", "linrnn"): (with_gradient(scan), 3 * n + 2 * kept + 2),
    }
    return Job(runs, x.numel() * x.element_size(), shape, ("float32", name))


def measure_memory(
    name: str,
    shape: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    beside: bool = False,
) -> Job:
    """A matrix memory and its gradients, and a copy; beside flash-linear-attention."""
    given = memory(name, shape, shape[0])
    del given["initial_state"]
    stored = ("q", "k", "v", "a", "b")
    kept = {n: x.to(dtype) if n in stored else x for n, x in given.items()}
    kept = {n: x.to(device).requires_grad_() for n, x in kept.items()}
    v, leaves, options = kept["v"].detach(), tuple(kept.values()), options_of(name)
    scans: dict[str, Scan] = {
        "linrnn": (lambda: op_of(name)(**kept, **options, backend="triton")[0], leaves)
    }
    if beside:
        scans["flash-linear-attention"] = (fla_peer(name, kept), leaves)
    size = v.numel() * v.element_size()
    moved = sum(x.numel() * x.element_size() for x in leaves)
    runs: dict[tuple[str, str], tuple[Run, int]] = {("copy", "clone"): (v.clone, 2 * size)}
    for who, scan in scans.items():
        runs["forward", who] = (without_gradient(scan), moved + size)
        runs["both", who] = (with_gradient(scan), 3 * moved + 2 * size)
    return Job(runs, 1, shape, (str(dtype).removeprefix("torch."), name))


def measure_selective(shape: tuple[int, ...], device: torch.device) -> Job:
    """Mamba's scan and its gradients in bfloat16, and a copy."""
    batch, steps, channels, d_state = shape
    x = torch.randn(batch, steps, channels, device=device, dtype=torch.bfloat16)
    dt = F.softplus(torch.randn_like(x) - 4)
    A = -torch.rand(channels, d_state, device=device) - 0.5
    B, C = (torch.randn(batch, steps, d_state, device=device).to(x) for _ in range(2))
    leaves = tuple(t.detach().requires_grad_() for t in (x, dt, A, B, C))
    scan = (lambda: selective_scan(*leaves, backend="triton")[0], leaves)
    size = x.numel() * x.element_size()
    moved = sum(t.numel() * t.element_size() for t in leaves)
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (x.clone, 2 * size),
        ("forward", "linrnn"): (without_gradient(scan), moved + size),
        ("both", "linrnn"): (with_gradient(scan), 3 * moved + 2 * size),
    }
    return Job(runs, 1, shape, ("bfloat16", "selective scan"))


def measure_gated(shape: tuple[int, int, int], parts: int, device: torch.device) -> Job:
    """The scan of minGRU or minLSTM and its gradient, and a copy."""
    batch, steps, channels = shape
    x = torch.randn(batch, steps, parts, channels, device=device, requires_grad=True)
    scan = (lambda: gated_scan(x, backend="triton")[0], (x,))
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (x.detach().clone, 2 * parts),
        ("forward", "linrnn"): (without_gradient(scan), parts + 1),
        ("both", "linrnn"): (with_gradient(scan), 3 * parts + 3),
    }
    unit = batch * steps * channels * x.element_size()
    return Job(runs, unit, shape, ("float32", f"gated_scan, {parts} parts"))


def measure_conv(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Job:
    """A short convolution as Mamba has it and its gradients, and a copy; beside its definition."""
    channels = shape[2]
    x = torch.randn(shape, device=device).to(dtype).requires_grad_()
    weight = torch.randn(channels, 4, device=device, requires_grad=True)
    bias = torch.randn(channels, device=device, requires_grad=True)
    runs: dict[tuple[str, str], tuple[Run, int]] = {("copy", "clone"): (x.detach().clone, 2)}
    for name, backend in (("linrnn", "triton"), ("shifts of PyTorch", "tree")):
        call = partial(causal_conv, x, weight, bias, silu=True, backend=backend)
        scan = (lambda call=call: call()[0], (x, weight, bias))
        runs["forward", name] = (without_gradient(scan), 2)
        runs["both", name] = (with_gradient(scan), 5)
    kinds = (str(dtype).removeprefix("torch."), "causal_conv")
    return Job(runs, x.numel() * x.element_size(), shape, kinds)


def training_step(name: str, shape: tuple[int, int, int], device: torch.device) -> Run:
    """Four layers with residuals and norms, forward, backward and AdamW."""
    d_model = shape[2]
    layers = nn.ModuleList([mixers.load(name)(d_model, device=device) for _ in range(4)])
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-3, capturable=device.type == "cuda")
    x = torch.randn(shape, device=device, requires_grad=True)  # a reservoir learns nothing itself

    def step() -> None:
        h = x
        for layer in layers:
            h = h + layer(F.layer_norm(h, (d_model,)))[0]
        optimizer.zero_grad()
        h.square().mean().backward()
        optimizer.step()

    return step


def measure_layers(name: str, shape: tuple[int, int, int], device: torch.device) -> Job:
    """A step of training, and a copy of its input."""
    step, x = training_step(name, shape, device), torch.randn(shape, device=device)
    # input, output and both gradients of each of the four layers
    runs: dict[tuple[str, str], tuple[Run, int]] = {
        ("copy", "clone"): (x.clone, 2),
        ("training step", "linrnn"): (step, 4 * 4),
    }
    with contextlib.suppress(RuntimeError):  # of a layer that asks the GPU for a number
        runs["training step", "linrnn, in a CUDA graph"] = captured(step), 4 * 4
    return Job(runs, x.numel() * x.element_size(), shape, ("float32", f"4 layers of {name}"))


class Profile(NamedTuple):
    """Where the time of a training step goes."""

    launching_ms: float
    """Until all kernels are launched."""
    step_ms: float
    kernels: int
    busy_ms: float
    """All kernels together."""
    longest: str
    longest_ms: float


def profiled(name: str, steps: int = 3) -> Profile:
    """A training step of one kind of layer, whose kernels are compiled."""
    step, totals = training_step(name, LAYER_SHAPE, CUDA), dict[str, float]()
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    launched = time.perf_counter() - start
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    events = [x for x in profile.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    for event in events:
        totals[event.name] = totals.get(event.name, 0.0) + event.device_time / 1e3
    longest = max(totals, key=lambda x: totals[x])
    each = (1e3 * launched / steps, 1e3 * took / steps)
    return Profile(*each, len(events), sum(totals.values()), longest[:60], totals[longest])


def captured(step: Run) -> Run:
    """The same kernels launched at once, without Python between them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles, and fills the optimizer's state
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def split(job: Job) -> list[Split]:
    """Eager time, time of a graph's replay, sum of kernels, launches and bytes, side by side."""
    graphs: dict[tuple[str, str], Run] = {}
    for key, (run, _) in job.runs.items():
        with contextlib.suppress(RuntimeError):  # of what asks the GPU for a number
            graphs[key] = captured(run)
    replays = {(f"{work} replay", name): run for (work, name), run in graphs.items()}
    medians = interleaved({key: run for key, (run, _) in job.runs.items()} | replays)
    found = []
    for (work, name), (run, units) in job.runs.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        device = torch.autograd.DeviceType.CUDA
        events = [x for x in profile.events() if x.device_type == device]
        kernels, eager = sum(x.device_time for x in events) / 1e3, medians[work, name]
        replay = medians.get((f"{work} replay", name), float("nan"))
        size = units * job.unit / 1e6
        rate = size / (kernels if math.isnan(replay) else replay)
        facts = (eager, replay, kernels, len(events), size, rate)
        found.append(Split(job.shape, *job.kinds, work, name, *facts))
    return found


def timed(job: Job) -> list[Row]:
    """Its rows."""
    medians = interleaved({key: run for key, (run, _) in job.runs.items()})
    rates = {key: job.runs[key][1] * job.unit / ms / 1e6 for key, ms in medians.items()}
    copy = max(rate for (work, _), rate in rates.items() if work == "copy")
    return [
        Row(job.shape, *job.kinds, *key, ms, rates[key], rates[key] / copy)
        for key, ms in medians.items()
    ]


def compiled(prepare: Callable[[], Job]) -> list[str]:
    """Run all of a job once, so that its kernels are on disk; says nothing."""
    with contextlib.suppress(Exception):  # said where it is timed
        for run, _ in prepare().runs.values():
            run()
        torch.cuda.synchronize()
    return []


def without_gradient(scan: Scan) -> Run:
    """The forward pass alone."""

    def run() -> object:
        with torch.no_grad():
            return scan[0]()

    return run


def with_gradient(scan: Scan) -> Run:
    """Forward and backward."""
    function, leaves = scan
    into = torch.randn_like(function())
    return lambda: torch.autograd.grad(function(), leaves, into)


def interleaved(runs: dict[tuple[str, str], Run]) -> dict[tuple[str, str], float]:
    """Median milliseconds of each, by device events, all of them in turn in every round."""
    for run in runs.values():
        for _ in range(2):  # compiles, allocates
            run()
    found: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(ROUNDS):
        pairs = {}
        for key, run in runs.items():
            if len(found[key]) < max(LEAST_ROUNDS, ROUNDS_MS / max(found[key], default=1.0)):
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
                run()
                last.record()
                pairs[key] = first, last
        torch.cuda.synchronize()
        for key, (first, last) in pairs.items():
            found[key].append(first.elapsed_time(last))
    return {key: statistics.median(times) for key, times in found.items()}


def _leaves(*tensors: Tensor, time_last: bool) -> tuple[Tensor, ...]:
    return tuple((x.mT if time_last else x).contiguous().clone().requires_grad_() for x in tensors)


def _accelerated_scan(a: Tensor, b: Tensor) -> Scan:
    from accelerated_scan.warp import scan

    gates_tokens = _leaves(a, b, time_last=True)
    return lambda: scan(*gates_tokens), gates_tokens


def _chunk_hgrn(a: Tensor, b: Tensor) -> Scan:
    from fla.ops.hgrn import chunk_hgrn

    x_g = _leaves(b, a.log(), time_last=False)
    return lambda: chunk_hgrn(*x_g)[0], x_g


def _mamba_ssm(a: Tensor, b: Tensor) -> Scan:
    """One state a channel: h_t = exp(-delta_t) h_{t-1} + delta_t u_t."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    u_delta, one = _leaves(b, -a.log(), time_last=True), torch.ones(b.shape[2], 1, device=b.device)
    return lambda: selective_scan_fn(*u_delta, -one, one, one), u_delta


def _gru(a: Tensor, b: Tensor) -> Scan:
    gru = torch.nn.GRU(b.shape[2], b.shape[2], batch_first=True, device=b.device)
    (x,) = _leaves(b, time_last=False)
    return lambda: gru(x)[0], (x,)


#: Other scans of the same recurrence, each given its inputs in the layout it likes best.
SCANS_OF_OTHERS: dict[str, Callable[[Tensor, Tensor], Scan]] = {
    "accelerated-scan": _accelerated_scan,
    "fla chunk_hgrn": _chunk_hgrn,
    "mamba-ssm": _mamba_ssm,
    "cuDNN GRU (for scale)": _gru,
}
PACKAGE_OF = {
    "accelerated-scan": "accelerated-scan",
    "fla chunk_hgrn": "fla-core",
    "mamba-ssm": "mamba-ssm",
}


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

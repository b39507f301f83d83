"""The speed of state-space layers on a CPU, beside their equations as people copy them.

Prints the median times of everyone, measured in turn in one run: a forward, a forward with all
gradients, a streaming step, and the peak of memory of a training step; writes
``benchmarks/results/conv-cpu.md``. The plain path makes
the whole kernel, from an array of modes times nodes or lengths, and convolves by FFT, with the
parameters of the same layer. The limits are what nobody can leave out: the three FFTs of a
convolution, and the matrix products of blocks of time. Plain paths are checked against the layers
before anything is timed. S5 stands beside s5-pytorch, if that is installed, and Mamba beside the
products of its four maps. One thread; freed memory is kept, as `linrnn train` does.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _layers import LAYERS as OTHERS
from _peak import OPTION, megabytes, print_peak
from _report import RESULTS, command_line, conditions, section, table, write_lines
from _timing import Candidate, in_turn, keep_memory
from linrnn.mixers import DSS, S4, S4D, S5, Mamba
from linrnn.ops.conv import dplr, siso
from sequential import Size, call

LAYERS: dict[str, Callable[..., Any]] = {"s4d": S4D, "s4": S4, "dss": DSS}
SIZES = (Size(8, 256, 256), Size(8, 1024, 256), Size(1, 16384, 256))
QUICK = (Size(2, 64, 8),)
PLAIN, S5_PEER = "plain path", "s5-pytorch"
MEMORY_LIMIT = 120  # seconds


def plain(layer: Any, x: Tensor) -> Tensor:
    """The layer's output from zero, its kernel by the equation."""
    system, time = layer.system(), x.shape[1]
    kernel = _cauchy(system, time) if isinstance(system, dplr.System) else _powers(system, time)
    spectrum = torch.fft.rfft(x, 2 * time, 1) * torch.fft.rfft(kernel.to(x.dtype).t(), 2 * time, 0)
    return torch.fft.irfft(spectrum, 2 * time, 1)[:, :time] + system.d * x


def _powers(system: siso.System, time: int) -> Tensor:
    """``2 Re sum_n C_n b_n exp(t log a_n)``, all powers at once, in complex64."""
    steps = torch.arange(time, device=system.a.device)
    log_a, weights = system.a.log().to(torch.complex64), (system.b * system.c).to(torch.complex64)
    return torch.einsum("hm,hmt->ht", weights, (log_a[..., None] * steps).exp()).real


def _cauchy(system: dplr.System, time: int) -> Tensor:
    """The generating function at the roots of unity, all fractions at once, in complex64."""
    power = torch.linalg.matrix_power(dplr.Transition.of(system).dense(), time)
    row = torch.view_as_real(system.c.conj_physical()).flatten(-2)
    cut = (row - (power @ row[..., None])[..., 0]).unflatten(-1, (-1, 2)).contiguous()
    c, P = torch.view_as_complex(cut).conj_physical() / 2, system.P[:, 0]
    z = torch.exp(-2j * torch.pi * torch.arange(time // 2 + 1, dtype=torch.float64) / time)
    half = 0.5 * system.dt[:, None, None]
    below = [((1 - z) - half * (1 + z) * lam[..., None]).to(torch.complex64)
             for lam in (system.lam, system.lam.conj())]  # fmt: skip

    def q(v: Tensor) -> Tensor:
        v = v.to(torch.complex64)[..., None]
        return (v / below[0]).sum(1) + (v.conj() / below[1]).sum(1)

    shift = (half[:, 0] * (1 + z)).to(torch.complex64)
    corrected = shift * q(c * P) * q(P.conj() * system.b) / (1 + shift * q(P.conj() * P))
    spectrum = 2 * half[:, 0].to(torch.complex64) * (q(c * system.b) - corrected)
    return torch.fft.irfft(spectrum, time)


class Plain(torch.nn.Module):
    """The plain path with the parameters of a layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """``(y,)``, from zero."""
        return (plain(self.layer, x),)


class Transforms(torch.nn.Module):
    """The FFTs of a convolution alone, with a kernel that is there."""

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        self.kernel = torch.nn.Parameter(kernel)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """``(y,)``: channels first, so that nothing is transposed."""
        time = x.shape[-1]
        spectrum = torch.fft.rfft(x, 2 * time) * torch.fft.rfft(self.kernel, 2 * time)
        return (torch.fft.irfft(spectrum, 2 * time)[..., :time],)


class Products(torch.nn.Module):
    """The matrix products of blocks alone, with matrices that are there."""

    def __init__(self, width: int, size: int, columns: int) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(width, size, size + columns))
        self.out = torch.nn.Parameter(torch.randn(width, columns, size))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """``(y,)`` of blocks, channels first."""
        size = x.shape[-1]
        left, y = (x @ self.first).split([self.out.shape[1], size], -1)
        return (torch.baddbmm(y, left, self.out),)


def everyone(name: str, size: Size, train: bool) -> dict[str, Candidate]:
    """Who computes a layer, and its limits."""
    torch.manual_seed(0)
    batch, time, width = size
    layers = {form: LAYERS[name](width, form=form) for form in ("scan", "conv")}
    layers["conv"].load_state_dict(layers["scan"].state_dict())
    x = torch.randn(*size)
    with torch.no_grad():
        expected = layers["scan"](x)[0]
        assert (plain(layers["scan"], x) - expected).abs().max() < 1e-2 * expected.abs().max()
    found = {form: call(layer, x.clone(), train, None) for form, layer in layers.items()}
    found[PLAIN] = call(Plain(layers["scan"]), x.clone(), train, None)
    kernel = torch.randn(width, time)
    found["FFTs alone"] = call(Transforms(kernel), torch.randn(batch, width, time), train, None)
    block = min(dplr.block(time) if name == "s4" else siso.BLOCK, time)
    columns = layers["scan"].modes * 2
    blocks = torch.randn(width, batch * time // block, block)
    found["products alone"] = call(Products(width, block, columns), blocks, train, None)
    return found


def beside_s5(size: Size, train: bool) -> dict[str, Candidate]:
    """S5, of us and of others, and S4D, whose modes are as many a channel as S5's are in all."""
    torch.manual_seed(0)
    peer, x = OTHERS[S5_PEER], torch.randn(*size)
    layers: dict[str, torch.nn.Module] = {"scan": S5(size.width), "s4d, scan": S4D(size.width)}
    found = {name: call(layer, x.clone(), train, None) for name, layer in layers.items()}
    if not peer.missing():
        theirs = torch.nn.Sequential(peer.build(size.width), Alone())
        found[S5_PEER] = call(theirs, x.clone(), train, None)
    return found


def beside_maps(size: Size, train: bool) -> dict[str, Candidate]:
    """Mamba, and the products of its four maps, which no implementation can leave out."""
    torch.manual_seed(0)
    layer, x = Mamba(size.width), torch.randn(*size)
    maps = [part for part in layer.modules() if isinstance(part, torch.nn.Linear)]
    assert len(maps) == 4
    weights = [part.weight.detach().clone().requires_grad_(train) for part in maps]
    inputs = [torch.randn(*size[:2], part.in_features).requires_grad_(train) for part in maps]
    into = [torch.randn(*size[:2], part.out_features) for part in maps]

    def products() -> Any:
        ys = [z @ w.mT for z, w in zip(inputs, weights, strict=True)]
        return torch.autograd.grad(ys, [*inputs, *weights], into) if train else ys

    return {"scan": call(layer, x, train, None), "products alone": Candidate(products)}


class Alone(torch.nn.Module):
    """An output as `call` expects it."""

    def forward(self, y: Tensor) -> tuple[Tensor]:
        """``(y,)``."""
        return (y,)


def measure(size: Size, options: argparse.Namespace) -> list[str]:
    """The table of a size."""
    rows = []
    groups = {name: partial(everyone, name, size) for name in options.only or LAYERS}
    groups |= {"s5": partial(beside_s5, size), "mamba": partial(beside_maps, size)}
    for name, group in groups.items():
        times = [
            in_turn(group(train), seconds=options.seconds, limit=options.limit)
            for train in (False, True)
        ]
        for who in times[0]:
            cells = [some[who].text() for some in times]
            ratios = [some[who].seconds / some["scan"].seconds for some in times]
            rows.append([name, who, *cells, *(f"{ratio:.2f}" for ratio in ratios)])
        print(f"{size.text()} {name}: done", file=sys.stderr, flush=True)
    head = ["layer", "who", "forward [ms]", "with gradients [ms]"]
    head += ["forward, times scan's", "with gradients, times scan's"]
    name = f"steps-{size.time}"
    return [f"## {size.text()}", "", *section(name, table(head, rows))]


def memory(size: Size, options: argparse.Namespace) -> list[str]:
    """The table of memory at a size."""
    rows = []
    for name in options.only or LAYERS:
        peaks = [
            megabytes(__file__, name, who, *size, limit=MEMORY_LIMIT)
            for who in ("scan", "conv", PLAIN)
        ]
        rows.append([name, *peaks])
    head = ["layer", "scan [MB]", "conv [MB]", f"{PLAIN} [MB]"]
    title = f"## What a training step adds to the peak, {size.text()}"
    return [title, "", *section("memory", table(head, rows))]


def measure_memory(name: str, who: str, size: Size) -> None:
    """Print the bytes of one training step."""
    torch.manual_seed(0)
    layer = LAYERS[name](size.width, form="scan" if who == PLAIN else who)
    module = Plain(layer) if who == PLAIN else layer
    print_peak(
        *(
            call(module, torch.randn(*some), True, None).call
            for some in (Size(1, min(64, size.time), size.width), size)
        )
    )


def steps(width: int, options: argparse.Namespace) -> list[str]:
    """The table of streaming steps of one sequence, by the operators they run as."""
    torch.manual_seed(0)
    calls = {}
    for name in options.only or LAYERS:
        layer, x = LAYERS[name](width), torch.randn(1, width)
        calls[name] = Candidate(_step(layer, x, layer.init_state(1)))
    found = in_turn(calls, seconds=options.seconds, limit=options.limit)
    rows = [[name, f"{1e6 * time.seconds:.0f}"] for name, time in found.items()]
    head = ["layer", "step [µs]"]
    return [f"## A step, {width} channels", "", *section("step", table(head, rows))]


def _step(layer: Any, x: Tensor, state: Tensor) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            layer.step(x, state)

    return call


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed at for each (1)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a call may take (60)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--only", nargs="+", choices=LAYERS, help="these layers alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "conv-cpu.md")
    parser.add_argument(OPTION, nargs=5, metavar=("LAYER", "WHO", "BATCH", "TIME", "CHANNELS"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        name, who, *size = options.memory_of
        measure_memory(name, who, Size(*map(int, size)))
        return
    keep_memory()
    sizes, lines = QUICK if options.quick else SIZES, []
    for size in sizes:
        lines += measure(size, options)
    lines += steps(8 if options.quick else 256, options) + memory(sizes[-1], options)
    head = ["# State-space layers on a CPU", ""]
    installed = ["torch", *([] if OTHERS[S5_PEER].missing() else [S5_PEER])]
    write_lines(options.output, [*head, *conditions(command_line(), installed), "", *lines])
    print("\n".join(lines))


if __name__ == "__main__":
    main()

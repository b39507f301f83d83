"""Print what every op launches on a GPU and what Python takes for it; no GPU is needed.

Kernels compile for an H100 and do not run: launches, operators of PyTorch that would be kernels,
microseconds of Python on this processor, and of each kernel the registers of a thread, spills, the
widest load in bits, and barriers in its innermost loop. A launch of an H100 takes 2 to 4
microseconds besides. ``--code`` reads machine code, seconds a kernel; a first run compiles all,
minutes. ``--layers`` prints instead what each parallel mixer launches at (8, 1024, 256), most
first: kernels of Triton, matrix products, and all other operators, which could be fewer. It
compiles nothing, and takes seconds to minutes a layer.
"""

import argparse
import re
import sys
import warnings
from typing import NamedTuple

import torch

import _gpu_calls as calls
import _gpu_offline as offline
from linrnn import mixers


def main() -> int:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    arguments.add_argument("--code", action="store_true", help="and what the machine code shows")
    arguments.add_argument("--layers", action="store_true", help="launches of parallel mixers")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    offline.pretend()
    if asked.layers:
        return print_layers(asked.only)
    print("| call | kernels | operators | Python, us | both: kernels | operators | Python, us |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    kernels: dict[tuple[str, str, int], offline.Launch] = {}
    for name, make in calls.CALLS.items():
        if not asked.only.search(name):
            continue
        call, cells = make(), []
        for run in (calls.forward(call), calls.both(call)):
            launched = offline.launched(run)
            kernels |= {(name, x.name, hash(x.cubin)): x for x in launched}
            operators = sum(offline.operators(run).values())
            cells += [f"{len(launched)}", f"{operators}", f"{offline.host_us(run):.0f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if asked.code:
        print("\n| call | kernel | warps | registers | spills | widest load | barriers |")
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
        for (name, kernel, _), launch in kernels.items():
            code = offline.code(launch.cubin)
            row = [code.registers, code.spills, code.widest, code.loop_barriers]
            said = " | ".join(map(str, row))
            print(f"| {name} | {kernel} | {launch.warps} | {said} |", flush=True)
    return 0


LAYER_SHAPE = (8, 1024, 256)
PRODUCTS = re.compile(
    r"^(addmm|baddbmm|bmm|mm|matmul|linear|einsum|dot|mv|_?fft_\w+|.*convolution.*)$"
)


class Counts(NamedTuple):
    """Launches of a call."""

    kernels: int
    products: int
    others: int


def of_layer(name: str) -> tuple[Counts, Counts]:
    """Launches of a mixer with its default options, forward and both ways."""
    call, counts = calls.layer(name, LAYER_SHAPE), []
    for run in (calls.forward(call), calls.both(call)):
        offline.LAUNCHES.clear()
        operators = offline.operators(run)
        products = sum(n for x, n in operators.items() if PRODUCTS.match(x))
        others = sum(operators.values()) - products
        counts.append(Counts(len(offline.LAUNCHES), products, others))
    return counts[0], counts[1]


def print_layers(only: re.Pattern[str]) -> int:
    """Print the launches of every parallel mixer, each as it is counted, then all in order."""
    offline.launch_uncompiled()
    names = [x for x in mixers.names() if mixers.load(x).cost == "parallel" and only.search(x)]
    rows = []
    for name in names:
        rows.append((name, *of_layer(name)))
        sys.stderr.write(f"{name}\n")
    print("| mixer | forward | kernels, products, others | both | kernels, products, others |")
    print("| --- | ---: | --- | ---: | --- |")
    for name, *ways in sorted(rows, key=lambda row: -sum(row[2])):
        cells = [f"{sum(x)} | {x.kernels}, {x.products}, {x.others}" for x in ways]
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

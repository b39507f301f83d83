"""Print what every op launches on a GPU and what Python takes for it; no GPU is needed.

Kernels compile for an H100 and do not run: launches, operators of PyTorch that would be kernels,
microseconds of Python on this processor, and of each kernel the registers of a thread, spills, the
widest load in bits, and barriers in its innermost loop. A launch of an H100 takes 2 to 4
microseconds besides. ``--code`` reads machine code, seconds a kernel; a first run compiles all,
minutes.
"""

import argparse
import re
import sys
import warnings

import torch

import _gpu_calls as calls
import _gpu_offline as offline


def main() -> int:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX")
    arguments.add_argument("--code", action="store_true", help="and what the machine code shows")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    offline.pretend()
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


if __name__ == "__main__":
    sys.exit(main())

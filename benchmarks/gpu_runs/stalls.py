"""Stall reasons of slow kernels by Nsight Compute: one launch each, the clock unlocked.

Where `ncu` is missing or may not count, it says so and the script ends with its exit code.
"""

import sys

from _script import GPU, main

SECTIONS = ("SpeedOfLight", "WarpStateStats", "MemoryWorkloadAnalysis")
CALLS = r"\(8, 2048, 2048\)|complex64 constant|sLSTM|\bGRU|outer|selective|causal_conv"
CHECKED = "^check of (linear_scan|selective_scan|outer_scan|causal_conv)"
NCU = (
    # of each kernel the second time that it runs
    *("ncu", "--clock-control", "none", "--kernel-id", "::regex:run:2"),
    *(x for section in SECTIONS for x in ("--section", section)),
    sys.executable,
)
COMMANDS = (
    (*GPU, "--no-times", "--seconds", "60", "--only", CHECKED),
    (*NCU, *GPU, "--no-checks", "--seconds", "180", "--only", CALLS),
)

if __name__ == "__main__":
    sys.exit(main(__doc__, COMMANDS))

"""Which calls wait for Python: eager time, graph replay, sum of kernels and launches of each.

Numbers of the ops are checked before, for a minute.
"""

import sys

from _script import GPU, main

CHECKED = "^check of (linear_scan|gated_scan|causal_conv|outer_scan|delta_scan|selective_scan)"
TIMED = r"2048, 2048\)|8192, 512\)|64, 1024|GRU|outer|delta|selective|gated_scan|causal_conv"
COMMANDS = (
    (*GPU, "--no-times", "--seconds", "100", "--only", CHECKED),
    (*GPU, "--no-checks", "--graph", "--seconds", "200", "--only", TIMED),
)

if __name__ == "__main__":
    sys.exit(main(__doc__, COMMANDS))

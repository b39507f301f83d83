"""Time of a training step for all timed layers: eager, in a CUDA graph, without and with TF32.

Layers are checked before, for a minute and a half. Earlier steps are in `benchmarks/results/`.
"""

import sys

from _script import GPU, main

LAYERS = r"^\(32, 1024, 256\)"
CHECKED = "^check of .*(lru|mingru|gla|mamba|delta|s5|lstm|rwkv|s4|kda|hgrn|retnet|gru)"
COMMANDS = (
    (*GPU, "--no-times", "--seconds", "90", "--only", CHECKED),
    (*GPU, "--no-checks", "--graph", "--seconds", "130", "--only", LAYERS),
    (*GPU, "--no-checks", "--graph", "--tf32", "--seconds", "130", "--only", LAYERS),
)

if __name__ == "__main__":
    sys.exit(main(__doc__, COMMANDS))

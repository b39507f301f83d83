"""Check the numbers of what no GPU has computed yet: some ops, and layers whose kernels changed."""

import sys

from _script import GPU, main

#: Layouts have scans by tiles and tiles that hand over; then come these scans at full size.
OPS = r"layouts|gated_scan|log_linear|selective|causal|fft|matrix_scan|\(1, 65536|\(8, 2048"
LAYERS = (
    "sLSTM|minGRU|SRU|IndRNN|oscillator|delta|kda|rwkv7|mlstm|gla|slstm|rsa|unicornn|mingru|minlstm"
    "|mamba"
)
COMMANDS = (
    (*GPU, "--no-times", "--seconds", "200", "--only", OPS),
    (*GPU, "--no-times", "--seconds", "150", "--only", LAYERS),
)

if __name__ == "__main__":
    sys.exit(main(__doc__, COMMANDS))

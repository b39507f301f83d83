"""Real training at the size of the paper, for minutes: LRU on psMNIST, and others beside it.

Six layers of 256 channels read 784 pixels. The arms in turn: LRU in float32, LRU with products in
bfloat16, S4D, minGRU. Each is interrupted when its time is over, and its run folder has the curve.
`LINRNN_DATA` must hold MNIST.
"""

import sys

from _script import GPU, Limited, main

ARMS = (
    ("lru", "32-true", 150.0),
    ("lru", "bf16-mixed", 100.0),
    ("s4d", "32-true", 60.0),
    ("mingru", "32-true", 60.0),
)
CHECKS = (*GPU, "--no-times", "--seconds", "45", "--only", "^check of .*(lru|s4d|mingru)")


def arm(mixer: str, precision: str, seconds: float) -> Limited:
    """The command that trains one arm, and how long it may take."""
    model = ("--model.d-model", "256", "--model.n-layers", "6")
    train = ("--train.batch-size", "128", "--train.epochs", "30", "--train.device", "gpu")
    out = ("--out", f"{{to}}/psmnist-{mixer}-{precision}")
    options = (*model, *train, "--train.precision", precision, *out)
    return Limited(
        ("-m", "linrnn", "train", "psmnist", "--mixer", mixer, "--task.no-rows", *options), seconds
    )


COMMANDS = (CHECKS, *(arm(*choice) for choice in ARMS))

if __name__ == "__main__":
    sys.exit(main(__doc__, COMMANDS))

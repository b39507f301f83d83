"""Test the weights of a run again, from its folder."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from linrnn.cli._progress import metric_text


def main(argv: Sequence[str]) -> int:
    """Print the test metric of a run."""
    parser = argparse.ArgumentParser(prog="linrnn eval", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    args = parser.parse_args(argv)
    from linrnn.train import evaluate

    score, config = evaluate(args.run)
    value = metric_text(score.metric_name, score.metric)
    sys.stdout.write(
        f"test {value} on {score.examples:,} sequences, loss {score.loss:.4g} "
        f"({config.task}, {config.mixer}, seed {config.seed})\n"
    )
    return 0

"""Answer for each row of a file with the weights of a run."""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from linrnn.errors import DataError


def main(argv: Sequence[str]) -> int:
    """Print index, class and probability of each row, or write them to a file."""
    parser = argparse.ArgumentParser(
        prog="linrnn predict",
        description=__doc__,
        epilog="FILE is a table of numbers, one sequence a row: .npy, .npz, .csv or .txt. "
        "For the task digits a row is 64 pixels, 0 to 16.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="the rows to answer for")
    parser.add_argument("--out", type=Path, metavar="CSV", help="write here, not to the terminal")
    args = parser.parse_args(argv)
    from linrnn.train import predict

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("index", "class", "probability"))
    answers = predict(args.run, args.file)
    writer.writerows((a.index, a.label, f"{a.probability:.4f}") for a in answers)
    if args.out is None:
        sys.stdout.write(text.getvalue())
        return 0
    try:
        args.out.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{args.out}: the file must be writable, got: {error}.") from error
    sys.stdout.write(f"{len(answers):,} predictions are in {args.out}\n")
    return 0

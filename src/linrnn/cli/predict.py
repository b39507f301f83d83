"""Answer for each row of a file with the weights of a run."""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linrnn.errors import DataError

if TYPE_CHECKING:
    from linrnn.train import Estimate, Prediction

EPILOG = """FILE holds the sequences to answer for, without what is asked; where there are several,
the answers say which they are for:
  most tasks      a table of numbers, one sequence a row: .npy, .npz, .csv or .txt
                  (for digits a row is 64 pixels, 0 to 16; token ids are integers)
  table           what the run was trained on, labels left out or not read: .csv rows, .npz with
                  x and perhaps lengths, .ts, or a table with a step a row; sequences may differ
                  in length
  forecast, ett   a .csv or .parquet like the one of the training; what follows its last step is
                  forecast
  imdb            text, a review a line
  images          an image, or a folder of images
  sounds, speech  a .wav; for sounds a folder of them as well

The answer is a class and its probability or, in regression, numbers in the units of the data; where
there is one a step, the steps are counted from 0."""


def main(argv: Sequence[str]) -> int:
    """Print the answers as CSV, or write them to a file."""
    parser = argparse.ArgumentParser(
        prog="linrnn predict",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("file", type=Path, metavar="FILE", nargs="+", help="the rows to answer for")
    parser.add_argument("--out", type=Path, metavar="CSV", help="write here, not to the terminal")
    args = parser.parse_args(argv)
    from linrnn.train import predict

    answers = predict(args.run, args.file if len(args.file) > 1 else args.file[0])
    text = _table(answers)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{args.out}: the file must be writable, got: {error}.") from error
    sys.stdout.write(f"{len(answers):,} predictions are in {args.out}\n")
    return 0


def _table(answers: "Sequence[Prediction | Estimate]") -> str:
    """One line for each answer, under a line of names."""
    from linrnn.train import Estimate

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for i, answer in enumerate(answers):
        if isinstance(answer, Estimate):
            cells = {name: f"{value:.6g}" for name, value in answer.values.items()}
        else:
            cells = {"class": answer.label, "probability": f"{answer.probability:.4f}"}
        at = {"index": answer.index, "id": answer.id, "step": answer.step}
        if isinstance(answer, Estimate):
            at["time"] = answer.time
        place = {name: value for name, value in at.items() if value is not None}
        if i == 0:
            writer.writerow([*place, *cells])
        writer.writerow([*place.values(), *cells.values()])
    return text.getvalue()

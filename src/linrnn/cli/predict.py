"""Predict for each row of a file, each image or each sound, with a trained model."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._options.numbers import counted
from linrnn.cli._line.output import MANNER, answer, json_text, note, row
from linrnn.cli._line.parser import Parser
from linrnn.cli._verbs.panel import predictions
from linrnn.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from linrnn.train import Estimate, Prediction

EPILOG = """\
FILE has the sequences, without targets. For several files, each prediction names its file.
  most tasks      numbers, one sequence per row: .npy, .npz, .csv or .txt
                  (for digits a row is 64 pixels, 0 to 16; token ids are integers)
  table           the format of the training data: .csv rows, .npz with x and optional lengths,
                  .ts, or a table with one step per row; labels may be missing and are not read;
                  sequences may have other lengths
  forecast, ett   a .csv or .parquet like the training file; the steps after its last one are
                  forecast; for a run of many series, rows after the last value of a series have
                  the columns known in advance
  imdb            text, one review per line
  images          an image, or a folder of images
  sounds, speech  a .wav; for sounds also a folder of them

A prediction is a class and its probability or, in regression, numbers in the units of the data. If
there is one for each step, steps count from 0."""


_FILE = "one or several files"
_OUT = "write to FILE instead of the terminal"


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("predict", __doc__, epilog=EPILOG)
    parser.add("run", type=Path, metavar="RUN", help="the run folder", kind="folder")
    parser.add("file", type=Path, metavar="FILE", nargs="+", help=_FILE, kind="file")
    parser.add("--out", type=Path, metavar="FILE", help=_OUT, kind="file")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the answers as CSV or JSON, or write them to a file."""
    args = parser().parse_args(argv)
    from linrnn.estimators.panel_run import is_panel

    if is_panel(args.run):
        text, record, count = predictions(args.run, _one(args.file))
    else:
        from linrnn.train import predict

        answers = predict(args.run, args.file if len(args.file) > 1 else args.file[0])
        text, record, count = _table(answers), _record(args.run, answers), len(answers)
    if args.out is None:
        row(text)
        answer(lambda: record)
        return 0
    if MANNER.json:
        text = json_text(record) + "\n"
    try:
        args.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{args.out}: the file must be writable, got: {error}.") from error
    note(f"{args.out} holds {counted(count, 'prediction')}\n")
    return 0


def _one(files: Sequence[Path]) -> Path:
    """The file, which is one where many series stand in it."""
    if len(files) > 1:
        raise ArgumentError(
            f"predict: FILE must be one for a forecaster of many series, got {len(files)}. Put all "
            "rows into one table."
        )
    return files[0]


def _record(run: Path, answers: "Sequence[Prediction | Estimate]") -> dict[str, Any]:
    """The answers for JSON, without empty fields."""
    shown = [{k: v for k, v in asdict(one).items() if v is not None} for one in answers]
    for one in shown:
        if "label" in one:
            one["class"] = one.pop("label")
    return {"run": run, "predictions": shown}


def _table(answers: "Sequence[Prediction | Estimate]") -> str:
    """One line for each answer, under a line of names."""
    from linrnn.train import Estimate

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for i, one in enumerate(answers):
        if isinstance(one, Estimate):
            cells = {name: f"{value:.6g}" for name, value in one.values.items()}
        else:
            cells = {"class": one.label, "probability": f"{one.probability:.4f}"}
        at = {"index": one.index, "id": one.id, "step": one.step}
        if isinstance(one, Estimate):
            at["time"] = one.time
        place = {name: value for name, value in at.items() if value is not None}
        if i == 0:
            writer.writerow([*place, *cells])
        writer.writerow([*place.values(), *cells.values()])
    return text.getvalue()

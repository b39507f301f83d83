"""Write a trained model to an ONNX file: its streaming step, or one that reads sequences."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str]) -> int:
    """Export a run's model and say what the file takes and gives."""
    parser = argparse.ArgumentParser(
        prog="linrnn export",
        description=__doc__,
        epilog="The graph takes one time step, or with --sequence a sequence of any length, and "
        "the state, and gives the output and the next state; names, shapes and the initial state "
        "are in the file's metadata. examples/onnx_stream.py runs a step with onnxruntime and "
        "NumPy alone.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to write, such as a.onnx")
    parser.add_argument(
        "--sequence",
        action="store_true",
        help="a graph that reads whole sequences, of any length and number",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="streams in a step, for good (any number)"
    )
    parser.add_argument(
        "--opset", type=int, metavar="N", help="version of ONNX's operators, 18 to 23 (20)"
    )
    args = parser.parse_args(argv)
    if args.sequence and args.batch_size is not None:
        parser.error("--batch-size is for a step: a graph with --sequence takes any number")
    from linrnn.interop.onnx import export_sequence, export_step, metadata
    from linrnn.train import load_model
    from linrnn.train._scales import described

    model, task, config = load_model(args.run)
    tokenizer = getattr(task, "tokenizer", None)
    about = None if tokenizer is None else json.loads(tokenizer.to_json())
    options: dict[str, Any] = {"tokenizer": about, "task": described(config.task, task, model)}
    options |= {} if args.opset is None else {"opset": args.opset}
    if args.sequence:
        export_sequence(model, args.file, **options)
    else:
        export_step(model, args.file, batch_size=args.batch_size, **options)
    record = metadata(args.file)
    parts = [record["input"], *record["states"]]
    taken = ", ".join(f"{part['name']} {_sizes(part)}" for part in parts)
    sys.stdout.write(f"{args.file}: takes {taken}; gives y {_sizes(record['output'])}\n")
    return 0


def _sizes(part: Mapping[str, Any]) -> str:
    return f"({', '.join(map(str, part['shape']))})"

"""Write the streaming step of a trained model to an ONNX file."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Export a run's model and say what the file takes and gives."""
    parser = argparse.ArgumentParser(
        prog="linrnn export",
        description=__doc__,
        epilog="The graph takes one time step and the state, and gives the output and the next "
        "state; names, shapes and the initial state are in the file's metadata. "
        "examples/onnx_stream.py runs one with onnxruntime and NumPy alone.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to write, such as a.onnx")
    parser.add_argument(
        "--batch-size", type=int, default=1, metavar="N", help="streams in a step (1)"
    )
    args = parser.parse_args(argv)
    from linrnn.interop.onnx import export_step, metadata
    from linrnn.train import load_model

    model, task, _ = load_model(args.run)
    tokenizer = getattr(task, "tokenizer", None)
    about = None if tokenizer is None else json.loads(tokenizer.to_json())
    export_step(model, args.file, batch_size=args.batch_size, tokenizer=about)
    record = metadata(args.file)
    parts = [record["input"], *record["states"]]
    taken = ", ".join(f"{part['name']} {tuple(part['shape'])}" for part in parts)
    sys.stdout.write(f"{args.file}: takes {taken}; gives y {tuple(record['output']['shape'])}\n")
    return 0

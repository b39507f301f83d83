"""Write a trained model to an ONNX file: its streaming step, or one that reads sequences."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linrnn.cli._line.output import answer, joined, note, row
from linrnn.cli._line.parser import Parser


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser(
        "export",
        __doc__,
        wrap=True,
        epilog="The graph takes the state and one time step, or with --sequence a sequence of any "
        "length. It returns the output and the next state. If the run was trained on uneven times, "
        "and its layers read them, the graph also takes dt, the time since the previous step. The "
        "file's metadata have names, shapes and the initial state. examples/onnx_stream.py runs a "
        "step with onnxruntime and NumPy alone.",
    )
    parser.add("run", type=Path, metavar="RUN", help="the run folder", kind="folder")
    parser.add("file", type=Path, metavar="FILE", help=_FILE, kind="file")
    parser.add("--sequence", action="store_true", help=_SEQUENCE)
    parser.add("--batch-size", type=int, metavar="N", help=_BATCH_SIZE)
    parser.add("--opset", type=int, metavar="N", help=_OPSET)
    return parser


_FILE = "the file to write, such as a.onnx"
_SEQUENCE = "write a graph that reads any number of whole sequences of any length"
_BATCH_SIZE = "fixed number of streams in a step (any number)"
_OPSET = "version of ONNX's operators, 18 to 23 (20)"


def main(argv: Sequence[str]) -> int:
    """Export a run's model and say what the file takes and gives."""
    args = parser().parse_args(argv)
    if args.sequence and args.batch_size is not None:
        parser().error("--batch-size is for a step: a graph with --sequence takes any number")
    from linrnn.frozen import LinearModel
    from linrnn.interop.onnx import export_sequence, export_step, inputs_of, metadata
    from linrnn.train.model import load_reader, with_layers
    from linrnn.train.scales import described
    from linrnn.train.suits import reads_dt

    reader, task, config = load_reader(args.run)
    model = reader if isinstance(reader, LinearModel) else with_layers(reader, args.run)
    if config.train.precision == "64-true" and not isinstance(model, LinearModel):
        note("the weights are rounded to float32, since onnxruntime lacks operators of float64\n")
        model = model.float()
    tokenizer = task.tokenizer
    about = None if tokenizer is None else json.loads(tokenizer.to_json())
    times = reads_dt(task, model)
    facts = described(config.task, task, model, times=times)
    options: dict[str, Any] = {"times": times, "tokenizer": about, "task": facts}
    options |= {} if args.opset is None else {"opset": args.opset}
    if args.sequence:
        export_sequence(model, args.file, **options)
    else:
        export_step(model, args.file, batch_size=args.batch_size, **options)
    record = metadata(args.file)
    parts = inputs_of(record)
    inputs = ", ".join(f"{part['name']} {_sizes(part)}" for part in parts)
    row(f"{args.file}: takes {inputs}; gives y {_sizes(record['output'])}\n")
    sizes = {name: record[name] for name in ("input", "times", "states", "output")}
    answer(lambda: joined({"file": args.file}, sizes))
    return 0


def _sizes(part: Mapping[str, Any]) -> str:
    return f"({', '.join(map(str, part['shape']))})"

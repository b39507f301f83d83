"""Run an exported step on a stream with onnxruntime and NumPy alone.

    linrnn export RUN step.onnx
    python examples/onnx_stream.py step.onnx < numbers.txt

Reads one time step a line from standard input, numbers with commas or blanks between them (a
model of text: one token id a line; a model that reads times: in front of them the time since the
step before, in the unit of the data), and prints the outputs for it. The state stays here: the
graph takes it and gives it back.
"""

import json
import sys

import numpy as np
import onnxruntime


class Stream:
    """One stream through an exported step, from its beginning."""

    def __init__(self, path: str) -> None:
        self.graph = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        about = json.loads(self.graph.get_modelmeta().custom_metadata_map["linrnn"])
        self.input, self.parts = about["input"], about["states"]
        self.times = about.get("times")
        self.unit = (about["task"] or {}).get("time_unit", 1.0)
        self.names = [part["name"] for part in self.parts]
        self.state = [
            np.broadcast_to(np.array(part["initial"], part["dtype"]), one_row(part["shape"]))
            for part in self.parts
        ]

    def step(self, x: np.ndarray, dt: float = 1.0) -> np.ndarray:
        """The model's output for one more time step, so long after the one before."""
        inputs = {self.input["name"]: np.asarray(x, self.input["dtype"])}
        if self.times:
            shape = one_row(self.times["shape"])
            inputs["dt"] = np.full(shape, dt / self.unit, self.times["dtype"])
        inputs |= dict(zip(self.names, self.state, strict=True))
        y, *self.state = self.graph.run(None, inputs)
        return y


def one_row(shape: list[int | str]) -> list[int]:
    """A shape with one stream where there may be any number."""
    return [1 if size == "batch" else size for size in shape]


def main() -> None:
    """Print the outputs of every line as it comes."""
    stream = Stream(sys.argv[1])
    shape, dtype = one_row(stream.input["shape"]), stream.input["dtype"]
    for line in sys.stdin:
        words = line.replace(",", " ").split()
        dt = float(words.pop(0)) if stream.times else 1.0
        x = np.array(words, dtype).reshape(shape)
        print(*(f"{y:.6g}" for y in stream.step(x, dt).ravel()), flush=True)


if __name__ == "__main__":
    main()

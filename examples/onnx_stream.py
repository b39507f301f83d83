"""Run an exported step on a stream with onnxruntime and NumPy alone.

    linrnn export RUN step.onnx
    python examples/onnx_stream.py step.onnx < numbers.txt

Reads one time step a line from standard input, numbers with commas or blanks between them (a
model of text: one token id a line), and prints the outputs for it. The state stays here: the
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
        self.names = [part["name"] for part in self.parts]
        self.state = [
            np.broadcast_to(np.array(part["initial"], part["dtype"]), one_row(part["shape"]))
            for part in self.parts
        ]

    def step(self, x: np.ndarray) -> np.ndarray:
        """The model's output for one more time step."""
        inputs = {self.input["name"]: np.asarray(x, self.input["dtype"])}
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
        x = np.array(line.replace(",", " ").split(), dtype).reshape(shape)
        print(*(f"{y:.6g}" for y in stream.step(x).ravel()), flush=True)


if __name__ == "__main__":
    main()

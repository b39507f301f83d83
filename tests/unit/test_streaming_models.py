"""Whatever reads step by step says what it takes, of anything else that it is given."""

import pytest
import torch
from torch import nn

import linrnn
from linrnn import learn
from linrnn.errors import ArgumentTypeError
from linrnn.generation import TokenStream, generate, generate_batch
from linrnn.interop.onnx import export_sequence, export_step, step_graph
from linrnn.streaming import Session, Sessions

pytestmark = pytest.mark.unchecked


def learning(model):
    parameters = [nn.Parameter(torch.zeros(1))]
    adam = torch.optim.Adam(parameters)
    return learn.LearningSession(model, learn.build("diagonal_rtrl"), nn.functional.mse_loss, adam)


READERS = {
    "Session": Session,
    "Sessions": Sessions,
    "LearningSession": learning,
    "TokenStream": TokenStream,
    "generate": lambda model: next(generate(model, [1], 1)),
    "generate_batch": lambda model: next(generate_batch(model, [[1]], 1)),
    "export_step": lambda model: export_step(model, "never.onnx"),
    "export_sequence": lambda model: export_sequence(model, "never.onnx"),
    "step_graph": step_graph,
}
OTHERS = {
    "RNN": linrnn.RNN("lru", 3, 4),
    "GRU": nn.GRU(3, 4),
    "Linear": nn.Linear(3, 4),
    "str": "lru",
    "NoneType": None,
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_model_to_be_streamed_is_named(reader, name, monkeypatch, tmp_path):
    if reader.startswith("export"):
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentTypeError, match=rf"model must be a linrnn.* got an? {name}\."):
        READERS[reader](OTHERS[name])
    assert not list(tmp_path.iterdir())

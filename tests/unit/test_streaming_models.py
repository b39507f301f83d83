"""Whatever reads step by step says what it takes, of anything else that it is given."""

import inspect

import pytest
import torch
from torch import nn

import linrnn
from linrnn import learn, mixers
from linrnn.errors import ArgumentError, ArgumentTypeError, LinrnnError
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


def bounded(name, option):
    """Whether the state has a constant size where this option is a small number."""
    try:
        return "constant_memory" not in mixers.build(name, 8, {option: 4}).declared
    except LinrnnError:
        return False


@pytest.mark.parametrize(
    "name", [n for n in mixers.names() if "constant_memory" in mixers.load(n).declared]
)
def test_what_grows_is_told_an_option_that_it_has(name):
    """The option is the only one that bounds its state; without one, another layer is advised."""
    layer = mixers.build(name, 8, mixers.load(name).in_laws or {}).eval()
    with pytest.raises(ArgumentError) as caught:
        Session(layer)
    text = str(caught.value)
    options = [o for o in inspect.signature(type(layer)).parameters if bounded(name, o)]
    assert len(options) <= 1
    if not options:
        assert "Choose another" in text
        assert "window" not in text
        return
    assert f"Give it a {options[0]}, " in text
    assert f"without a {options[0]} " in text

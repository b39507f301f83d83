"""Models compiled ahead of time by AOTInductor, as the page "Without PyTorch" shows it."""

import shutil

import pytest
import torch

from linrnn import SequenceModel
from linrnn.interop.onnx import step_graph
from linrnn.state import flatten

pytestmark = [
    pytest.mark.slow,
    pytest.mark.unchecked,
    pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler"),
]
CLOSE = 1e-5  # float32, outputs near 1


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_layers": 1, "pool": "none", "norm": "layer"}
    return SequenceModel(3, 2, mixer="mingru", **sizes).eval()


def compiled(program, path):
    made = torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return torch._inductor.aoti_load_package(made)


def test_a_compiled_step_is_that_of_the_model_at_any_batch(model, tmp_path):
    graph, inputs = step_graph(model, None)
    rows = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    program = torch.export.export(graph, inputs, dynamic_shapes=rows)
    step = compiled(program, tmp_path / "step.pt2")
    for batch in (1, 5):
        state = model.init_state(batch)
        parts = list(flatten(state).values())
        for x in torch.randn(4, batch, 3):
            with torch.no_grad():
                expected, state = model.step(x, state)
            y, *parts = step(x, *parts)
            torch.testing.assert_close(y, expected, rtol=0, atol=CLOSE)


def test_a_compiled_sequence_is_that_of_the_model_at_any_size(model, tmp_path):
    sizes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    with torch.no_grad():
        program = torch.export.export(model, (torch.zeros(2, 9, 3),), dynamic_shapes=sizes)
        run = compiled(program, tmp_path / "model.pt2")
        for batch, time in ((1, 5), (3, 70)):
            x = torch.randn(batch, time, 3)
            expected, state = model(x)
            y, after = run(x)
            torch.testing.assert_close(y, expected, rtol=0, atol=CLOSE)
            for got, h in zip(flatten(after).values(), flatten(state).values(), strict=True):
                torch.testing.assert_close(got, h, rtol=0, atol=CLOSE)

"""A look at every part of an installation, with nothing installed but linrnn and pytest.

A release and every wheel are tested with it, and it lies in the source distribution: unpack that
and run `pytest tests/smoke` where linrnn is installed. It imports whatever linrnn is found first.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch

import linrnn
from linrnn import SequenceModel, mixers
from linrnn.ops import explain, linear_scan


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "linrnn", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def has_kernels() -> bool:
    try:
        files = distribution("linrnn").files or []
    except PackageNotFoundError:
        return False
    return any("_native/kernels" in str(file) for file in files)


def test_version_is_that_of_the_metadata():
    assert linrnn.__version__ == distribution("linrnn").version
    assert run("--version").stdout.split()[-1] == linrnn.__version__


def test_kernels_of_the_wheel_are_used():
    if not has_kernels():
        pytest.skip("this wheel has no native kernels")
    a, b = torch.rand(2, 50, 4), torch.randn(2, 50, 4)
    assert str(explain(linear_scan, a, b)).startswith("cpu:")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_scan_is_the_loop(dtype):
    generator = torch.Generator().manual_seed(0)
    a = 0.9 * torch.rand(3, 200, 5, generator=generator).to(dtype)
    b = torch.randn(3, 200, 5, generator=generator, dtype=dtype)
    h, last = linear_scan(a, b)
    state, states = torch.zeros(3, 5, dtype=dtype), []
    for t in range(200):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    torch.testing.assert_close(h, torch.stack(states, 1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(last, state, atol=1e-4, rtol=1e-4)


@pytest.mark.sampled  # only beside the other tests, of which `forms_agree` has steps of every mixer
@pytest.mark.parametrize("name", mixers.names())
def test_steps_are_the_sequence(name):
    torch.manual_seed(0)
    mixer = mixers.build(name, 8).eval()
    x = torch.randn(2, 12, 8)
    with torch.no_grad():
        y, _ = mixer(x)
        state, outputs = mixer.init_state(2), []
        for t in range(12):
            y_t, state = mixer.step(x[:, t], state)
            outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y, atol=1e-3, rtol=1e-3)


def test_a_model_learns():
    torch.manual_seed(0)
    model = SequenceModel(1, 2, mixer="lru", d_model=16, n_layers=2)
    x = torch.randn(64, 40, 1)
    answers = (x.mean((1, 2)) > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        y, _ = model(x)
        losses.append(torch.nn.functional.cross_entropy(y, answers))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", ["lru", "mingru", "mamba", "rwkv4"])
def test_a_stream_of_a_model_is_its_sequence(name):
    torch.manual_seed(0)
    model = SequenceModel(3, 2, mixer=name, d_model=16, n_layers=2, pool="none").eval()
    x = torch.randn(1, 12, 3)
    with torch.no_grad():
        y, _ = model(x)
        state, outputs = model.init_state(1), []
        for t in range(12):
            y_t, state = model.step(x[:, t], state)
            outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y, atol=1e-3, rtol=1e-3)


def test_command_line_answers():
    assert "lru" in run("list", "mixers").stdout
    report = run("doctor")
    assert report.returncode == 0, report.stderr
    assert torch.__version__.partition("+")[0] in report.stdout

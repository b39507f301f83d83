"""PyTorch's default device is where new models go: it moves no number of one that is elsewhere.

A program that sets it to a GPU may call models on the CPU. Kernels there read and write memory by
address, so a buffer that went to another device would end the process. ``meta`` stands for a GPU.
"""

import ast
import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from linrnn import (
    RNN,
    PanelForecaster,
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
    SequenceModel,
    estimators,
    mixers,
)
from linrnn.generation import generate
from linrnn.state import leaves
from linrnn.streaming import Session, Sessions

D, TIME = 8, 9
MAKERS = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices"),
    "zeros",
}
"""PyTorch's functions that make a tensor on the default device."""
PACKAGES = ("compute", "engine", "estimators", "generation", "ops", "rnn", "serve", "streaming")
"""Packages that compute. Initial values of ``nn`` and ``mixers`` may go where new models go."""
BETWEEN_PROCESSES = "ops/linear/distributed.py"
"""Its tensors go where the group of processes has its own."""


def both(call):
    """Call twice: with another default device, and without."""
    torch.manual_seed(0)
    expected = call()
    torch.manual_seed(0)
    with torch.device("meta"):
        return call(), expected


def of_a_mixer(layer):
    """Outputs, gradients and steps."""
    x = torch.randn(2, TIME, D, device="cpu")
    reset = torch.zeros(2, TIME, dtype=torch.bool, device="cpu")
    reset[0, 4] = True
    parts = [layer(x)[0]]
    if any(p.requires_grad for p in layer.parameters()):
        used = [p for p in layer.parameters() if p.requires_grad]
        grads = torch.autograd.grad(parts[0].sum(), used, allow_unused=True)
        parts += [grad for grad in grads if grad is not None]
    with torch.no_grad():
        if "reset_and_packing" not in layer.declared:
            parts += [layer(x, reset=reset)[0]]
        state = layer.init_state(2)
        for t in range(4):  # the second step is recorded, and the third a program
            y, state = layer.step(x[:, t], state)
            parts += [y]
    return [*parts, *leaves(state)]


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_a_mixer(name):
    layer = mixers.build(name, D, mixers.load(name).in_laws)
    got, expected = both(lambda: of_a_mixer(layer))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mixer", ["gru", "mamba", "lru,mingru"])
def test_models_streams_and_text(mixer):
    torch.manual_seed(0)
    rnn = RNN(mixer, 3, D, 2, bidirectional=True).eval()
    net = SequenceModel(3, 2, mixer=mixer, d_model=D, n_layers=2, pool="none", norm="layer").eval()
    text = SequenceModel(9, 9, mixer=mixer, d_model=D, n_layers=2, pool="none", encoder="tokens")
    text.eval()
    rows = pack_sequence([torch.randn(n, 3) for n in (5, 2, 7)], enforce_sorted=False)
    x = torch.randn(2, TIME, 3)

    def call():
        packed, _ = rnn(rows)
        parts = [packed.data, rnn.last_output(packed), rnn(x)[0], net(x, lengths=[4, TIME])[0]]
        streams = Sessions(net)
        streams.join("a")
        parts += [Session(net).feed(x[0].tolist()), streams.feed({"a": [1, 2, 3]})]
        return parts, [*generate(text, [1, 2], 5, seed=0)]

    got, expected = both(call)
    torch.testing.assert_close(got[0], expected[0])
    assert got[1] == expected[1]


WAVE = np.sin(np.arange(96) / 2) + 0.1 * np.cos(np.arange(96) ** 2)
KIND = np.arange(12) % 2
TABLE = np.sin(np.arange(30) / (2 + KIND[:, None])) + 0.05 * np.cos(np.arange(360.0)).reshape(
    12, 30
)
GAPS = np.where(np.arange(96) // 3 == 4, np.nan, WAVE)[:, None]
TRAINED = {"mixer": "lru", "max_steps": 2, "d_model": 4, "n_layers": 1}
SMALL = {"n_modes": 8, "random_state": 0}
FITS = {
    "RecurrentClassifier": lambda: (
        RecurrentClassifier(early=3, **SMALL).fit(TABLE, KIND).predict_proba(TABLE)
    ),
    "RecurrentClassifier trained": lambda: (
        RecurrentClassifier(**SMALL, **TRAINED).fit(TABLE, KIND).predict_proba(TABLE)
    ),
    "RecurrentRegressor": lambda: RecurrentRegressor(**SMALL).fit(TABLE, KIND).saliency(TABLE),
    "RecurrentRegressor trained": lambda: (
        RecurrentRegressor(**SMALL, **TRAINED).fit(TABLE, KIND).predict(TABLE)
    ),
    "RecurrentForecaster": lambda: (
        RecurrentForecaster(horizon=3, season=6, n_modes=12)
        .fit(np.tile(WAVE, 2))
        .update(WAVE[:9])
        .predict_interval(3, coverage=0.3)
    ),
    "RecurrentDetector": lambda: (
        RecurrentDetector(memory=30, **SMALL).fit(WAVE[:, None]).score_samples(WAVE[:, None])
    ),
    "RecurrentImputer": lambda: RecurrentImputer(**SMALL).fit_transform(GAPS),
    "PanelForecaster": lambda: PanelForecaster(2, 4).fit(WAVE[:20]).predict(),
}


@pytest.mark.parametrize("name", FITS)
def test_an_estimator(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got, expected = both(FITS[name])
    np.testing.assert_allclose(got, expected)


def test_every_estimator_is_tried():
    assert {name.partition(" ")[0] for name in FITS} == set(estimators.__all__)


def without_a_device(source):
    """The lines of calls that make a tensor on the default device."""
    for call in ast.walk(ast.parse(source)):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr=made)):
                names = {keyword.arg for keyword in call.keywords}
                if made in MAKERS and not names & {"device", None}:
                    yield call.lineno


def test_what_computes_names_the_device_of_every_tensor_that_it_makes(root):
    package = root / "src" / "linrnn"
    paths = [path for part in PACKAGES for path in sorted((package / part).rglob("*.py"))]
    assert len(paths) > 100
    lines = [
        f"{path.relative_to(package)}:{line}"
        for path in paths
        if path.relative_to(package).as_posix() != BETWEEN_PROCESSES
        for line in without_a_device(path.read_text(encoding="utf-8"))
    ]
    assert lines == []
    assert [*without_a_device("torch.empty(3)\ntorch.empty(3, device=x.device)")] == [1]

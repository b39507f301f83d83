"""The benchmark of layers of segments: products are found, and every row is there."""

import importlib
from pathlib import Path

import pytest
import torch


@pytest.fixture
def segments(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("segments")


def test_products_and_softmaxes_are_found_with_those_of_the_gradients(segments):
    x = torch.randn(2, 3, requires_grad=True)
    w = torch.randn(3, 4, requires_grad=True)

    def call():
        return torch.autograd.grad(((x @ w).softmax(-1) + 1).square().sum(), [x, w])

    found = segments.products_of(call)
    names = [func.overloadpacket.__name__ for func, *_ in found.calls]
    assert names == ["mm", "_softmax", "_softmax_backward_data", "mm", "mm"]
    found.run()


def test_every_row_is_there(segments, monkeypatch, tmp_path):
    path = tmp_path / "out.md"
    given = ["--quick", "--seconds", "1e-3", "--only", "rmt", "--output", str(path)]
    monkeypatch.setattr("sys.argv", ["segments.py", *given])
    monkeypatch.setattr(segments, "megabytes", lambda *_, **__: "7")
    segments.main()
    rows = [line.split("|")[1:-1] for line in path.read_text().splitlines() if "|" in line]
    who = [row[0].strip() for row in rows if row[0].strip() not in ("layer", ":---")]
    assert who == ["rmt", "rmt", "rmt", "attention"]


def test_every_causal_layer_of_the_family_is_named(segments):
    assert {"transformer_xl", "rmt", "block_recurrent", "memformer"} <= set(segments.names())

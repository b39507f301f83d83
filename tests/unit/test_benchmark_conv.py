"""The benchmark of state-space layers: its plain paths are the layers, and every row is there."""

import importlib
from pathlib import Path

import pytest
import torch


@pytest.fixture
def conv(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("conv")


@pytest.mark.parametrize("name", ["s4d", "s4", "dss"])
def test_the_plain_path_is_the_layer(conv, name):
    torch.manual_seed(0)
    layer, x = conv.LAYERS[name](3), torch.randn(2, 50, 3)
    torch.testing.assert_close(conv.plain(layer, x), layer(x)[0], rtol=1e-3, atol=1e-3)


def test_every_row_is_there(conv, monkeypatch, tmp_path, capsys):
    path = tmp_path / "out.md"
    monkeypatch.setattr(
        "sys.argv", ["conv.py", "--quick", "--seconds", "1e-3", "--output", str(path)]
    )
    conv.main()
    rows = [line.split("|")[1:-1] for line in path.read_text().splitlines() if "|" in line]
    who = [(row[0].strip(), row[1].strip()) for row in rows if len(row) == 6 and "-" not in row[2]]
    names = ("scan", "conv", "plain path", "FFTs alone", "products alone")
    assert who[1:] == [(layer, name) for layer in conv.LAYERS for name in names]
    assert "step [µs]" in capsys.readouterr().out

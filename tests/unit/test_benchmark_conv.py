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
    monkeypatch.setattr(conv, "megabytes", lambda *_, **__: "7")
    conv.main()
    rows = [line.split("|")[1:-1] for line in path.read_text().splitlines() if "|" in line]
    who = [(row[0].strip(), row[1].strip()) for row in rows if len(row) == 6 and "-" not in row[2]]
    names = ("scan", "conv", "plain path", "FFTs alone", "products alone")
    beside = ("scan", "s4d, scan", *([] if conv.OTHERS["s5-pytorch"].missing() else ["s5-pytorch"]))
    assert who[1:] == [
        *((layer, name) for layer in conv.LAYERS for name in names),
        *(("s5", name) for name in beside),
        *(("mamba", name) for name in ("scan", "products alone")),
    ]
    assert "step [µs]" in capsys.readouterr().out
    peaks = [row[1:] for row in rows if len(row) == 4 and row[0].strip() in conv.LAYERS]
    assert peaks == [[" 7 "] * 3] * len(conv.LAYERS)


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(conv):
    assert float(conv.megabytes(conv.__file__, "s4d", "scan", 1, 4096, 64, limit=120)) >= 1
    with pytest.raises(RuntimeError, match="KeyError: 'no'"):
        conv.megabytes(conv.__file__, "no", "scan", 1, 64, 8, limit=120)

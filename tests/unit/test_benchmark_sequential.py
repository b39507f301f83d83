"""The benchmark of sequential layers: every layer of the catalogue that is one has a row."""

import importlib
from pathlib import Path

import pytest

from linrnn import mixers

BASELINES = {"linear_rnn", "relu_rnn", "tanh_rnn"}  # in the benchmark of layers
MEMORIES = {"delta_rnn", "recurrent_delta_net", "srwm"}  # in that of matrix memories


@pytest.fixture
def sequential(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("sequential")


def rows_of(text):
    rows = [[x.strip() for x in line.split("|")[1:-1]] for line in text.splitlines()]
    return [row for row in rows if row and row[0] not in ("layer", ":---")]


def test_every_sequential_layer_has_a_row(sequential):
    wanted = {n for n in mixers.names() if mixers.load(n).cost == "sequential"}
    many_at_once = ("segment", "test-time")  # a segment, or a mini-batch
    wanted -= {n for n in wanted if mixers.load(n).family in many_at_once}
    assert wanted - BASELINES - MEMORIES <= {*sequential.ELEMENTWISE, *sequential.DENSE}


def test_a_row_sets_the_layer_beside_its_loop(sequential, monkeypatch, tmp_path, capsys):
    path = tmp_path / "out.md"
    given = ["--quick", "--seconds", "0.001", "--only", "unicornn", "gru", "--output", str(path)]
    monkeypatch.setattr("sys.argv", ["sequential.py", *given])
    sequential.main()
    text = path.read_text()
    who = [(row[0], row[2]) for row in rows_of(text)]
    assert who == [
        *(("unicornn", x) for x in ("linrnn", "loop")),
        *(("gru", x) for x in ("linrnn", "loop", "nn.GRU")),
    ]
    assert rows_of(capsys.readouterr().out) == rows_of(text)

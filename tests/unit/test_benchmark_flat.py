"""The benchmark of late tokens: a stream is read to where it says, and growth is noticed."""

import importlib
from pathlib import Path

import pytest
import torch

from linrnn import SequenceModel
from linrnn.state import leaves


@pytest.fixture
def flat(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("flat")


class Counter(SequenceModel):
    """Whose state is how many tokens it has read."""

    def __init__(self):
        torch.nn.Module.__init__(self)

    def init_state(self, batch_size):
        return torch.zeros(batch_size)

    def features(self, ids, state):
        return ids, state + ids.shape[1]


def test_states_are_those_before_each_position(flat):
    found = flat.places(Counter(), 5, [1, 2, 10_000])
    assert [int(p.state) for p in found] == [0, 1, 9999]


def test_a_page_has_a_row_a_position(flat, tmp_path):
    options = ["--size", "tiny", "--positions", "1", "50", "--kinds", "mingru"]
    flat.main([*options, "--rounds", "3", "--out", str(tmp_path)])
    page = (tmp_path / "flat-cpu.md").read_text()
    assert "| MinGRU, token 1 |" in page
    assert "| MinGRU, token 50 |" in page


def test_a_state_that_grows_is_noticed(flat, tmp_path, monkeypatch):
    sizes = iter([100.0, 150.0])
    monkeypatch.setattr(flat, "resident", lambda: next(sizes))
    options = ["--size", "tiny", "--positions", "1", "50", "--kinds", "mingru"]
    assert flat.main([*options, "--rounds", "3", "--out", str(tmp_path)]) == 1
    assert "16 MB: NO" in (tmp_path / "flat-cpu.md").read_text()


def test_every_kind_has_a_state_of_fixed_size(flat):
    decoders = importlib.import_module("_decoders")
    for kind in flat.KINDS:
        model = decoders.our_model(kind, decoders.SIZES["tiny"])
        early, late = (p.state for p in flat.places(model, 64, [1, 40]))
        assert [h.shape for h in leaves(early)] == [h.shape for h in leaves(late)]

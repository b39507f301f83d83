import math

import pytest
import torch

from linrnn import SequenceModel
from linrnn.train._memory import measure


@pytest.fixture
def one_mode():
    """A model whose only layer has eigenvalues of one known radius."""
    model = SequenceModel(
        1,
        2,
        d_model=3,
        n_layers=1,
        norm="none",
        mixer_options={"d_state": 5, "r_min": 0.89999, "r_max": 0.90001, "max_phase": 1e-3},
        dtype=torch.float64,
    ).eval()
    with torch.no_grad():
        model.mixers[0].D.zero_()
    return model


def test_measure_finds_the_decay_of_a_known_recurrence(one_mode):
    (memory,) = measure(one_mode, torch.randn(4, 30, 1, dtype=torch.float64))
    ratios = memory.influence[1:] / memory.influence[:-1]
    torch.testing.assert_close(ratios, torch.full_like(ratios, 0.9), atol=1e-3, rtol=0)
    # 0.81^k of the energy is left after k steps
    assert memory.span == math.ceil(math.log(0.1) / math.log(0.81)) - 1


def test_measure_gives_time_constants_in_steps(one_mode):
    (memory,) = measure(one_mode, torch.randn(1, 3, 1, dtype=torch.float64))
    expected = torch.full((5,), -1 / math.log(0.9), dtype=torch.float64)
    torch.testing.assert_close(memory.time_constants, expected, rtol=1e-3, atol=0)


def test_measure_without_eigenvalues(one_mode, monkeypatch):
    monkeypatch.setattr(type(one_mode.mixers[0]), "eigenvalues", lambda self: None)
    monkeypatch.setattr(
        type(one_mode.mixers[0]), "forward", lambda self, x, state=None, reset=None: (x, state)
    )
    (memory,) = measure(one_mode, torch.randn(2, 4, 1, dtype=torch.float64))
    assert memory.time_constants is None
    assert memory.influence.tolist() == [1, 0, 0, 0]
    assert memory.span == 0

"""Gradients of states long before the loss: against autograd's own numbers, and the verdicts."""

import pytest
import torch

from linrnn.mixers import load
from linrnn.reproductions import Setting
from linrnn.reproductions import cells_gradients as gradients


def test_norms_are_those_of_a_product_of_jacobians():
    """A linear recurrence ``h_t = W h_{t-1} + x_t``: the gradient k steps before is ``v W^k``."""
    torch.manual_seed(0)
    layer = load("linear_rnn")(6, d_state=6).double()
    x = torch.randn(1, 33, 6, dtype=torch.float64)
    state = torch.random.get_rng_state()
    found = gradients.gradient_norms(layer, x)
    torch.random.set_rng_state(state)
    v = torch.nn.functional.normalize(torch.randn(1, 6), dim=1).double()
    before = [torch.zeros(1, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    expected = []
    for h, steps in zip(before, (10, 20, 30), strict=True):
        y, _ = layer(x[:, -steps:], h)
        expected.append(torch.autograd.grad((y[:, -1] * v).sum(), h)[0].norm())
    torch.testing.assert_close(found, torch.stack(expected))


def test_an_orthogonal_recurrence_keeps_what_a_plain_one_loses(tmp_path):
    cases = {label: gradients.CASES[label] for label in ("expRNN", "tanh RNN")}
    what = gradients.CellsGradients(cases, length=300, width=16)
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    kept, lost = found.tables[0].rows
    assert (kept[0], lost[0]) == ("expRNN", "tanh RNN")
    bounded, vanished = found.verdicts
    assert (bounded.claim, bounded.published) == ("expRNN: bounded", "arXiv:1901.08428")
    assert (vanished.claim, vanished.published) == ("tanh RNN: vanishes", "arXiv:1211.5063")
    assert bounded.held == vanished.held == (True, True)
    assert 1.5 < min(bounded.differences) < 2  # decades: norms near 1, bounds of 100
    assert what.claims(found.runs, "cpu") == [bounded, vanished]
    assert float(lost[2]) < float(lost[1]) < 0.5
    assert float(kept[2]) == pytest.approx(1, abs=0.3)
    assert len(found.tables[0].head) == len(kept)
    assert set(found.figures) == {"gradients"}


@pytest.mark.parametrize(
    ("claim", "norms", "held"),
    [
        ("bounded", [[0.5, 0.02], [2.0, 90.0]], (True, True)),
        ("bounded", [[0.5, 0.009], [2.0, 101.0]], (False, False)),
        ("bounded", [[0.5, 0.02], [2.0, 0.001]], (True, False)),
        ("vanishes", [[0.5, 1e-7], [0.1, 0.0]], (True, True)),
        ("vanishes", [[0.5, 1e-5], [0.1, 0.1]], (False, False)),
    ],
)
def test_a_claim_is_held_against_every_seed(claim, norms, held):
    case = gradients.Case("lstm", {}, claim, "a paper")
    seeds = {seed: gradients.measures(torch.tensor(sizes)) for seed, sizes in enumerate(norms)}
    judged = gradients.judged("a layer", case, seeds)
    assert (judged.claim, judged.published) == (f"a layer: {claim}", "a paper")
    assert judged.held == held

"""A Hopfield network and its rules: the equation, what is left out, the verdicts, a small run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from linrnn.learn import Batch, Loop, build
from linrnn.reproductions import Setting
from linrnn.reproductions import neumann_hopfield as page
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import EDGE
from linrnn.reproductions._runs import hopfield
from linrnn.reproductions._runs.hopfield import (
    Hopfield,
    Memory,
    Training,
    trained,
    without_half,
    wrong,
)

SMALL = Memory(hidden=6, steps=3, updates=25)


def network(slope=1.0, size=1.0):
    torch.manual_seed(0)
    model = Hopfield(4, 3, slope).double()
    with torch.no_grad():
        model.W.mul_(size / hopfield.SPREAD)
    return model


def training(loss, left_out=(), wrong=0.0):
    return Training([(0, 1.0), (5, loss)], list(left_out), wrong, 0.2, 0.5)


def claims(by_case):
    """Claims at slope 4 from trainings by case and rule, by what they say."""
    setting = Setting(scale="cpu", seeds=(0, 1), out=Path())
    runs = Runs(tuple(page._runs(by_case, page.Size(), setting)))
    return {line.claim.split(": ", 1)[1]: line for line in page.judged(runs, 4.0, "small")}


def test_updates_are_those_of_one_symmetric_matrix_with_the_image_clamped():
    model, u = network(0.7), torch.rand(2, 4).double()
    W = model.W.detach().numpy()
    whole = W + W.T
    np.fill_diagonal(whole, 0)
    units = np.concatenate([u.numpy(), np.zeros((2, 7))], 1)
    for _ in range(5):
        new = (1 / (1 + np.exp(-0.7 * units))) @ whole
        units = np.concatenate([u.numpy(), new[:, 4:]], 1)
    y, h = model(u[:, None].expand(-1, 5, -1))
    np.testing.assert_allclose(h.detach().numpy(), units[:, 4:], rtol=1e-12)
    assert y.equal(h[:, -4:])
    two = model(u[:, None].expand(-1, 2, -1), model(u[:, None].expand(-1, 3, -1))[1])[1]
    torch.testing.assert_close(two, h)


def test_the_radius_is_that_of_the_jacobian():
    model, u = network(1.5, 0.3), torch.rand(3, 4).double()
    expected = []
    for picture in u:
        h = model(picture[None, None].expand(-1, 9, -1))[1][0].detach()
        J = torch.autograd.functional.jacobian(
            lambda h, p=picture: model(p[None, None], h[None])[1], h
        )
        expected.append(torch.linalg.eigvals(J.squeeze()).abs().max().item())
    assert model.radius(u, 9) == pytest.approx(max(expected), rel=1e-9)


@pytest.mark.parametrize("label", [page.NEUMANN, page.CONJUGATE, page.ITERATION, "BPTT"])
def test_rules_agree_where_the_network_contracts(label):
    model, u = network(1.0, 0.3), torch.rand(3, 4).double()

    def gradient(rule):
        model.zero_grad()
        held = u[:, None].expand(-1, 60 if rule.unrolled else 1, -1)
        learner = build(rule.learner, rule.options)
        learner.step(model, Batch(held, u, None, None), None, Loop(torch.nn.functional.l1_loss))
        return model.W.grad.clone()

    rules = page.rules(60)
    expected = gradient(rules[page.TRUNCATED])
    torch.testing.assert_close(gradient(rules[label]), expected, rtol=1e-3, atol=1e-6)


def test_half_the_ink_goes_and_what_is_wrong_is_counted():
    pictures = torch.tensor([[1.0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0]])
    damaged = without_half(pictures, torch.Generator().manual_seed(0))
    assert damaged.sum(1).tolist() == [2, 1]
    assert not ((damaged == 1) & (pictures == 0)).any()
    assert wrong(damaged, pictures) == pytest.approx(3 / 12)
    assert wrong(0.6 * pictures, pictures) == 0


def test_pictures_are_one_of_each_digit_and_others_with_another_seed():
    first, second = SMALL.pictures(0), SMALL.pictures(1)
    assert first.shape == (10, 64)
    assert set(first.unique().tolist()) == {0.0, 1.0}
    assert not first.equal(second)


def test_a_step_that_is_refused_moves_no_weight(monkeypatch):
    memory = replace(SMALL, slope=4.0, steps=4)
    monkeypatch.setattr(hopfield, "SPREAD", 0.1)
    found = trained(memory, page.rules(memory.updates)[page.ITERATION], 1e-3, 0)
    assert found.left_out == [1, 2, 3, 4]
    assert found.curve[0][1] == found.loss
    assert found.radius > 0.6


def test_training_lowers_the_loss_and_leaves_nothing_out():
    memory = replace(SMALL, steps=30)
    for label in (page.NEUMANN, page.TRUNCATED):
        found = trained(memory, page.rules(memory.updates)[label], 3e-3, 0)
        assert found.loss < 0.9 * found.curve[0][1]
        assert found.left_out == []


def test_claims_are_judged_by_seed_and_at_the_rate_where_nothing_is_left_out():
    good, bad = [training(0.1), training(0.2)], [training(0.05, [3]), training(0.05)]
    fast = dict.fromkeys(page.rules(9), good) | {page.ITERATION: bad}
    worse = [training(0.3), training(0.3)]
    slow = dict.fromkeys(page.rules(9), worse) | {page.TRUNCATED: [training(0.105)] * 2}
    lines = claims({(4.0, 0.01): fast, (4.0, 0.001): slow})
    held = {claim: line.held for claim, line in lines.items()}
    assert held[f"{page.NEUMANN} leaves no step out at any rate"] == (True, True)
    alone = f"at some rate {page.ITERATION} leaves steps out and {page.NEUMANN} none"
    assert held[alone] == (True, False)
    restored = lines[f"{page.NEUMANN} completes damaged images"]
    assert restored.held == (True, True)
    assert restored.differences == pytest.approx((20, 20))
    assert held[f"{page.NEUMANN} ends within a tenth of {page.TRUNCATED}"] == (True, False)
    # without a step left out, the iteration's best is that of the small rate
    better = lines[f"{page.NEUMANN} has a smaller loss than {page.ITERATION}"]
    assert better.differences == pytest.approx((0.2, 0.1))
    worse = {label: [training(0.1, [1], 0.3)] * 2 for label in page.rules(9)}
    held = {claim: line.held for claim, line in claims({(4.0, 0.01): worse}).items()}
    assert held[alone] == held[f"{page.NEUMANN} completes damaged images"] == (False, False)


def test_a_loss_at_an_end_of_the_rates_decides_nothing():
    same, good = ({label: [training(loss)] * 2 for label in page.rules(9)} for loss in (0.2, 0.1))
    middle = claims({(4.0, 1e-3): same, (4.0, 3e-3): good, (4.0, 1e-2): same})
    end = claims({(4.0, 1e-3): same, (4.0, 3e-3): same, (4.0, 1e-2): good})
    claim = f"{page.NEUMANN} ends within a tenth of BPTT"
    assert (middle[claim].why_not, end[claim].why_not) == ("", EDGE)


def test_a_small_run_leaves_the_whole_page(tmp_path):
    size = page.Size(hidden=4, steps=2, slopes=(0.5, 4.0), rates=(1e-3, 3e-3))
    found = page.NeumannHopfield(size).run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    assert len(found.tables) == 4
    for table in found.tables:
        assert len(table.rows) == 4
        assert all(len(row) == len(table.head) for row in table.rows)
    assert [table.head[-1] for table in found.tables] == [*[page.CONJUGATE] * 2, page.DAMAGED,
        page.CONJUGATE]  # fmt: skip
    assert len(found.verdicts) == 16
    assert page.NeumannHopfield(size).claims(found.runs, "cpu") == list(found.verdicts)
    assert len(found.runs.rows) == 2 * 2 * 5 * 2
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert set(found.figures) == {"losses"}

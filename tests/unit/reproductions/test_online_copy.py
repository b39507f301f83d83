"""Copying online: the task, gradients in one pass beside the rules, the verdicts, a small run."""

from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError
from linrnn.learn import Batch, Loop
from linrnn.reproductions import Setting
from linrnn.reproductions import online_copy as page
from linrnn.reproductions._runs.lessons import Rule, descend, together, trained, tuned
from linrnn.reproductions._runs.one_pass import OnePass

SMALL = replace(
    page.LESSON, pattern=3, pad=2, bits=2, width=5, options={"d_state": 4}, rows=2, steps=2,
    rates=(0.01, 0.03),
)  # fmt: skip


def gradients(model, learner, batch, loss=mse_loss):
    model.zero_grad(set_to_none=True)
    step = learner.step(model, batch, None, Loop(loss))
    return step, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pool", ["none", "last"])
@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("rule", [page.RULES[page.ONLINE], page.RULES[page.CUT]])
def test_one_pass_gives_the_gradients_of_the_rule_that_goes_step_by_step(rule, gamma, pool):
    torch.manual_seed(3)
    model = SequenceModel(
        2, 3, mixer="lru", mixer_options={"d_state": 4, "r_max": 0.9, "gamma": gamma}, d_model=5,
        n_layers=3, norm="layer", pool=pool, dtype=torch.float64,
    )  # fmt: skip
    x = torch.randn(3, 7, 2, dtype=torch.float64)
    target = torch.randn(3, *([7] * (pool == "none")), 3, dtype=torch.float64)
    batch = Batch(x, target, None, None)
    wanted, slow = gradients(model, learn.build(rule.learner, rule.options), batch)
    step, fast = gradients(model, rule.build(), batch)
    torch.testing.assert_close(step.loss, wanted.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(step.y, wanted.y, rtol=1e-12, atol=1e-14)
    for one, other in zip(step.state["layers"], wanted.state["layers"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    assert fast.keys() == slow.keys()
    for name, found in fast.items():
        torch.testing.assert_close(found, slow[name], rtol=1e-12, atol=1e-14, msg=name)
    _, exact = gradients(model, learn.build("bptt"), batch)
    assert not torch.allclose(exact["encoder.weight"], fast["encoder.weight"], rtol=1e-3)


def test_one_pass_leaves_the_model_as_it_was_and_refuses_other_layers():
    model = SequenceModel(1, 1, mixer="lru", d_model=4, n_layers=1, norm="layer", pool="none")
    x = torch.randn(2, 5, 1)
    before = model(x)[0]
    gradients(model, OnePass(traces=False), Batch(x, x, None, None))
    layer = model.mixers[0]
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks
    assert torch.equal(model(x)[0], before)
    other = SequenceModel(1, 1, mixer="mingru", d_model=4, n_layers=1, pool="none")
    with pytest.raises(ArgumentError, match="MinGRU"):
        OnePass(traces=True).check(other)


def test_rules_say_what_they_are_and_build_the_short_cut():
    assert page.RULES[page.ONLINE].build().traces
    assert not page.RULES[page.CUT].build().traces
    assert type(page.IN_CHUNKS[page.CHUNKED].build()) is learn.load("chunked_rtrl")


def test_bits_are_asked_for_after_the_sign_and_guessing_has_a_loss_of_one():
    batch = SMALL.draw(4, torch.Generator().manual_seed(0))
    assert batch.x.shape == (4, 8, 3)
    assert batch.x[:, :, 2].nonzero()[:, 1].tolist() == [5] * 4
    assert torch.equal(batch.target[:, 5:], 2 * batch.x[:, :3, :2] - 1)
    assert not batch.target[:, :5].any()
    assert not batch.x[:, 3:, :2].any()
    silent = torch.zeros(4, 8, 2)
    assert SMALL.loss(silent, batch.target).item() == pytest.approx(1)
    sure = 20 * batch.target
    assert SMALL.loss(sure, batch.target).item() < 1e-6
    wrong = SMALL.loss(-3 * batch.target, batch.target).item()
    assert wrong == pytest.approx(torch.nn.functional.softplus(torch.tensor(3.0)).item() / log(2))


def test_windows_add_up_to_the_loss_of_the_whole():
    model, batch = SMALL.model(0), SMALL.draw(4, torch.Generator().manual_seed(0))
    whole, _ = gradients(model, learn.build("bptt"), batch, SMALL.loss)
    for window in (1, 3, 4):
        rule = learn.build("tbptt", {"window": window})
        assert gradients(model, rule, batch, SMALL.loss)[0].loss.item() == pytest.approx(
            whole.loss.item(), rel=1e-5
        )


def test_the_rate_falls_where_it_is_to_and_the_loss_is_that_of_the_lesson(monkeypatch):
    rates, losses = [], []
    adam = torch.optim.Adam.step

    def noted(self):
        rates.append(self.param_groups[0]["lr"])
        return adam(self)

    def loss(y, target):
        losses.append(None)
        return mse_loss(y, target)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    model = SMALL.model(0)
    batch = SMALL.draw(2, torch.Generator().manual_seed(0))
    for falling in (False, True):
        descend(
            model,
            learn.build("bptt"),
            steps=4,
            rate=0.1,
            draw=lambda: batch,
            look=lambda step: None,
            loss=loss,
            falling=falling,
        )
    assert rates[:4] == [0.1] * 4
    assert rates[4:] == pytest.approx([0.1, 0.0853553, 0.05, 0.0146447], abs=1e-6)
    assert len(losses) == 8


def test_a_lesson_says_whether_its_rate_falls():
    rule = page.RULES[page.EXACT]
    ends = [trained(replace(SMALL, falling=f), rule, 0.1, 0).error for f in (False, True)]
    assert ends[0] != ends[1]


def test_a_stack_has_its_depth_and_its_ring():
    model = page.OnlineCopy(SMALL)._lesson((0.8, 0.9), 3).model(0)
    assert len(model.mixers) == 3
    for layer in model.mixers:
        assert layer.d_state == 4
        radius = layer.eigenvalues().abs()
        assert bool((radius > 0.8 - 1e-5).all())
        assert bool((radius < 0.9 + 1e-5).all())


def test_every_rule_learns_from_the_same_sequences_from_the_same_start():
    starts = {label: trained(SMALL, rule, 0.0, 1).curve for label, rule in page.RULES.items()}
    assert len({curve[0] for curve in starts.values()}) == 1
    assert starts[page.EXACT][0][1] == starts[page.EXACT][-1][1]


@pytest.fixture
def stacks(kept_errors):
    """Makes two seeds at ring and depth, given the losses of the first and one larger ones."""
    rings = {"w": (0.0, 0.9), "d": (0.8, 0.9)}

    def make(**losses):
        found = {}
        for name, values in losses.items():
            where = (rings[name[0]], int(name[1]))
            errors = {x: (v, 2 * v) for x, v in zip(page.RULES, values, strict=True)}
            found[where] = kept_errors(page._words(where), errors)
        return found

    return make


def claims(found):
    judged = page.judged(found)
    assert len({line.claim for line in judged}) == len(judged)
    return {line.claim: line.held for line in judged}


def test_claims_are_judged_by_seed(stacks):
    found = claims(
        stacks(w1=(0.1, 0.2, 0.8), w2=(0.1, 0.3, 0.4), d1=(0.1, 0.1, 0.8), d2=(0.1, 0.9, 0.8))
    )
    both, none = (True, True), (False, False)
    wide, dense = "ring [0, 0.9]", "ring [0.8, 0.9]"
    less, near = f"{page.ONLINE} has a smaller loss than {page.CUT}", f"{page.ONLINE} is near bptt"
    assert found[f"1 layer, {wide}: {less}"] == both
    assert found[f"2 layers, {dense}: {less}"] == none
    assert found[f"1 layer, {wide}: {near}"] == both
    assert found[f"2 layers, {wide}: {near}"] == none
    lacks = f"what {page.ONLINE} lacks"
    assert found[f"{wide}: {lacks} is more with 2 layers than with 1"] == both
    assert found[f"{dense}: {lacks} grows with each layer"] == both
    assert found[f"1 layer, denser ring: {page.ONLINE} has a smaller loss"] == both
    assert found[f"2 layers, denser ring: {page.ONLINE} has a smaller loss"] == none
    assert found[f"1 layer, denser ring: {page.ONLINE} lacks less of bptt"] == both
    assert found[f"2 layers, denser ring: {page.ONLINE} lacks less of bptt"] == none


def test_growth_with_each_layer_is_more_than_that_of_the_ends(stacks):
    found = stacks(w1=(0.1, 0.2, 0.8), w2=(0.1, 0.5, 0.8), w3=(0.1, 0.3, 0.8))
    where = f"ring [0, 0.9]: what {page.ONLINE} lacks"
    assert claims(found)[f"{where} is more with 3 layers than with 1"] == (True, True)
    assert claims(found)[f"{where} grows with each layer"] == (False, False)


def test_what_was_tried_is_one_table():
    rule = {"bptt": Rule(learner="bptt")}
    tables = [
        tuned(replace(SMALL, name=name), rule, Setting(scale="cpu", seeds=(0,), out=Path()))[1]
        for name in ("a, b", "c")
    ]
    found = together(tables)
    assert found.title == "Error on validation of seed 0 while tuning"
    assert [row[:2] for row in found.rows] == [["a, b", "bptt"], ["c", "bptt"]]
    assert all(len(row) == len(found.head) for row in found.rows)


def test_a_small_run_leaves_the_whole_page(tmp_path):
    rings, depths = ((0.0, 0.9), (0.8, 0.9)), (1, 2)
    what = page.OnlineCopy(SMALL, rings, depths, (rings[0], 2))
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    losses, gaps, by_seed, tried = found.tables
    assert [row[0] for row in losses.rows] == [
        f"{n} layer{'s' * (n > 1)}, ring [{r:g}, 0.9]" for r, _ in rings for n in depths
    ]
    assert [bool(row[-1]) for row in losses.rows] == [False, True, False, False]
    assert len(gaps.rows) == 4
    assert len(by_seed.rows) == len(tried.rows) == 4 * 3 + 1
    for table in found.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.verdicts) == 2 * 4 + 1 + 2 * 2 + 2 * 2
    assert found.verdicts == tuple(what.claims(found.runs, "cpu"))
    assert set(found.figures) == {"losses"}

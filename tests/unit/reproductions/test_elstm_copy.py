"""Copying by an eLSTM: what the rules find, what no window holds, the verdicts, and a small run."""

from dataclasses import replace

import pytest
import torch

from linrnn import learn
from linrnn.learn import Loop
from linrnn.reproductions import Setting
from linrnn.reproductions import elstm_copy as page
from linrnn.reproductions._runs.lessons import trained


def gradients(lesson, learner):
    model = lesson.model(1).double()
    batch = lesson.draw(3, torch.Generator().manual_seed(0))
    batch = batch._replace(x=batch.x.double(), target=batch.target.double())
    learner.check(model)
    learner.step(model, batch, None, Loop(lesson.loss))
    return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("lesson", page.LESSONS, ids=lambda lesson: lesson.name)
def test_traces_have_the_gradient_of_back_propagation_and_a_truncation_has_not(lesson):
    exact = gradients(lesson, page.RULES[page.EXACT].build())
    for learner in (page.RULES[page.TRACED].build(), learn.build("diagonal_rtrl")):
        found = gradients(lesson, learner)
        for name, wanted in exact.items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-10, atol=1e-12, msg=name)
    cut = gradients(lesson, page.RULES[page.CUT].build())
    own = "blocks.0.mixer.in_proj.weight"
    assert (cut[own] - exact[own]).norm() > 0.1 * exact[own].norm()
    torch.testing.assert_close(cut["head.weight"], exact["head.weight"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lesson", page.LESSONS, ids=lambda lesson: lesson.name)
def test_no_window_holds_a_question_and_its_bit(lesson):
    batch = lesson.draw(1, torch.Generator().manual_seed(0))
    asked = batch.target[0, :, 0].nonzero()[:, 0]
    assert len(asked) == lesson.pattern
    read = asked - lesson.lag
    assert torch.equal(batch.target[0, asked, 0], 2 * batch.x[0, read, 0] - 1)
    assert not bool((asked // page.WINDOW == read // page.WINDOW).any())
    window = page.WINDOW
    assert all(rule.options.get("window", window) == window for rule in page.RULES.values())


def test_what_is_held_is_all_that_moves_the_state():
    lesson = page.LESSONS[0]
    model, x = lesson.model(0), lesson.draw(3, torch.Generator().manual_seed(0)).x
    _, state = model.mixers[0](x)
    state.sum().backward()
    moving = {n for n, p in model.mixers[0].named_parameters() if p.grad is not None}
    assert moving == set(page.RULES[page.HELD].held)


def test_nothing_below_the_layer_learns_or_changes_the_bits():
    lesson = page.LESSONS[0]
    model, x = lesson.model(0), lesson.draw(2, torch.Generator().manual_seed(0)).x
    assert torch.equal(model.encoder(x), x)
    assert not any(p.requires_grad for p in model.encoder.parameters())


def test_claims_are_judged_by_seed(kept_errors):
    values = {
        page.EXACT: (0.01, 0.02),
        page.TRACED: (0.02, 0.3),
        page.CUT: (0.7, 0.05),
        page.HELD: (0.8, 0.04),
    }
    part = kept_errors("4 bits", values)
    found = {line.claim: line.held for line in page.judged(part)}
    assert found == {
        f"4 bits: {page.EXACT} copies them": (True, True),
        f"4 bits: {page.TRACED} copies them": (True, False),
        f"4 bits: {page.CUT} does not copy them": (True, False),
        f"4 bits: {page.TRACED} has a smaller loss than {page.CUT}": (True, False),
        f"4 bits: {page.TRACED} comes to what {page.EXACT} comes to": (True, False),
        f"4 bits: {page.CUT} has a smaller loss than {page.HELD}": (True, False),
    }


def test_a_few_steps_of_both_exact_rules_come_to_the_same():
    lesson = replace(page.LESSONS[0], steps=5, rows=4)
    losses = {label: trained(lesson, rule, 0.1, 0).error for label, rule in page.RULES.items()}
    assert losses[page.TRACED] == pytest.approx(losses[page.EXACT], rel=1e-3)
    assert abs(losses[page.CUT] - losses[page.EXACT]) > 5e-3 * losses[page.EXACT]


def test_a_small_run_leaves_the_whole_page(tmp_path):
    lessons = [replace(lesson, steps=1, rows=2, options={"d_state": 4}) for lesson in page.LESSONS]
    found = page.ELSTMCopy(lessons).run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    short, long, *tried = found.tables
    assert [row[0] for row in short.rows] == [row[0] for row in long.rows] == list(page.RULES)
    assert short.title.startswith("4 bits")
    assert len(tried) == 2
    for table in found.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.verdicts) == 2 * 6
    assert len(found.runs.rows) == 2 * 4 * (3 + 1)
    assert found.verdicts == tuple(page.ELSTMCopy(lessons).claims(found.runs, "cpu"))
    assert set(found.figures) == {"losses"}

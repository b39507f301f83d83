"""Digits online: the lesson, the verdicts, and a small run."""

from dataclasses import replace

import pytest
import torch

from linrnn import learn
from linrnn.learn import Loop
from linrnn.reproductions import Setting
from linrnn.reproductions import online_digits as page
from linrnn.reproductions._runs.lessons import near

SMALL = replace(
    page.LESSONS[0], width=6, options={"d_state": 4}, rows=2, steps=1, rates=(0.01, 0.03)
)


def test_training_images_change_and_those_that_are_asked_about_do_not():
    generator = torch.Generator().manual_seed(0)
    drawn, images = SMALL.draw(8, generator), page._images()[0].x
    assert drawn.x.shape == (8, 64, 1)
    away = torch.cdist(drawn.x.flatten(1), images.flatten(1)).amin(1)
    assert away.min() > 0.1
    validation, test = SMALL.asked()
    assert (len(validation.x), len(test.x)) == (180, 360)
    assert torch.equal(test.x, SMALL.asked()[1].x)
    assert test.x.min() == 0
    assert test.x.max() == 1


def test_the_error_is_the_part_that_is_wrong():
    _, test = SMALL.asked()
    model = SMALL.model(0)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.head.bias[7] = 1.0
    wrong = (test.target != 7).sum().item()
    assert SMALL.error(model, test) == pytest.approx(100 * wrong / 360)


@pytest.mark.parametrize("label", [page.ONLINE, page.CUT])
def test_one_pass_gives_the_gradient_of_the_rule_on_an_image(label):
    rule, batch = page.RULES[label], SMALL.draw(2, torch.Generator().manual_seed(0))
    batch = batch._replace(x=batch.x[:, :24].double())
    found = []
    for learner in (rule.build(), learn.build(rule.learner, rule.options)):
        model = SMALL.model(1).double()
        learner.step(model, batch, None, Loop(SMALL.loss))
        found.append({n: p.grad for n, p in model.named_parameters()})
    for name, wanted in found[1].items():
        torch.testing.assert_close(found[0][name], wanted, rtol=1e-10, atol=1e-12, msg=name)


def test_near_is_less_than_half_of_what_is_lacking():
    assert [near(*each) for each in ((14, 10, 20), (16, 10, 20))] == [1, -1]


def test_claims_are_judged_by_seed(kept_errors):
    errors = {page.EXACT: (10, 10, 10), page.ONLINE: (15, 15.5, 9), page.CUT: (21, 40, 8)}
    errors = {label: tuple(map(float, several)) for label, several in errors.items()}
    judged = page.judged(kept_errors("2 layers", errors))
    assert {line.claim: line.differences for line in judged} == {
        f"2 layers: {page.ONLINE} is within 5 points of bptt": (0.0, -0.5, 6.0),
        f"2 layers: {page.ONLINE} is near bptt": (0.5, 9.5, 0.0),
        f"2 layers: bptt is more accurate than {page.ONLINE}": (5.0, 5.5, -1.0),
        f"2 layers: {page.ONLINE} is more accurate than {page.CUT}": (6.0, 24.5, -1.0),
    }


def test_a_small_run_leaves_the_whole_page(tmp_path):
    lessons = [replace(SMALL, name=lesson.name) for lesson in page.LESSONS]
    found = page.OnlineDigits(lessons).run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    accuracies, tried = found.tables
    assert [row[:2] for row in accuracies.rows] == [
        [lesson.name, label] for lesson in lessons for label in page.RULES
    ]
    assert len(tried.rows) == 6
    for table in found.tables:
        assert all(len(row) == len(table.head) for row in table.rows)
    assert all(len(line.held) == 2 for line in found.verdicts)
    assert len(found.verdicts) == 8
    assert found.verdicts == tuple(page.OnlineDigits(lessons).claims(found.runs, "cpu"))
    assert set(found.figures) == {"errors"}

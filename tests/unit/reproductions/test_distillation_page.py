"""The page on distillation, on a text and at sizes that take seconds."""

import math
from dataclasses import replace

import pytest
import torch

from linrnn.compare.run_table import Run
from linrnn.reproductions import Setting, distillation
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.reproductions._runs.language import small, with_model
from linrnn.reproductions._runs.timing import Timing, Turns, rounds
from linrnn.reproductions.distillation import Distillation, Seed
from linrnn.train import OrderFit, Score
from linrnn.train.model import load_model


@pytest.fixture(autouse=True)
def _here(text_of):
    text_of(150)


def page():
    hyena = {"l_max": 32, "d_filter": 8, "frequency": 6.0}
    return Distillation(
        with_model(small(32, 256, 1, 8, 1), "hyena", mixer_options=hyena),
        orders=(2, 8),
        positions=(2, 40),
        reach=64,
        steps=3,
        turns=Turns(rounds=1, shortest=0, pause=0),
    )


def test_a_model_is_trained_and_distilled_at_every_order(tmp_path):
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path / "out")
    found = page().run(setting)
    assert found.complete
    orders, steps, *_ = found.tables
    assert [row[0] for row in orders.rows] == ["2", "8"]
    two, eight = ([float(cell) for cell in row[1:5]] for row in orders.rows)
    assert all(few > more > 0 for few, more in zip(two, eight, strict=True))
    assert abs(float(orders.rows[1][5])) < 1e-3
    assert [row[0] for row in steps.rows] == ["hyena", "laughing_hyena"]
    before, after = ([int(c.split("; ")[1].replace(",", "")) for c in r[1:]] for r in steps.rows)
    assert before[0] < before[1]
    assert after[0] == after[1]
    claims = {judged.claim: judged for judged in found.verdicts}
    assert len(claims) == len(found.verdicts) == 2 + 1 + 1 + 2
    assert page().claims(found.runs, "cpu") == list(found.verdicts)
    falls = claims["the error of the outputs falls with the order"]
    ratio = float(orders.rows[0][4]) / float(orders.rows[1][4])
    assert falls.held == (True, True)
    assert sum(falls.differences) / 2 == pytest.approx(math.log10(ratio), rel=0.1)
    assert claims["after 40 steps one costs less than before distillation"].each == "rounds"
    assert "orders" in found.figures
    again = page().run(setting)  # goes on with what was trained
    assert again.tables[0].rows == orders.rows


def test_without_its_text_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("linrnn.tasks._reading.files.fetch", None, raising=False)
    config = page().base
    options = replace(config.task_options, data=(str(tmp_path / "none.txt"),))
    what = page()
    what.base = replace(config, task_options=options)
    found = what.run(Setting(scale="cpu", seeds=(0,), out=tmp_path / "out"))
    assert not found.complete
    assert any("none.txt" in note for note in found.notes)
    assert found.tables[0].title.startswith("Milliseconds")


def test_what_is_trained_has_the_filters_of_the_published_configuration():
    config = distillation.base_config()
    assert config.mixer_options == {"d_position": 33, "frequency": 14.0, "l_max": 256}
    assert config.task_options.length == 256


def fit(order, loss, outputs):
    score = Score(loss=loss, metric=0.0, metric_name="", examples=1, standard_error=math.nan)
    return OrderFit(order=order, layers=(), outputs=outputs, score=score, n_state=1)


def seed(*losses, outputs=(1 / 16, 1 / 32)):
    fits = [fit(*each) for each in zip((16, 32), losses, outputs, strict=True)]
    return Seed(fit(0, 1.0, 0.0).score, tuple(fits))


def claims(*seeds):
    part = slug(distillation.TEXT)
    rows = [
        Run(scale="cpu", part=part, row="hyena", seed=i, measures=distillation._measures(each))
        for i, each in enumerate(seeds)
    ]
    judged = distillation.judged(Runs(tuple(rows)).part(distillation.TEXT), (16, 32))
    return {line.claim: line for line in judged}


@pytest.mark.parametrize(
    ("seeds", "first", "second"),
    [
        ([seed(1.002, 1.0), seed(1.0, 0.9995)], (False, True), (True, True)),
        ([seed(1.002, 1.0), seed(1.01, 1.0)], (False, False), (True, True)),
        ([seed(0.99, 1.0)], (True,), (True,)),
    ],
)
def test_an_order_suffices_where_it_costs_no_loss(seeds, first, second):
    lines = claims(*seeds)
    assert lines["order 16 suffices"].held == first
    assert lines["order 32 suffices"].held == second
    assert lines["the error of the outputs falls with the order"].held == (True,) * len(seeds)


def test_errors_that_rise_again_are_seen():
    rising = seed(1.0, 1.0, outputs=(0.1, 0.2))
    falls = claims(rising, seed(1.0, 1.0))["the error of the outputs falls with the order"]
    assert falls.differences == pytest.approx((-math.log10(2), math.log10(2)))


def test_steps_are_compared_round_by_round():
    seconds = {
        ("hyena", 1): (3.0, 0.5), ("hyena", 2): (4.0, 4.0),
        ("laughing_hyena", 1): (1.0, 1.0), ("laughing_hyena", 2): (1.1, 2.0),
    }  # fmt: skip
    steps = {distillation._row(*at): Timing(s) for at, s in seconds.items()}
    part = Runs(tuple(rounds({distillation.TIMED: steps}, "cpu"))).part(distillation.TIMED)
    alike, *cheaper = distillation.judged_steps(part, (1, 2))
    assert alike.held == (True, False)
    assert [judged.held for judged in cheaper] == [(True, False), (True, True)]
    assert {judged.each for judged in (alike, *cheaper)} == {"rounds"}


def test_the_timed_models_are_of_the_sizes_of_the_trained_one(tmp_path):
    what = page()
    model = distillation._timed(what.base, "laughing_hyena", {"d_state": 4})
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path / "out")
    what.run(setting)
    (folder,) = (tmp_path / "out" / "runs").glob("*/hyena-seed0")
    trained = load_model(folder)[0]
    kept = {n: x.shape for n, x in trained.state_dict().items() if ".mixer." not in n}
    ours = {n: x.shape for n, x in model.state_dict().items() if n in kept}
    outer = ("encoder.weight", "head.weight", "head.bias")
    assert {n: s for n, s in ours.items() if n not in outer} == {
        n: s for n, s in kept.items() if n not in outer
    }
    assert torch.isfinite(model(torch.zeros(1, 5, dtype=torch.long))[0]).all()

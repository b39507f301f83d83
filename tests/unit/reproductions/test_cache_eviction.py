"""Policies of eviction: what a model with less room reads, what is claimed, the page."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from linrnn.compare._runs import safe_name
from linrnn.compare.run_table import Run
from linrnn.errors import DataError
from linrnn.reproductions import Setting, segment_recall
from linrnn.reproductions import cache_eviction as page
from linrnn.reproductions._page.runs import Runs, slug
from linrnn.tasks.lm import LM
from linrnn.train.model import build_model, build_task

each = pytest.mark.parametrize("policy", page.POLICIES)


@pytest.fixture
def text(text_of):
    text_of(400)


@pytest.fixture(scope="module")
def trained():
    """Weights with which entries are looked at differently, and what they belong to."""
    config = page.text_config()
    task = LM(config.task_options)
    model = build_model(config, task).eval()
    with torch.no_grad():
        for mixer in model.mixers:
            mixer.q_proj.weight.mul_(4)
    return model, task, config


@each
def test_with_room_for_all_a_policy_reads_what_the_whole_cache_does(policy, trained):
    model, task, config = trained
    x = torch.randint(0, 128, (2, 48))
    other = page.evicting(model, task, config, policy, 48)
    assert torch.allclose(other(x)[0], model(x)[0], atol=1e-5)


@each
def test_with_less_room_the_first_difference_comes_when_the_room_is_full(policy, trained):
    model, task, config = trained
    x = torch.randint(0, 128, (2, 48))
    other = page.evicting(model, task, config, policy, 12)
    apart = (other(x)[0] - model(x)[0]).abs().amax((0, 2))
    assert apart[:12].max() < 1e-5
    assert apart[12:].max() > 1e-3


def test_policies_differ_in_what_they_keep(trained):
    model, task, config = trained
    x = torch.randint(0, 128, (2, 48))
    ys = [page.evicting(model, task, config, policy, 12)(x)[0] for policy in page.POLICIES]
    for i, y in enumerate(ys):
        assert all((y - other).abs().max() > 1e-3 for other in ys[:i])


def test_pairs_are_more_than_sinks_and_no_more_than_the_least_room():
    task = build_task(page.recall_config())
    assert 2 * page.N_PAIRS > 4
    assert task.sequence_length // page.LEAST >= 2 * page.N_PAIRS + 1
    x, target = task.datasets().test[list(range(200))]
    assert (x[:, : 2 * page.N_PAIRS] > 0).all()
    assert (target[:, -segment_recall.SEGMENT :] >= 0).any()


def read_with(**at_a_quarter):
    """Claims from losses of two seeds, the second a little larger; the whole cache has 2."""
    rows = []
    for seed in range(2):
        losses = {page.measure_name(page.WHOLE, 1): 2.0 + seed / 10}
        for policy, value in at_a_quarter.items():
            losses[page.measure_name(policy, page.QUARTER)] = value + seed / 10
        row = safe_name(page.TEXT)
        rows.append(Run(scale="cpu", part=slug(page.TEXT), row=row, seed=seed, measures=losses))
    return {line.claim: line for line in page.CacheEviction().claims(Runs(tuple(rows)), "cpu")}


@pytest.mark.parametrize(
    ("tova", "near"), [(2.0, True), (2.019, True), (2.03, False), (1.9, True), (2.5, False)]
)
def test_near_the_whole_cache_is_within_a_part_of_its_loss(tova, near):
    claims = read_with(tova=tova)
    assert claims[f"tova at a quarter is near {page.WHOLE}"].held == (near, near)
    assert claims["tova at a quarter is better than window"].held == ()


def test_a_policy_is_better_where_its_loss_is_smaller():
    lines = read_with(window=2.4, sinks=2.5, h2o=2.1, tova=2.2)
    held = {c.replace(" at a quarter is better than ", " < "): x.held for c, x in lines.items()}
    assert held["tova < window"] == held["tova < sinks"] == held["h2o < window"] == (True, True)
    assert held["tova < h2o"] == held["sinks < window"] == (False, False)
    better = lines["tova at a quarter is better than window"]
    assert better.differences == pytest.approx((0.2, 0.2))


def test_what_is_lost_is_paired_with_the_whole_cache_of_the_same_run():
    a, b = Path("a"), Path("b")
    losses = {(page.WHOLE, 1): {a: 2.0, b: 2.1}, ("window", 4): {a: 2.4, b: 2.5}}
    (lost,) = page.above(losses).values()
    assert lost == {a: pytest.approx(0.4), b: pytest.approx(0.4)}


@pytest.mark.slow
def test_the_page_is_written_with_every_policy(tmp_path, text, monkeypatch):
    def smaller(config, d_model, **changes):
        options = replace(config.task_options, **changes)
        model = replace(config.model, d_model=d_model, n_layers=1)
        train = replace(config.train, epochs=1)
        return replace(config, task_options=options, model=model, train=train)

    monkeypatch.setattr(page, "ROWS", 4)
    what = page.CacheEviction(
        smaller(page.text_config(), 16, length=64),
        smaller(page.recall_config(), 16, train_size=64, validation_size=32, test_size=64),
        (16, 4),
    )
    found = what.run(Setting(scale="cpu", seeds=(0, 1), out=tmp_path))
    assert found.complete
    absolute, lost, recall, *_ = found.tables
    assert [row[0] for row in absolute.rows] == [page.WHOLE, *page.POLICIES]
    assert absolute.head[1:] == ["1/16", "1/4", "all"]
    assert absolute.rows[0][1:3] == ["", ""]
    assert "±" in absolute.rows[0][3]
    assert all(row[3] == "" for row in absolute.rows[1:])
    assert lost.head[1:] == ["1/16", "1/4"]
    assert [row[0] for row in lost.rows] == list(page.POLICIES)
    assert recall.head[1:] == ["1/4", "all"]  # with less there is no room for all pairs
    assert all("±" in cell for row in recall.rows[1:] for cell in row[1:-1])
    assert all(len(claim.held) == 2 for claim in found.verdicts)
    assert what.claims(found.runs, "cpu") == list(found.verdicts)
    (text, recall) = (found.runs.part(name).rows for name in (page.TEXT, page.RECALL))
    assert [run.seed for run in text] == [run.seed for run in recall] == [0, 1]
    assert set(recall[0].measures) == {
        page.measure_name(*at) for at in [(page.WHOLE, 1), *((p, 4) for p in page.POLICIES)]
    }
    assert set(found.figures) == {"policies", "curves-tiny-shakespeare", "curves-mqar-4-pairs"}


def test_a_missing_text_is_an_incomplete_result(tmp_path, monkeypatch):
    def no_network(*args):
        raise DataError("no network")

    monkeypatch.setattr("linrnn.tasks.lm.fetch", no_network)
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "empty"))
    found = page.CacheEviction(recall=page.text_config()).run(
        Setting(scale="cpu", seeds=(0,), out=tmp_path)
    )
    assert not found.complete
    assert any("input.txt" in note for note in found.notes)
    assert not any(claim.held for claim in found.verdicts)

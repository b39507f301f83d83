"""Runs of a task whose metric is one number of all predictions, no mean over examples."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from made_data import write_patients

from linrnn import train
from linrnn.contest import run as contest
from linrnn.errors import InterruptedRunError
from linrnn.tasks.sepsis import Sepsis, SepsisOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train._outputs import outputs
from linrnn.train.checkpoint import load_tree
from linrnn.train.context import open_run
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import read_metrics

metrics = pytest.importorskip("sklearn.metrics")
pytestmark = pytest.mark.unchecked


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Two epochs of four batches of patients."""
    place = tmp_path_factory.mktemp("patients")
    write_patients(place)
    return Config(
        task="sepsis",
        mixer="lru",
        mixer_options={"d_state": 4},
        task_options=SepsisOptions(data=str(place), hours=12, check_counts=False),
        model=ModelConfig(d_model=6, n_layers=1, dropout=0.0, norm="layer", pool="last"),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=2, batch_size=8, threads=1, device="cpu"),
    )


class Interrupt(train.Reporter):
    """Send this process an interrupt after the second step."""

    def stepped(self, report):
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def no_plots(monkeypatch):
    """They take most of the time of so small a run."""
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda run: None)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("linrnn.train._plots.draw_plots", lambda run: None)
        return train.run(config, out=tmp_path_factory.mktemp("finished") / "run")


def area(folder, part):
    """AUROC by scikit-learn of the best weights, over all patients of a part at once."""
    run = open_run(folder)
    data = getattr(run.task.datasets(), part)
    x, target, lengths = data[range(len(data))]
    with torch.no_grad():
        y = outputs(run.model, x, lengths)
    margins = (y[:, 1] - y[:, 0]).double().numpy()
    return metrics.roc_auc_score(target, margins), metrics.average_precision_score(target, margins)


def rows(folder):
    return [replace(row, seconds=0.0) for row in read_metrics(RunFolder(folder))]


def test_metric_of_a_run_is_that_of_all_predictions(finished):
    expected, precision = area(finished.folder, "test")
    assert finished.test_metric == pytest.approx(expected, abs=1e-9)
    assert finished.validation_metric == pytest.approx(area(finished.folder, "validation")[0])
    score, _ = train.evaluate(finished.folder)
    assert score.metric == pytest.approx(expected, abs=1e-9)
    assert score.side_metrics["average precision"] == pytest.approx(precision)
    assert 0 < score.standard_error < 1
    assert all(0 <= row.train_metric <= 1 for row in rows(finished.folder))


class Reports(train.Reporter):
    """Collect the reports of the steps."""

    def __init__(self):
        self.steps = []

    def stepped(self, report):
        self.steps.append(report)


def test_the_metric_of_a_step_is_computed_when_it_is_read(config, finished, tmp_path, monkeypatch):
    counts = []
    plain = Sepsis.contributions

    def counted(task, scores):
        counts.append(len(scores))
        return plain(task, scores)

    monkeypatch.setattr(Sepsis, "contributions", counted)
    reports = Reports()
    train.run(config, out=tmp_path / "run", reporter=reports)
    assert counts == [27, 6, 27, 6, 7]  # training and validation of two epochs, and the test
    epoch = [report.metric for report in reports.steps[:4]]
    assert counts[5:] == [8, 16, 24, 27]  # as many predictions as there were after that step
    assert epoch[-1] == rows(finished.folder)[0].train_metric


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals on Windows")
def test_an_interrupted_epoch_keeps_its_predictions(config, finished, tmp_path):
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "run", reporter=Interrupt())
    run = load_tree(tmp_path / "run" / "checkpoints" / "last.safetensors")["run"]
    assert run["train_scores"].shape == (16, 2)
    train.resume(tmp_path / "run")
    assert rows(tmp_path / "run") == rows(finished.folder)


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals on Windows")
def test_two_processes_rank_all_predictions(config, finished, tmp_path):
    two = replace(config, train=replace(config.train, devices=2))
    train.run(two, out=tmp_path / "two")
    for ours, theirs in zip(rows(tmp_path / "two"), rows(finished.folder), strict=True):
        assert ours.train_metric == pytest.approx(theirs.train_metric, rel=1e-5)
        assert ours.validation_metric == pytest.approx(theirs.validation_metric, rel=1e-5)


def test_a_contest_ranks_left_out_predictions(config, tmp_path):
    held = []
    result = contest(config, only="bank", out=tmp_path / "bank", say=held.append)
    assert result.test_metric == pytest.approx(area(tmp_path / "bank", "test")[0], abs=1e-9)
    assert held[0].metric == "AUROC"
    entry = next(one for one in held[0].entries if one.kind == "bank")
    assert 0.5 < entry.score <= 1  # the heart beats faster with sepsis


def test_plain_entries_rank_by_probabilities(config):
    from linrnn.contest import _linear
    from linrnn.contest._race import Scale
    from linrnn.contest._sequences import Pool, nearest
    from linrnn.train.model import build_task

    task = build_task(config)
    splits = task.datasets()
    pool = Pool.of(task, splits.train, splits.validation)
    scale = Scale(higher_is_better=True, best=1.0, independent=len(pool.target))
    linear, near = _linear.linear(pool, scale).entry, nearest(pool, scale)
    assert linear.name == "logistic regression"
    assert 0.5 < linear.score <= 1
    assert 0 < linear.standard_error < 0.5
    answers = torch.randn(len(pool.target), 2).numpy()
    expected = metrics.roc_auc_score(pool.answers, answers[:, 1] - answers[:, 0])
    assert pool.scores(answers).mean().item() == pytest.approx(expected, abs=1e-9)
    assert 0 <= near.score <= 1

"""Recall over segments: how far layers reach, who counts as answering, the page."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel, mixers
from linrnn.compare.match import count_parameters
from linrnn.reproductions import Setting
from linrnn.reproductions import segment_recall as recall
from linrnn.reproductions._page.runs import Runs
from linrnn.reproductions._page.verdict import NOT_KEPT, UNLEARNED
from linrnn.train.model import build_task

DISTANCES = [recall.later(d) for d in recall.DISTANCES]
each = pytest.mark.parametrize("label", recall.LAYERS)


@each
def test_a_layer_reaches_as_far_as_it_is_said_to(label):
    layer = recall.LAYERS[label]
    torch.manual_seed(0)
    mixer = mixers.load(layer.mixer)(32, **layer.options)
    x = torch.randn(1, recall.config().task_options.length, 32, requires_grad=True)
    far = mixer(x)[0].unflatten(1, (-1, recall.SEGMENT))
    found = []
    for d in range(far.shape[1]):
        (gradient,) = torch.autograd.grad(far[:, d].square().sum(), x, retain_graph=True)
        found.append(bool(gradient[:, : recall.SEGMENT].any()))
    assert found == [layer.reach is None or d <= layer.reach for d in range(far.shape[1])]


def test_models_are_of_about_one_size():
    base = recall.config()
    counts = [count_parameters(recall.with_layer(base, label, 1e-3)) for label in recall.LAYERS]
    assert max(counts) < 1.7 * min(counts)


@each
def test_a_row_differs_by_its_mixer_and_learning_rate_alone(label):
    base = recall.config()
    made = recall.with_layer(base, label, 0.02)
    assert made.optim == replace(base.optim, lr=0.02)
    kept = replace(made, mixer=base.mixer, mixer_options=base.mixer_options, optim=base.optim)
    assert kept == base


def test_pairs_are_in_the_first_segment_and_questions_in_all():
    task = build_task(recall.config())
    x, target = task.datasets().test[list(range(500))]
    asked = (target >= 0).view(500, -1, recall.SEGMENT).sum(2)
    assert asked.shape[1] == max(recall.DISTANCES) + 1
    assert (asked.sum(0) > 0).all()
    assert (x[:, : 2 * recall.N_PAIRS] > 0).all()
    assert (target[:, : 2 * recall.N_PAIRS] < 0).all()
    assert 2 * recall.N_PAIRS <= recall.SEGMENT


def test_what_is_right_is_told_apart_by_segments(monkeypatch):
    """A model that looks pairs up, and beyond three segments says what was not a value."""
    task = build_task(recall.config())

    class LooksUp(SequenceModel):
        def forward(self, x):
            found = torch.zeros_like(x)
            for pair in range(recall.N_PAIRS):
                key, value = x[:, 2 * pair, None], x[:, 2 * pair + 1, None]
                found = torch.where(x == key, value, found)
            found[:, 4 * recall.SEGMENT :] = 0
            return F.one_hot(found, task.d_output).float(), None

    model = LooksUp(task.d_output, task.d_output, mixer="mingru", d_model=2, n_layers=1)
    monkeypatch.setattr(recall, "load_model", lambda run: (model, task, None))
    assert recall.recalled(Path("a run")) == [1.0] * 4 + [0.0] * 5


@pytest.fixture
def claim_of(made_runs):
    """The claim about a layer whose five seeds answer at some distances, and nowhere else."""

    def claim(label, answers, **fields):
        runs = made_runs(recall.NAME, {label: dict.fromkeys(range(5), 0.4)}, chance=0.2, **fields)
        distances = range(max(recall.DISTANCES) + 1)
        shares = {recall.later(d): 1.0 if d in answers else 0.5 for d in distances}
        runs = Runs(tuple(replace(run, measures=shares) for run in runs.rows))
        (found,) = recall.SegmentRecall(labels=[label]).claims(runs, "cpu")
        return found

    return claim


@pytest.mark.parametrize(
    ("label", "answers", "points", "why"),
    [
        ("attention, window", (), 25, ""),
        ("attention, window", (1,), 25, ""),
        ("attention, window", (2,), -25, ""),
        ("compressive_transformer", (2,), 25, ""),
        ("compressive_transformer", (2, 4), -25, ""),
        ("compressive_transformer", (4, 8), -25, UNLEARNED),
        ("compressive_transformer", (), -25, UNLEARNED),
        ("rmt", (2, 4, 8), 25, ""),
        ("rmt", (2, 4), -25, UNLEARNED),
        ("rmt", (), -25, UNLEARNED),
    ],
)
def test_a_claim_holds_where_a_layer_answers_as_far_as_it_reaches(
    label, answers, points, why, claim_of
):
    """One that does not answer where it could may learn to."""
    found = claim_of(label, answers)
    assert found.differences == pytest.approx([points] * 5)
    assert found.held == (points > 0,) * 5
    assert (found.unit, found.why_not) == ("points from the bound", why)


def test_a_layer_that_does_no_better_than_chance_shows_nothing(made_runs, claim_of):
    assert claim_of("attention, window", ()).why_not == ""
    runs = made_runs(recall.NAME, {"gla": dict.fromkeys(range(5), 0.2)}, chance=0.2)
    runs = Runs(tuple(replace(run, measures=dict.fromkeys(DISTANCES, 0.2)) for run in runs.rows))
    window = Runs(tuple(replace(run, row="attention__window") for run in runs.rows))
    (found,) = recall.SegmentRecall(labels=["attention, window"]).claims(window, "cpu")
    assert (found.held, found.why_not) == ((True,) * 5, UNLEARNED)
    (found,) = recall.SegmentRecall(labels=["gla"]).claims(Runs(()), "cpu")
    assert (found.held, found.why_not) == ((), NOT_KEPT)


def test_nothing_is_judged_of_a_layer_that_nothing_is_said_of():
    assert recall.SegmentRecall(labels=["mingru"]).claims(Runs(()), "cpu") == []


def test_gradients_end_in_the_ablation_and_nothing_else_changes():
    made = recall.with_layer(recall.config(), recall.ABLATED, 1e-2)
    rows = recall.ablated(made, (0, 2))
    assert [row.mixer_options["memory_gradient"] for row in rows.values()] == [0, 2]
    for row in rows.values():
        assert replace(row, mixer_options=made.mixer_options) == made


@pytest.mark.slow
def test_the_page_is_written_and_goes_on(tmp_path, derived):
    """A second call finds every run there."""
    base = recall.config()
    options = replace(base.task_options, train_size=64, validation_size=32, test_size=32)
    base = replace(base, task_options=options, train=replace(base.train, epochs=1))
    labels = ["attention, window", recall.ABLATED]
    what = recall.SegmentRecall(base, labels, (1e-3, 1e-2), (0,))
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    found = what.run(setting)
    who, through, results, tried = found.tables
    assert [row[0] for row in who.rows] == labels
    assert [row[0] for row in through.rows] == [f"{recall.ABLATED}, through 0"]
    assert all("±" in cell for row in (*who.rows, *through.rows) for cell in row[1:5])
    assert [row[2] for row in results.rows] == ["2", "2"]
    assert all(len(row) == 4 for row in tried.rows)
    assert [len(claim.held) for claim in found.verdicts] == [2, 2]
    assert derived(what, found) == found.verdicts

    def answering(run):
        """With all questions answered by the layer that cannot look so far."""
        window = run.row == "attention__window" and run.measures
        return replace(run, measures=dict.fromkeys(run.measures, 1.0)) if window else run

    first, second = derived(what, found, change=answering)
    assert (first.held, second) == ((False, False), found.verdicts[1])
    assert set(found.figures) == {"distances", "curves-mqar-2-pairs"}
    done = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert len(done) == 8  # two rates each with a seed, the better with one more, and the ablation
    assert what.run(setting).tables == found.tables
    again = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/result.json"))
    assert again == done

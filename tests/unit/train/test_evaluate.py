import numpy as np
import pytest
import torch
from untrained_runs import untrained

from linrnn import train
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks import load
from linrnn.tasks.induction_heads import InductionHeadsOptions
from linrnn.train import evaluation


def test_evaluate_repeats_the_test_of_the_run(finished):
    score, config = train.evaluate(finished.folder)
    assert score.metric == finished.test_metric
    assert score.loss == finished.test_loss
    assert score.examples == 360
    assert config.task == "digits"


def test_load_model_gives_the_weights_that_were_tested(finished):
    model, task, _ = train.load_model(finished.folder)
    assert not model.training
    x, target = task.datasets().test[:]
    with torch.no_grad():
        right = (model(x)[0].argmax(-1) == target).double().mean().item()
    assert right == pytest.approx(finished.test_metric)


def test_predict_answers_each_row(finished, tmp_path):
    x, target = load("digits")().datasets().test[:]
    np.save(tmp_path / "rows.npy", 16 * x.flatten(1).numpy())
    answers = train.predict(finished.folder, tmp_path / "rows.npy")
    assert [a.index for a in answers] == list(range(360))
    right = np.mean([a.label == str(t) for a, t in zip(answers, target.tolist(), strict=True)])
    assert right == pytest.approx(finished.test_metric)
    assert all(0.1 <= a.probability <= 1 for a in answers)


@pytest.mark.unchecked
def test_predict_says_what_is_wrong_with_a_file(finished, tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((2, 63)))
    with pytest.raises(DataError, match="each row must hold 64 numbers, got 63"):
        train.predict(finished.folder, tmp_path / "rows.npy")


@pytest.fixture
def heads(tiny, tmp_path):
    """The folder of an untrained run whose task can be longer."""
    options = InductionHeadsOptions(length=16, test_size=10)
    return untrained(tiny, tmp_path / "heads", task="induction_heads", task_options=options)


def test_evaluate_at_another_length_is_the_test_of_that_task(heads):
    found, _ = train.evaluate(heads, length=40)
    model, task, _ = train.load_model(heads)
    x, target = task.at_length(40).datasets().test[range(10)]
    with torch.no_grad():
        y = model(x)[0]
    assert found.metric == pytest.approx((y.argmax(-1) == target).double().mean().item())
    assert found.loss == pytest.approx(task.loss(y, target).item(), rel=1e-5)
    assert found.examples == 10


def test_fewer_examples_are_spread_evenly(heads):
    found, _ = train.evaluate(heads, examples=3)
    model, task, _ = train.load_model(heads)
    x, target = task.datasets().test[[0, 3, 6]]
    with torch.no_grad():
        y = model(x)[0]
    assert found.loss == pytest.approx(task.loss(y, target).item(), rel=1e-5)
    right = (y.argmax(-1) == target).double()
    assert found.standard_error == pytest.approx(right.std().item() / 3**0.5)


def test_lengths_are_tested_streamed_or_not_with_the_same_result(heads, monkeypatch):
    whole = train.evaluate_lengths(heads, [100, 30], examples=5)
    monkeypatch.setattr(evaluation, "CHUNK", 32)
    streamed = train.evaluate_lengths(heads, [100, 30], examples=5)
    assert [found.length for found in streamed] == [30, 100]
    for a, b in zip(whole, streamed, strict=True):
        assert a.score.loss == pytest.approx(b.score.loss, rel=1e-5)
        assert a.score.metric == b.score.metric


def test_lengths_are_left_in_the_run_folder(heads):
    said = []
    train.evaluate_lengths(heads, [32, 16], examples=2, say=said.append)
    rows = (heads / "lengths.csv").read_text().splitlines()
    assert rows[0] == "length,steps,metric,value,standard_error,chance,loss,examples"
    assert [row.split(",")[0] for row in rows[1:]] == ["16", "32"]
    assert [found.length for found in said] == [16, 32]
    assert (heads / "lengths.png").stat().st_size > 0
    assert (heads / "lengths.svg").stat().st_size > 0


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("lengths", "examples", "message"),
    [
        ([], None, "at least one length, got none"),
        ([16, 2], None, "InductionHeads: length must be at least 3, got 2"),
        ([0], None, "length must be an integer of at least 1, got 0"),
        ([16], 0, "examples must be an integer of at least 1, got 0"),
    ],
)
def test_lengths_that_cannot_be_are_refused_before_any_is_tested(heads, lengths, examples, message):
    with pytest.raises(ArgumentError, match=message):
        train.evaluate_lengths(heads, lengths, examples=examples)
    assert not (heads / "lengths.csv").exists()


@pytest.mark.unchecked
def test_a_task_without_lengths_says_so(finished):
    with pytest.raises(ArgumentError, match="the task must have an option 'length'"):
        train.evaluate(finished.folder, length=128)

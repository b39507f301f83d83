import numpy as np
import pytest
import torch

from linrnn import train
from linrnn.errors import DataError
from linrnn.tasks import load


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

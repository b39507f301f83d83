from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn import recipes, train
from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.latch import SIGNS, Latch, LatchOptions


@pytest.fixture(scope="module")
def batch():
    return Latch().datasets().train[range(4000)]


def answers(signs, options=None):
    """Outputs that choose these symbols at the last step."""
    task = Latch(options)
    y = torch.zeros(len(signs), task.sequence_length, task.d_output)
    y[torch.arange(len(signs)), -1, signs] = 1
    return y


def test_a_sequence_is_a_sign_and_distractors_and_asks_for_the_sign(batch):
    x, target = batch
    assert x.shape == (4000, 100)
    assert x[:, 0].unique().tolist() == [0, 1]
    assert x[:, 1:].unique().tolist() == list(range(SIGNS, 101))
    assert torch.equal(target[:, -1], x[:, 0])
    assert (target[:, :-1] == IGNORE).all()


def test_signs_and_distractors_are_uniform_and_independent(batch):
    x = batch[0]
    assert x[:, 0].double().mean().item() == pytest.approx(0.5, abs=0.03)
    counts = np.bincount(x[:, 1:].flatten(), minlength=101)[SIGNS:]
    assert np.abs(counts / counts.mean() - 1).max() < 0.08
    sign, between = x[:, 0].double() - 0.5, x[:, 1:].double()
    correlation = (sign[:, None] * (between - between.mean(0))).mean(0) / between.std(0) / 0.5
    assert correlation.abs().max() < 0.08


def test_reading_the_first_symbol_solves_it_and_a_constant_has_chance(batch):
    x, target = batch
    task = Latch()
    assert task.scores(answers(x[:, 0]), target).min() == 1
    constant = task.scores(answers(torch.zeros(4000, dtype=torch.int64)), target).mean().item()
    assert constant == pytest.approx(task.chance, abs=0.03)


def test_every_step_adds_the_next_symbols_and_scores_the_answer_alone(batch):
    task = Latch(LatchOptions(every_step=True))
    x, target = task.datasets().train[range(4000)]
    assert torch.equal(x, batch[0])
    assert torch.equal(target[:, :-1], x[:, 1:])
    assert torch.equal(target[:, -1], x[:, 0])
    assert task.scores(answers(x[:, 0]), target).min() == 1


def test_a_length_of_one_is_the_sign_alone():
    x, target = Latch(LatchOptions(length=1)).datasets().test[range(5)]
    assert torch.equal(x, target)


@pytest.mark.unchecked
@pytest.mark.parametrize("option", ["length", "distractors"])
def test_bad_options(option):
    with pytest.raises(ArgumentError, match=f"Latch: {option} must be an integer of at least 1"):
        Latch(LatchOptions(**{option: 0}))


@pytest.mark.slow
def test_a_small_model_latches(tmp_path):
    config = recipes.load("latch").config
    options = replace(config.task_options, length=30, train_size=3_000)
    config = replace(config, task_options=options)
    assert train.run(config, out=tmp_path / "run").test_metric > 0.95

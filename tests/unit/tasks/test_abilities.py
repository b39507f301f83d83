"""Overwriting, brackets, forgetting and regression in context: an oracle each, and chance."""

import numpy as np
import pytest
import torch

from linrnn import tasks
from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE

SIZES = {"train_size": 4, "validation_size": 4, "test_size": 256}


def made(name, **options):
    cls = tasks.load(name)
    task = cls(cls.Options(**SIZES, **options))
    x, target = task.datasets().test[range(256)][:2]
    return task, x, target


def last_values(task, x):
    """The last value of each key, at the steps with a query."""
    keys, answers = task.options.n_keys, []
    for row in x.tolist():
        got = {}
        for key, value in zip(row[:-keys:2], row[1:-keys:2], strict=True):
            got[key] = value
        answers.append([0] * (len(row) - keys) + [got[key] for key in row[-keys:]])
    return torch.tensor(answers)


def innermost(task, x):
    kinds, answers = task.options.kinds, []
    for row in x.tolist():
        stack, answer = [], []
        for symbol in row:
            if symbol < kinds:
                stack.append(symbol)
            else:
                assert stack.pop() == symbol - kinds
            assert len(stack) <= task.options.depth
            answer.append(stack[-1] if stack else 0)
        answers.append(answer)
    return torch.tensor(answers)


def after_the_cue(task, x):
    answers, cue = [], task.options.vocabulary - 2
    for row in x.tolist():
        later = [symbol for symbol in row[row.index(cue) + 1 :] if 0 < symbol < cue]
        assert len(later) == task.options.n_tokens
        answers.append([0] * (len(row) - len(later)) + later)
    return torch.tensor(answers)


CLASSES = {
    "overwrite": ({"n_updates": 9}, last_values),
    "dyck": ({"depth": 6}, innermost),
    "forget": ({"n_before": 7}, after_the_cue),
}


@pytest.mark.parametrize("name", CLASSES)
def test_an_oracle_has_all_right_and_guessing_what_chance_has(name):
    options, oracle = CLASSES[name]
    task, x, target = made(name, **options)
    assert x.shape == target.shape == (256, task.sequence_length)
    assert ((target != IGNORE).sum(1) > 0).all()
    answer = torch.nn.functional.one_hot(oracle(task, x), task.d_output).float()
    assert task.scores(answer, target).mean() == 1.0
    scored = target[target != IGNORE]
    lowest, highest = int(scored.min()), int(scored.max())
    assert highest - lowest + 1 == round(1 / task.chance)
    draw = torch.Generator().manual_seed(0)
    guess = torch.randint(lowest, highest + 1, target.shape, generator=draw)
    blind = torch.nn.functional.one_hot(guess, task.d_output).float()
    assert float(task.scores(blind, target).mean()) == pytest.approx(task.chance, abs=0.05)


def test_depth_is_reached():
    _, x, _ = made("dyck", depth=8)
    heights = np.cumsum(np.where(x.numpy() < 4, 1, -1), 1)
    assert heights.max() == 8
    assert (heights.max(1) >= 6).mean() > 0.5


def test_least_squares_solves_the_regression_and_zero_has_chance():
    task, x, target = made("in_context_regression", rank=3)
    shown, values = x[:, :6, :3].double(), x[:, :6, 3:4].double()
    weights = torch.linalg.lstsq(shown, values).solution
    answer = (x[..., :3].double() @ weights).float()
    assert float(task.scores(answer, target).mean()) < 1e-4
    zero = float(task.scores(torch.zeros_like(target), target).mean())
    assert zero == pytest.approx(task.chance, abs=0.2)
    assert (x[:, 6:, 3] == 0).all()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("overwrite", {"n_updates": 0}, "n_updates"),
        ("dyck", {"depth": 1}, "depth must be at least 2, got 1"),
        ("forget", {"vocabulary": 4}, "vocabulary must be at least 5, got 4"),
        ("in_context_regression", {"rank": 0}, "rank"),
    ],
)
def test_what_makes_no_task_is_refused(name, options, text):
    with pytest.raises(ArgumentError, match=text):
        made(name, **options)


@pytest.mark.parametrize("name", [*CLASSES, "in_context_regression"])
def test_an_example_is_shown(name):
    assert len(made(name)[0].example().splitlines()) == 2

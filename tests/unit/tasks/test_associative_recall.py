from collections import Counter

import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.associative_recall import AssociativeRecall, AssociativeRecallOptions


def logits(tokens, d_output=21):
    """Outputs (batch, time, d_output) that choose these tokens at the last step."""
    y = torch.zeros(len(tokens), 42, d_output)
    y[torch.arange(len(tokens)), -1, torch.as_tensor(np.array(tokens))] = 1
    return y


@pytest.fixture(scope="module")
def batch():
    return AssociativeRecall().datasets().train[range(3000)]


def test_pairs_then_a_question(batch):
    x, target = batch
    keys, values = x[:, 0:40:2], x[:, 1:40:2]
    assert set(keys.unique().tolist()) == set(range(10))
    assert set(values.unique().tolist()) == set(range(10, 20))
    assert (x[:, 40] == 20).all()
    assert (x[:, 41:] == keys).any(1).all()
    for k in range(10):  # one value a key and sequence
        chosen = [row[k_row == k] for row, k_row in zip(values, keys, strict=True)]
        assert all(len(set(v.tolist())) <= 1 for v in chosen)
    assert torch.equal(target[:, :-1], x[:, 1:])


def test_a_dictionary_solves_it(batch):
    x, target = batch
    y = [dict(zip(row[0:40:2], row[1:40:2], strict=True))[row[41]] for row in x.numpy()]
    assert AssociativeRecall().scores(logits(y), target).min() == 1


def test_chance_and_the_best_answer_without_the_question(batch):
    x, target = batch
    task = AssociativeRecall()
    constant = task.scores(logits([13] * 3000), target).mean()
    assert constant == pytest.approx(task.chance, abs=0.02)
    frequent = [Counter(row[1:40:2].tolist()).most_common(1)[0][0] for row in x.numpy()]
    assert task.scores(logits(frequent), target).mean() == pytest.approx(0.27, abs=0.05)


def test_the_loss_can_be_on_the_answer_alone(batch):
    options = AssociativeRecallOptions(every_step=False)
    x, target = AssociativeRecall(options).datasets().train[range(3000)]
    assert torch.equal(x, batch[0])
    assert torch.equal(target[:, -1], batch[1][:, -1])
    assert (target[:, :-1] == IGNORE).all()


@pytest.mark.unchecked
@pytest.mark.parametrize("option", ["length", "vocabulary"])
@pytest.mark.parametrize("value", [0, 7])
def test_bad_options(option, value):
    message = f"AssociativeRecall: {option} must be even and at least 2, got {value}"
    with pytest.raises(ArgumentError, match=message):
        AssociativeRecall(AssociativeRecallOptions(**{option: value}))

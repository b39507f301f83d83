import numpy as np
import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks.mqar import MQAR, MQAROptions, assemble


@pytest.fixture(scope="module")
def batch():
    return MQAR().datasets().train[range(4000)]


def choose(random, options, size, examples, p=None):
    return np.stack([random.choice(options, size, replace=False, p=p) for _ in range(examples)])


def test_assemble_gives_the_published_codes_sample():
    random = np.random.RandomState(0)  # what zoology draws for V=20, 3 examples, L=16, n=2
    keys = choose(random, np.arange(1, 10), 2, 3)
    values = choose(random, np.arange(10, 20), 2, 3)
    weights = np.arange(1, 7) ** -0.99
    gaps = choose(random, np.arange(6), 2, 3, weights / weights.sum())
    x, target = assemble(keys, values, gaps, 16)
    assert x.tolist() == [
        [8, 15, 3, 11, 8, 0, 3] + [0] * 9,
        [4, 15, 2, 12, 4] + [0] * 9 + [2, 0],
        [6, 11, 3, 18, 0, 0, 6, 0, 3] + [0] * 7,
    ]
    asked = [{i: v for i, v in enumerate(row) if v != IGNORE} for row in target.tolist()]
    assert asked == [{4: 15, 6: 11}, {4: 15, 14: 12}, {6: 11, 8: 18}]


def test_gaps_are_used_as_often_as_in_the_published_code(batch):
    asked = batch[1][:, 8::2] != IGNORE
    assert (asked.sum(1) == 4).all()
    found = asked[:, :3].double().mean(0)
    assert torch.allclose(found, torch.tensor([0.728, 0.4615, 0.3455]).double(), atol=0.035)


def test_power_one_asks_anywhere():
    asked = MQAR(MQAROptions(power=1.0)).datasets().train[range(4000)][1][:, 8::2] != IGNORE
    assert (asked.double().mean(0) - 4 / 28).abs().max() < 0.03


def test_every_key_occurs_once_in_the_context_and_once_as_a_question(batch):
    x, target = (v.numpy() for v in batch)
    for row, wanted in zip(x[:200], target[:200], strict=True):
        keys, values = row[0:8:2], row[1:8:2]
        assert len(set(keys)) == len(set(values)) == 4
        assert keys.min() >= 1
        assert keys.max() < 4096 <= values.min()
        places = np.flatnonzero(wanted != IGNORE)
        assert sorted(row[places]) == sorted(keys)
        assert (row[8:][wanted[8:] == IGNORE] == 0).all()
        assert (wanted[:8] == IGNORE).all()


@pytest.mark.parametrize("fill", [False, True])
def test_a_dictionary_solves_it(fill):
    options = MQAROptions(vocabulary=64, length=32, random_fill=fill)
    task = MQAR(options)
    x, target = task.datasets().train[range(200)]
    y = torch.zeros(200, 32, 64)
    for i, row in enumerate(x.tolist()):
        value_of = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        for t, token in enumerate(row):
            y[i, t, value_of.get(token, 0)] = 1
    assert task.scores(y, target).min() == 1
    assert ((x[:, 8:] == 0).double().mean() < 0.1) == fill


def test_chance_is_that_of_a_constant_value():
    task = MQAR(MQAROptions(vocabulary=16, length=32))
    x, target = task.datasets().train[range(3000)]
    y = torch.zeros(*x.shape, 16)
    y[..., 12] = 1
    assert task.chance == 1 / 8
    assert task.scores(y, target).mean() == pytest.approx(task.chance, abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 14}, r"length must be even and at least 4 \* n_pairs = 16, got 14"),
        ({"length": 65}, r"length must be even and at least 4 \* n_pairs = 16, got 65"),
        ({"vocabulary": 8}, r"vocabulary must be even and at least 2 \* n_pairs \+ 2 = 10, got 8"),
        ({"vocabulary": 31}, "vocabulary must be even"),
        ({"power": 0.0}, r"power must be in \(0, 1\], got 0.0"),
        ({"n_pairs": 0}, "n_pairs must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match="MQAR: " + message):
        MQAR(MQAROptions(**options))


@pytest.mark.unchecked
def test_at_length_too_short():
    with pytest.raises(ArgumentError, match=r"at least 4 \* n_pairs = 16, got 8"):
        MQAR().at_length(8)

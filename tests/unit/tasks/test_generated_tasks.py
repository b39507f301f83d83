"""Properties of every generated task: `linrnn.tasks._kinds.drawing`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn import tasks
from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks._kinds.drawing import GeneratedOptions, distinct
from linrnn.tasks._kinds.generated import uniforms

NAMES = [n for n in tasks.names() if issubclass(tasks.load(n).Options, GeneratedOptions)]
each_generated = pytest.mark.parametrize("name", NAMES)
SMALL = {"train_size": 40, "validation_size": 20, "test_size": 30}
#: a shorter setting of each, so that nothing here takes long
LENGTH = {"mackey_glass": 200, "selective_copy": 100, "capacity": 250, "delay": 150}
LENGTH["reconstruct"] = 150
MORE = {"capacity": {"window": 100}, "delay": {"lag": 50}, "reconstruct": {"window": 40}}


def make(name, **options):
    cls = tasks.load(name)
    length = {"length": LENGTH[name]} if name in LENGTH else {}
    return cls(cls.Options(**(SMALL | length | MORE.get(name, {}) | options)))


def rows(data):
    """Each input of a data set as bytes."""
    return [row.numpy().tobytes() for row in data[range(len(data))][0]]


def test_all_nine_are_found():
    assert len(NAMES) >= 9


@each_generated
def test_an_example_is_the_same_in_any_batch(name):
    data = make(name).datasets().train
    whole = data[range(40)]
    for index in (0, 7, 39):
        for one, many in zip(data[index], whole, strict=True):
            assert torch.equal(one, many[index])
    shuffled = data[[39, 7, 0]]
    assert all(torch.equal(a[1], b[7]) for a, b in zip(shuffled, whole, strict=True))


@each_generated
def test_nothing_depends_on_the_seeds_of_the_process(name):
    first = make(name).datasets().test[range(5)]
    np.random.seed(9)
    torch.manual_seed(9)
    for a, b in zip(first, make(name).datasets().test[range(5)], strict=True):
        assert torch.equal(a, b)


@each_generated
def test_splits_have_their_sizes_and_share_no_sequence(name):
    splits = make(name).datasets()
    assert [len(part) for part in splits] == [40, 20, 30]
    inputs = [row for part in splits for row in rows(part)]
    assert len(set(inputs)) == 90


@each_generated
def test_data_seed_gives_other_sequences(name):
    seen = set(rows(make(name).datasets().train))
    assert seen.isdisjoint(rows(make(name, data_seed=1).datasets().train))


@each_generated
def test_numbers_that_describe_the_data_are_true(name):
    task = make(name)
    x, target = task.datasets().train[range(8)]
    if task.encoder == "tokens":
        assert x.shape == (8, task.sequence_length)
        assert x.dtype == target.dtype == torch.int64
        assert x.min() >= 0
        assert x.max() < task.d_input
        asked = target[target != IGNORE]
        assert asked.min() >= 0
        assert asked.max() < task.d_output
    else:
        assert x.shape == (8, task.sequence_length, task.d_input)
        assert x.dtype == target.dtype == torch.float32
        assert target.shape[-1] == task.d_output
    if task.pools == ("none",):
        assert target.shape[:2] == x.shape[:2]
    else:
        assert target.shape in ((8,), (8, task.d_output))


@each_generated
def test_at_length_changes_the_length_alone(name):
    task = make(name)
    option = task.length_option
    if name == "in_context_regression":  # of another rank inputs would have other channels
        with pytest.raises(ArgumentError, match="must have an option 'length'"):
            task.at_length(100)
        return
    length = 2 * getattr(task.options, option)
    longer = task.at_length(length)
    assert type(longer) is type(task)
    assert longer.options == replace(task.options, **{option: length})
    assert longer.sequence_length > task.sequence_length
    assert (longer.d_input, longer.d_output) == (task.d_input, task.d_output)
    x, _ = longer.datasets().test[0]
    assert len(x) == longer.sequence_length


@each_generated
def test_example_is_a_few_lines_of_symbols(name):
    text = tasks.load(name)().example()
    assert "tensor" not in text
    assert 2 <= len(text.splitlines()) <= 3
    assert "\ntarget " in text
    assert max(map(len, text.splitlines())) < 250


@pytest.mark.unchecked
@each_generated
@pytest.mark.parametrize("option", ["train_size", "validation_size", "test_size"])
def test_sizes_are_positive(name, option):
    with pytest.raises(ArgumentError, match=rf"{option} must be an integer of at least 1, got 0"):
        make(name, **{option: 0})


@pytest.mark.unchecked
@each_generated
def test_data_seed_is_not_negative(name):
    with pytest.raises(ArgumentError, match="data_seed must be at least 0, got -1"):
        make(name, data_seed=-1)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 5), (5, 5), (16, 10**6)])
def test_distinct_are_different_and_uniform_in_every_place(k, n):
    calls = iter(range(10))
    found = distinct(lambda m: uniforms(0, np.arange(4000), next(calls), m), k, n)
    assert found.shape == (4000, k)
    assert (np.diff(np.sort(found, 1), axis=1) > 0).all()
    assert found.min() >= 0
    assert found.max() < n
    if n == 5:
        for column in found.T:
            assert np.abs(np.bincount(column, minlength=5) / 4000 - 0.2).max() < 0.03

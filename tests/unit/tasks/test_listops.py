import gzip

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.expressions import SYMBOLS
from linrnn.tasks.listops import ListOps, ListOpsOptions, evaluate

SHORT = {"min_length": 20, "max_length": 80}


def make(**options):
    return ListOps(ListOpsOptions(**options))


def words(row, length):
    """The symbols of a row without the one that ends it."""
    return [SYMBOLS[i] for i in row[: length - 1].tolist()]


@pytest.fixture(scope="module")
def batch():
    return ListOps().datasets().train[range(3000)]


def length_distribution(min_length, max_length, max_depth=10, max_args=10):
    """Exact probabilities of the kept lengths, from the recursion that defines a tree."""
    leaf = np.zeros(max_length)
    leaf[1] = 1.0
    tree = leaf
    for _ in range(max_depth - 1):
        spectrum = np.fft.rfft(tree, 16 * max_length)  # products wrap round only beyond the end
        powers = sum(spectrum**k for k in range(2, max_args + 1)) / (max_args - 1)
        lists = np.fft.irfft(powers)[:max_length]
        tree = 0.75 * leaf + 0.25 * np.concatenate([[0, 0], lists[:-2]])
    kept = tree[min_length + 1 :].clip(0)
    return kept.sum(), kept / kept.sum()


EXAMPLES = {
    "[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]": 5,
    "[SM 5 6 7 ]": 8,
    "[MED 1 2 ]": 1,
    "[MED 3 8 ]": 5,
    "( ( ( ( ( [SM 6 ) 5 ) 9 ) 0 ) ] )": 0,
    "7": 7,
}


@pytest.mark.parametrize(("expression", "value"), EXAMPLES.items())
def test_evaluate_published_examples(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize("name", ["test_d20s", "test_d20a"])
def test_evaluate_agrees_with_every_reference_label(shared_data, name):
    text = gzip.decompress((shared_data / "listops" / f"{name}.tsv.gz").read_bytes()).decode()
    lines = [line.split("\t") for line in text.splitlines()]
    assert len(lines) == 10_000
    assert [evaluate(expression) for _, expression in lines] == [int(label) for label, _ in lines]


@pytest.mark.unchecked
@pytest.mark.parametrize("text", ["", "[MAX 1 2", "[MAX ]", "1 2", "]", "[SUM 1 2 ]", "[SM 12 3 ]"])
def test_evaluate_incomplete_expression(text):
    with pytest.raises(DataError, match="evaluate: the expression must be complete, got"):
        evaluate(text)


def test_values_are_those_of_the_written_expressions(batch):
    x, target, length = (part[:300] for part in batch)
    written = [" ".join(words(row, n)) for row, n in zip(x, length, strict=True)]
    assert [evaluate(text) for text in written] == target.tolist()


def test_rows_end_once_and_are_padded(batch):
    x, _, length = batch
    assert x.shape == (3000, 2000)
    steps = torch.arange(2000)
    assert torch.equal(x == 0, steps >= length[:, None])
    assert torch.equal(x == 2, steps == length[:, None] - 1)
    assert set(x.unique().tolist()) == {0, *range(2, 18)}  # 15 symbols, padding and the end
    assert length.min() - 1 >= 501
    assert length.max() - 1 <= 1999


def test_lengths_follow_the_exact_distribution(batch):
    accepted, kept = length_distribution(500, 2000)
    assert accepted == pytest.approx(0.082, abs=1e-3)
    cdf = np.concatenate([[0.0], kept.cumsum()])
    lengths = (batch[2] - 1 - 501).numpy()
    u = cdf[lengths] + np.random.RandomState(0).rand(len(lengths)) * kept[lengths]
    assert kstest(u, "uniform").pvalue > 1e-3


def test_answers_are_distributed_as_published(batch):
    share = torch.bincount(batch[1], minlength=10) / len(batch[1])
    assert share[[0, 9]].tolist() == pytest.approx([0.171, 0.173], abs=0.02)
    assert ((share[1:9] > 0.056) & (share[1:9] < 0.111)).all()
    assert share.max() == pytest.approx(ListOps().chance, abs=0.02)


def test_every_part_of_an_expression_is_uniform(batch):
    x = batch[0]
    digits = torch.bincount(x[(x >= 3) & (x < 13)] - 3, minlength=10).double()
    operators = torch.bincount(x[(x >= 13) & (x < 17)] - 13, minlength=4).double()
    assert (digits / digits.sum()).tolist() == pytest.approx([0.1] * 10, abs=0.002)
    assert (operators / operators.sum()).tolist() == pytest.approx([0.25] * 4, abs=0.005)


def test_depth_and_number_of_arguments(batch):
    deepest, arguments = [], set()
    for row, length in zip(batch[0][:100], batch[2][:100], strict=True):
        open_lists, most = [0], 0
        for symbol in words(row, length):
            if symbol == "]":
                arguments.add(open_lists.pop())
                continue
            open_lists[-1] += 1
            if symbol.startswith("["):
                open_lists.append(0)
                most = max(most, len(open_lists) - 1)
        deepest.append(most)
    assert max(deepest) == 9  # and digits below: ten nodes from the root to a digit
    assert arguments == set(range(2, 11))


def test_an_example_depends_on_its_index_alone():
    data = make(**SHORT).datasets().train
    whole = data[range(300)]
    np.random.seed(9)
    for index in (0, 7, 299):
        for one, many in zip(data[index], whole, strict=True):
            assert torch.equal(one, many[index])
    again = make(**SHORT).datasets().train[[299, 7]]
    assert all(torch.equal(a[1], b[7]) for a, b in zip(again, whole, strict=True))


def test_splits_and_seeds_give_other_expressions():
    splits = make(**SHORT, train_size=500, validation_size=300, test_size=200).datasets()
    assert [len(part) for part in splits] == [500, 300, 200]
    parts = [*splits, make(**SHORT, data_seed=1).datasets().train]
    rows = [row.numpy().tobytes() for part in parts for row in part[range(200)][0]]
    assert len(set(rows)) == 800


def test_the_data_never_changes():
    x, target, length = make(**SHORT).datasets().test[range(3)]
    assert length.tolist() == [43, 29, 80]
    assert target.tolist() == [6, 0, 9]
    assert " ".join(words(x[0], length[0])) == (
        "[MAX [MIN 8 4 2 8 9 3 [MAX [MED 9 4 [MAX 1 4 7 1 ] 8 ] [MAX [MAX 9 3 2 3 7 3 ] 0 ] "
        "7 7 8 1 5 4 ] ] 4 6 ]"
    )


def test_at_length_keeps_the_proportion_of_the_lengths():
    task = make(train_size=7).at_length(200)
    assert task.options == ListOpsOptions(min_length=50, max_length=200, train_size=7)
    _, _, length = task.datasets().test[range(200)]
    assert length.min() - 1 >= 51
    assert length.max() - 1 <= 199


def test_options_bound_depth_and_arguments():
    x, _, _ = make(min_length=3, max_length=9, max_depth=2, max_args=4).datasets().test[range(50)]
    assert ((x >= 13) & (x < 17)).sum(1).max() == 1
    assert ((x >= 3) & (x < 13)).sum(1).max() == 4


def test_example_is_short():
    text = ListOps().example()
    assert evaluate(text.split("input ")[1].split("\n")[0]) == int(text.split("target ")[1])
    assert len(text) < 200


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("min_length", -1, "at least 0"),
        ("max_length", 501, r"at least min_length \+ 2"),
        ("max_args", 1, "at least 2"),
        ("max_depth", 0, "an integer of at least 1"),
        ("train_size", 0, "an integer of at least 1"),
        ("data_seed", -1, "at least 0"),
    ],
)
def test_bad_options(option, value, rule):
    with pytest.raises(ArgumentError, match=f"ListOps: {option} must be {rule}, got {value}"):
        make(**{option: value})


@pytest.mark.unchecked
def test_lengths_that_hardly_occur():
    with pytest.raises(ArgumentError, match=r"more than 500 and fewer than 2000.*must not be rare"):
        make(max_depth=2).datasets().train[0]

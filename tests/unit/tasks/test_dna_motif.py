import numpy as np
import pytest
import torch

from linrnn import recipes, train
from linrnn.errors import ArgumentError
from linrnn.tasks.dna_motif import DNAMotif, DNAMotifOptions

SMALL = {"train_size": 300, "validation_size": 10, "test_size": 100}


def make(**options):
    return DNAMotif(DNAMotifOptions(**(SMALL | options)))


def simulated(task, rows=300):
    """Bases, and the planted ones or -1, from the first to the last target."""
    return [v.numpy() for v in task._whole().train[list(range(rows))]]


def test_targets_are_the_next_bases():
    task = make()
    x, target = task.datasets().train[range(300)]
    assert x.shape == target.shape == (300, 512)
    assert torch.equal(x[:, 1:], target[:, :-1])
    bases, _ = simulated(task)
    assert np.array_equal(x, bases[:, :-1])
    assert np.array_equal(target, bases[:, 1:])


def test_every_part_has_one_whole_word():
    task = make()
    _, planted = simulated(task)
    parts = planted[:, 1:].reshape(300, 8, 64)
    assert ((parts >= 0).sum(2) == 16).all()
    words = {tuple(word) for word in task.words.tolist()}
    assert {tuple(part[part >= 0].tolist()) for part in parts.reshape(-1, 64)} == words
    first = (parts >= 0).argmax(2)
    assert first.min() == 0
    assert first.max() == 48


def test_bases_of_words_are_mutated_as_often_as_said():
    bases, planted = simulated(make(mutation=0.1))
    inside = planted >= 0
    changed = bases[inside] != planted[inside]
    assert changed.mean() == pytest.approx(0.1, abs=0.005)
    difference = (bases[inside] - planted[inside])[changed] % 4
    assert np.abs(np.bincount(difference, minlength=4)[1:] / len(difference) - 1 / 3).max() < 0.03
    bases, planted = simulated(make(mutation=0.0))
    assert (bases[planted >= 0] == planted[planted >= 0]).all()


def test_the_background_follows_the_table():
    task = make(train_size=1_000)
    bases, planted = simulated(task, 1_000)
    context = bases[:, :-3] * 16 + bases[:, 1:-2] * 4 + bases[:, 2:-1]
    outside = planted[:, 3:] < 0
    counts = np.zeros((64, 4))
    np.add.at(counts, (context[outside], bases[:, 3:][outside]), 1)
    share = counts / counts.sum(1, keepdims=True)
    assert np.abs(share - task.table).max() < 0.05
    assert np.allclose(task.table.sum(1), 1)


def test_splits_share_no_sequence_but_table_and_words():
    task = make()
    rows = {x.numpy().tobytes() for p in task.datasets() for x in p[range(len(p))][0]}
    assert len(rows) == 410
    other = make(data_seed=1)
    assert not np.array_equal(other.words, task.words)
    assert not np.allclose(other.table, task.table)


def test_the_metric_is_bits_a_base_and_chance_two():
    task = make()
    _, target = task.datasets().test[range(50)]
    y = torch.zeros(50, 512, 4)
    assert task.scores(y, target).tolist() == pytest.approx([2.0] * 50)
    y.scatter_(2, target[..., None], 1000.0)
    assert task.scores(y, target).max() == 0


def test_markov_models_of_higher_order_are_better_and_the_truth_is_best():
    found = DNAMotif().baselines()
    orders = [found[f"order {k}"] for k in (0, 1, 2, 3, 6)]
    assert orders == sorted(orders, reverse=True)
    assert found["order 0"] < 2
    assert found["order 3"] == pytest.approx(1.672, abs=0.001)
    assert found["order 8"] == pytest.approx(1.459, abs=0.001)
    assert found["places known"] == pytest.approx(1.270, abs=0.001)


def test_without_words_the_third_order_is_the_truth():
    found = make(motif_length=1, copies=1, train_size=2_000).baselines()
    assert found["order 3"] == pytest.approx(found["places known"], abs=0.01)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 127}, r"length must be at least copies \* motif_length = 128, got 127"),
        ({"mutation": 1.5}, r"mutation must be in \[0, 1\], got 1.5"),
        ({"motifs": 0}, "motifs must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ArgumentError, match="DNAMotif: " + message):
        make(**options)


@pytest.mark.slow
def test_a_small_model_beats_every_markov_model(tmp_path):
    config = recipes.load("dna_motif").config
    assert train.run(config, out=tmp_path / "run").test_metric < 1.459

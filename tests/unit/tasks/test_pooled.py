"""Sets of series that are pooled and split anew: EigenWorms and its like, BIDMC."""

import gzip

import numpy as np
import pytest
import torch
from made_data import write_ts_pair

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks.bidmc import BIDMC, BIDMCOptions
from linrnn.tasks.uea import UEA, UEAOptions


@pytest.fixture
def worms(tmp_path):
    """The folder of two files, their sequences and labels."""
    return tmp_path, *write_ts_pair(tmp_path, "EigenWorms")


def make(place, **options):
    return UEA(UEAOptions(**{"data": str(place), "check_counts": False} | options))


def rows_of(splits):
    return [row for part in splits for row in part[:][0]]


def test_two_files_are_pooled_scaled_and_split(worms):
    folder, x, y = worms
    task = make(folder)
    splits = task.datasets()
    assert [len(part) for part in splits] == [21, 4, 5]
    order = np.random.RandomState(2345).permutation(30)
    train = x[order[:21]]
    mean, std = train.mean((0, 1)), train.std((0, 1))
    for part, rows in zip(splits, np.split(order, [21, 25]), strict=True):
        expected = torch.from_numpy((x[rows] - mean) / std).float()
        assert torch.allclose(part[:][0], expected, atol=1e-5)
        labels = [task.class_names[i] for i in part[:][1].tolist()]
        assert labels == [y[i] for i in rows]
    assert (task.sequence_length, task.d_input, task.d_output) == (12, 3, 2)
    share = np.mean([y[i] == max(set(y), key=[y[j] for j in order[:21]].count) for i in order[25:]])
    assert task.chance == pytest.approx(share)


def test_another_seed_splits_in_another_way_and_a_repetition_is_taken_once(worms):
    folder, _, _ = worms
    first, second = (make(folder, split_seed=seed).datasets() for seed in (2345, 3456))
    assert not torch.equal(first.test[:][1], second.test[:][1]) or not torch.allclose(
        first.test[:][0], second.test[:][0]
    )
    path = folder / "EigenWorms_TEST.ts"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]))
    for a, b in zip(rows_of(first), rows_of(make(folder).datasets()), strict=True):
        assert torch.equal(a, b)


def test_real_series_of_the_layout(shared_data, tmp_path):
    """Movements of the wrist stand for the worms, under the name of their files alone."""
    for part in ("TRAIN", "TEST"):
        content = (shared_data / "timeseries" / f"BasicMotions_{part}.ts.gz").read_bytes()
        (tmp_path / f"EigenWorms_{part}.ts").write_bytes(gzip.decompress(content))
    task = make(tmp_path)
    splits = task.datasets()
    assert [len(part) for part in splits] == [56, 12, 12]
    assert (task.sequence_length, task.d_input) == (100, 6)
    assert task.class_names == ("Badminton", "Running", "Standing", "Walking")
    with pytest.raises(DataError, match=r"EigenWorms: there must be 259 sequences in .* got 80"):
        make(tmp_path, check_counts=True).datasets()


def test_numbers_are_scaled_for_training_and_scored_in_their_units(tmp_path):
    _, y = write_ts_pair(tmp_path, "BIDMC32HR", regression=True)
    task = BIDMC(BIDMCOptions(data=str(tmp_path), check_counts=False))
    test = task.datasets().test
    order = np.random.RandomState(0).permutation(30)
    truth = np.array([float(y[i]) for i in order[25:]])
    assert task.numbers(test[:][1])[:, 0].tolist() == pytest.approx(truth.tolist(), rel=1e-5)
    mean = np.mean([float(y[i]) for i in order[:21]])
    scores = task.scores(torch.zeros(5, 1), test[:][1])
    assert scores.tolist() == pytest.approx(((truth - mean) ** 2).tolist(), rel=1e-4)
    assert task.chance == pytest.approx(np.mean((truth - mean) ** 2), rel=1e-6)
    assert task.loss(torch.zeros(5, 1), test[:][1]).item() != pytest.approx(task.chance)


def test_a_run_keeps_what_its_model_needs(worms, tmp_path):
    folder, x, _ = worms
    task = make(folder)
    (tmp_path / "run").mkdir()
    for name, text in task.run_files().items():
        (tmp_path / "run" / name).write_text(text)
    again = UEA.of_run(task.options, tmp_path / "run")
    given = torch.from_numpy(x[:2]).float()
    assert torch.equal(again.scaled(given), task.scaled(given))
    assert again.class_names == task.class_names
    assert torch.equal(again.datasets().test[:][0], task.datasets().test[:][0])
    path = folder / "EigenWorms_TEST.ts"
    path.write_text(path.read_text().replace("0.", "1."))
    with pytest.raises(DataError, match="the data must be those the run began with"):
        UEA.of_run(task.options, tmp_path / "run").datasets()


@pytest.mark.unchecked
def test_data_that_cannot_be_used(worms, tmp_path):
    folder, _, _ = worms
    with pytest.raises(DataError, match=r"must hold EigenWorms_TRAIN\.ts and EigenWorms_TEST\.ts"):
        make(tmp_path / "none").datasets()
    test = folder / "EigenWorms_TEST.ts"
    text = test.read_text()
    test.write_text(
        "\n".join(f"{s.partition(':')[2]}" if ":" in s else s for s in text.split("\n"))
    )
    with pytest.raises(DataError, match="sequences must have 3 channels as the training file, got"):
        make(folder).datasets()
    test.write_text(text.replace("a", "z"))
    with pytest.raises(DataError, match=r"EigenWorms_TEST\.ts: .*"):
        make(folder).datasets()
    with pytest.raises(UnknownNameError, match="no UEA set named 'Worms'"):
        UEA(UEAOptions(set="Worms"))
    with pytest.raises(ArgumentError, match="UEA: split_seed must be at least 0 and below"):
        UEA(UEAOptions(split_seed=-1))
    with pytest.raises(UnknownNameError, match="no BIDMC target named 'BP'"):
        BIDMC(BIDMCOptions(target="BP"))

"""Patients in intensive care: what is read of a stay, how it is split, and how it is scored."""

import numpy as np
import pytest
import torch
from made_data import PSV, write_patients

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.sepsis import Sepsis, SepsisOptions


@pytest.fixture
def patients(tmp_path):
    """A folder of patients, and their tables by path."""
    return tmp_path / "sepsis", write_patients(tmp_path / "sepsis")


def make(place, **options):
    return Sepsis(
        SepsisOptions(**{"data": str(place), "check_counts": False, "hours": 12} | options)
    )


def features(table, mean, std, hours=12):
    """The inputs of a model from a table (time, 41), hour by hour."""
    last, seen, rows = np.full(39, np.nan), np.zeros(34), []
    for hour, row in enumerate(table[:, :39], 1):
        seen += ~np.isnan(row[:34])
        last = np.where(np.isnan(row), last, (row - mean) / std)
        known = ~np.isnan(row[36:38])
        rows.append([hour / hours, *np.nan_to_num(last), *(seen / hours), *known])
    return np.array(rows)


def test_a_stay_is_read_hour_by_hour(patients):
    folder, tables = patients
    task = make(folder)
    splits = task.datasets()
    sizes = [len(part) for part in splits]
    assert sizes == [8 + 19, 2 + 4, 2 + 5]  # of 12 patients with sepsis, and 28 without
    by_age = {table[0, 34]: table for table in tables.values()}
    mean, std = np.array(task.known.mean), np.array(task.known.std)
    train, ages = [], []
    for split, part in enumerate(splits):
        for x, target, length in part:
            age = round(float(x[0, 35]) * std[34] + mean[34])
            table = by_age[age]
            ages.append(age)
            expected = features(table, mean, std)
            assert np.allclose(x[:length], expected, atol=1e-5)
            assert length == len(table)
            assert not x[length:].any()
            assert target == int(table[:, 40].any())
            train += [table[:, :39]] if split == 0 else []
    assert sorted(ages) == sorted(by_age)
    steps = np.concatenate(train)
    assert mean[[0, 31, 34]] == pytest.approx(np.nanmean(steps[:, [0, 31, 34]], 0), rel=1e-6)
    assert (task.d_input, task.sequence_length) == (76, 12)


def test_without_counts_and_with_fewer_hours(patients):
    folder, tables = patients
    task = make(folder, counts=False, hours=8)
    train = task.datasets().train
    x, _, length = train[range(len(train))]
    assert x.shape[1:] == (8, 40)
    assert length.max() == 8
    positive = sum(bool(table[:8, 40].any()) for table in tables.values())
    assert sum(int(target) for part in task.datasets() for _, target, _ in part) == positive < 12


def test_an_hour_without_a_row_is_missing_and_a_short_stay_left_out(patients):
    folder, tables = patients
    path = next(iter(tables))
    header, first, second, third, *_ = path.read_text().splitlines()
    cells = third.split("|")
    cells[39] = "6"
    path.write_text("\n".join([header, first, second, "|".join(cells)]))
    age = tables[path][0, 34]
    task = make(folder)
    rows = [row for part in task.datasets() for row in part]
    mean, std = task.known.mean[34], task.known.std[34]
    (row,) = [r for r in rows if round(float(r[0][0, 35]) * std + mean) == age]
    x, _, length = row
    assert length == 6
    assert torch.equal(x[2:5, 1], x[1:2, 1].expand(3))  # the heart rate of hour 2
    assert torch.equal(x[1, 40:74], x[4, 40:74])  # nothing is counted in them
    cells[39] = "13"
    for lines in ([first, second], ["|".join(cells)]):
        path.write_text("\n".join([header, *lines]))
        assert sum(len(part) for part in make(folder).datasets()) == len(rows) - 1


def test_score_is_the_area_over_all_patients(patients):
    metrics = pytest.importorskip("sklearn.metrics")
    task = make(patients[0])
    y, target = torch.randn(30, 2), torch.arange(30) % 3 == 0
    scores = torch.cat([task.scores(y[:7], target[:7]), task.scores(y[7:], target[7:])])
    margins = (y[:, 1] - y[:, 0]).double().numpy()
    area = metrics.roc_auc_score(target.numpy(), margins)
    assert task.contributions(scores).mean().item() == pytest.approx(area, abs=1e-12)
    precision = metrics.average_precision_score(target.numpy(), margins)
    assert task.side_metrics(scores)["average precision"] == pytest.approx(precision)
    test = task.datasets().test
    _, septic, lengths = test[range(len(test))]
    hours = metrics.roc_auc_score(septic.numpy(), lengths.numpy())
    assert task.baselines()["hours of the stay"] == pytest.approx(hours)


def test_a_run_keeps_what_its_model_needs(patients, tmp_path):
    folder, tables = patients
    task = make(folder)
    (tmp_path / "run").mkdir()
    for name, text in task.run_files().items():
        (tmp_path / "run" / name).write_text(text)
    again = Sepsis.of_run(task.options, tmp_path / "run")
    path = next(iter(tables))
    lines = path.read_text().splitlines()
    new = tmp_path / "run" / "new.psv"
    new.write_text("\n".join(line.rpartition("|")[0] for line in lines))
    given = again.read_given(new)
    assert torch.equal(given.x, task.read_given(path).x)
    assert given.lengths.tolist() == [len(tables[path])]
    assert again.read_given(folder / "training_setA").x.shape == (20, 12, 76)
    whole = torch.from_numpy(tables[path][None, :, :39]).float()
    assert torch.allclose(again.arranged(whole), given.x[:, : whole.shape[1]], atol=1e-5)
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match="the data must be those the run began with"):
        Sepsis.of_run(task.options, tmp_path / "run").datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s: s.replace("HR|", "", 1),
            "the first line must name 41 columns.* got 40 without HR",
        ),
        (lambda s: s.replace("HR|O2Sat", "HR|HR", 1), "got 41 without O2Sat"),
        (lambda s: s.replace("NaN", "x", 1), "a row must hold 41 numbers or NaN.*line 2"),
        (
            lambda s: s.replace("NaN", "inf", 1),
            "numbers must be finite or NaN, got infinity in line 2",
        ),
        (
            lambda s: s.replace("|1|0\n", "|3|0\n", 1),
            "must be whole numbers that rise.* got 3, 2, 3, 4",
        ),
        (lambda s: PSV, "must be whole numbers that rise.* got no row"),
        (lambda s: "", "the first line must name 41 columns"),
    ],
)
def test_a_file_that_cannot_be_used(patients, change, text):
    folder, tables = patients
    path = next(iter(tables))
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=rf"p000000\.psv: .*{text}"):
        make(folder).datasets()


@pytest.mark.unchecked
def test_data_and_options_that_cannot_be_used(patients, tmp_path):
    folder, _ = patients
    with pytest.raises(
        DataError, match=r"there must be 40,336 .* got 40\. .*--task\.no-check-counts"
    ):
        make(folder, check_counts=True).datasets()
    with pytest.raises(DataError, match=r"must hold files p000001\.psv and so on"):
        make(tmp_path / "none").datasets()
    for path in sorted(folder.rglob("*.psv"))[:-5]:
        path.unlink()
    with pytest.raises(DataError, match=r"4 patients with sepsis and 4 without.* got 0 with"):
        make(folder).datasets()
    with pytest.raises(ArgumentError, match="Sepsis: hours must be at least 3, got 2"):
        make(folder, hours=2)
    with pytest.raises(ArgumentError, match="Sepsis: split_seed must be at least 0"):
        make(folder, split_seed=-1)
    with pytest.raises(ArgumentError, match="Sepsis: x must be whole stays"):
        make(folder).scaled(torch.zeros(1, 3, 39))

import shutil

import pytest
import torch
from made_data import write_har

from linrnn.errors import DataError, UnknownNameError
from linrnn.tasks.har import HAR, HAROptions


@pytest.fixture
def made(tmp_path):
    """The folder of the archive, and what was written there."""
    return tmp_path, write_har(tmp_path / "UCI HAR Dataset")


def make(place, **options):
    return HAR(HAROptions(data=str(place), **{"check_counts": False} | options))


@pytest.mark.parametrize("inner", ["", "UCI HAR Dataset"])
def test_windows_classes_and_persons(made, inner):
    folder, parts = made
    task = make(folder / inner, classes="six")
    train, validation, test = task.datasets()
    x, labels, subjects = parts["train"]
    held_out = torch.isin(subjects, torch.tensor([1, 8]))
    assert held_out.any()
    for part, rows in ((train, ~held_out), (validation, held_out)):
        assert torch.equal(part[:][0], x[rows])
        assert torch.equal(part[:][1], labels[rows] - 1)
    assert torch.equal(test[:][0], parts["test"][0])
    assert test[0][0].shape == (task.sequence_length, task.d_input) == (128, 9)
    assert task.class_names[4] == "standing"


def test_two_groups_are_those_of_the_publication(made):
    folder, parts = made
    task = make(folder)
    six = parts["test"][1]
    first = torch.tensor([label in (4, 6, 2) for label in six.tolist()])
    assert torch.equal(task.datasets().test[:][1], (~first).long())
    assert task.d_output == 2
    assert task.class_names[0] == "sitting, laying, upstairs"


@pytest.mark.unchecked
def test_layouts_and_files_that_cannot_be_used(made, tmp_path):
    folder, _ = made
    inner = folder / "UCI HAR Dataset"
    with pytest.raises(DataError, match=r"each file of .*train must have 7,352 rows, got 30\. Get"):
        make(folder, check_counts=True).datasets()
    y = inner / "test" / "y_test.txt"
    text = y.read_text()
    y.write_text(text.replace("3", "7"))
    with pytest.raises(DataError, match=r"y_test\.txt: an activity must be one of 1 to 6, got 7"):
        make(folder).datasets()
    y.write_text(text + "1\n")
    with pytest.raises(DataError, match="must have 13 rows, got 12, 13"):
        make(folder).datasets()
    signal = inner / "train" / "Inertial Signals" / "body_gyro_y_train.txt"
    signal.write_text("1 2 3\n")
    with pytest.raises(DataError, match=r"body_gyro_y_train\.txt: each row must hold 128 numbers"):
        make(folder).datasets()
    signal.unlink()
    with pytest.raises(DataError, match=r"har: the data file .*body_gyro_y_train\.txt must be"):
        make(folder).datasets()
    shutil.rmtree(inner / "train")
    with pytest.raises(DataError, match=r"must hold the folder UCI HAR Dataset, .*, got test\."):
        make(folder).datasets()
    with pytest.raises(UnknownNameError, match="no HAR classes named 'three'"):
        HAR(HAROptions(classes="three"))


@pytest.mark.unchecked
def test_one_person_cannot_be_split(made):
    folder, _ = made
    path = folder / "UCI HAR Dataset" / "train" / "subject_train.txt"
    path.write_text("4\n" * 30)
    with pytest.raises(DataError, match=r"must be at least 2 persons in .*train, .* got 1"):
        make(folder).datasets()

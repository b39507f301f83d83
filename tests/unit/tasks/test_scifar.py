import gzip
import pickle

import numpy as np
import pytest
import torch
from made_data import write_cifar, write_tar

from linrnn.errors import ArgumentError, DataError
from linrnn.tasks.scifar import SCIFAR, SCIFAROptions, read_binary


def make(place, **options):
    return SCIFAR(SCIFAROptions(data=str(place), **options))


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    write_cifar(path, train=50)
    return path


@pytest.fixture(scope="module")
def real(shared_data):
    task = make(shared_data / "cifar10")
    return {split: task.images(split) for split in ("train", "test")}


def test_real_images(real):
    images, labels = real["train"]
    assert np.bincount(labels).tolist() == [901, 867, 917, 907, 896, 860, 922, 915, 924, 891]
    assert len(real["test"][0]) == 1000
    for grey in (False, True):
        task = make("", grey=grey)
        x = task.sequences(torch.from_numpy(images[:2000]))
        assert x.shape == (2000, 1024, task.d_input)
        assert x.mean().abs() < 0.05
        assert x.std() == pytest.approx(1, abs=0.06)


def test_grey_is_the_brightness_of_image_libraries(real):
    pixels = real["test"][0][:50].astype(np.int64)
    # the usual fixed-point form of the same weights
    grey = (pixels @ np.array([19595, 38470, 7471]) + 0x8000) >> 16
    x = make("", grey=True).sequences(torch.from_numpy(real["test"][0][:50]))
    ours = (x[..., 0] * 61 + 122.6).reshape(50, 32, 32).numpy()
    assert np.abs(ours - grey).max() < 0.51


def test_binary_archive(archive):
    images, labels = read_binary(archive, "train")
    assert images.shape == (50, 32, 32, 3)
    assert labels.tolist() == list(range(10)) * 5
    rng = np.random.RandomState(0)
    first = rng.randint(0, 256, (10, 3073))[3, 1:].reshape(3, 32, 32)
    assert (images[3, 5, 7] == first[:, 5, 7]).all()


def test_splits(archive):
    splits = make(archive.parent).datasets()
    assert [len(part) for part in splits] == [45, 5, 5]
    rows = {x.numpy().tobytes() for part in splits for x in part[range(len(part))][0]}
    assert len(rows) == 55
    x, target = splits.test[2]
    assert x.shape == (1024, 3)
    assert target == 2
    images, _ = read_binary(archive, "test")
    red = (images[2, 0, :, 0] / 255 - 0.4914) / 0.247
    torch.testing.assert_close(x[:32, 0], torch.from_numpy(red).float())


@pytest.mark.parametrize("grey", [False, True])
def test_rows_are_the_same_pixels(archive, grey):
    pixels, rows = make(archive, grey=grey), make(archive, grey=grey, rows=True)
    images = torch.from_numpy(pixels.images("test")[0])
    x = rows.sequences(images)
    assert x.shape == (5, rows.sequence_length, rows.d_input) == (5, 32, 32 if grey else 96)
    assert (x.flatten(1) == pixels.sequences(images).flatten(1)).all()
    assert (rows.picture(x[0]) == pixels.picture(pixels.sequences(images)[0])).all()


def test_some_of_the_training_images(archive):
    splits = make(archive, train_images=20).datasets()
    assert [len(part) for part in splits] == [18, 2, 5]
    images, labels = make(archive, train_images=20).images("train")
    assert (images == make(archive).images("train")[0][:20]).all()
    assert len(labels) == 20


@pytest.mark.unchecked
def test_more_training_images_than_there_are(archive):
    with pytest.raises(DataError, match="train_images=51 training images, got 50"):
        make(archive, train_images=51).datasets()
    with pytest.raises(ArgumentError, match="train_images must be at least 0, got -1"):
        make(archive, train_images=-1)


def test_file_or_folder_and_official_archive_first(archive):
    np.savez(
        archive.parent / "a.npz",
        x_train=np.zeros((20, 32, 32, 3), np.uint8),
        y_train=np.zeros(20, int),
        x_test=np.zeros((3, 32, 32, 3), np.uint8),
        y_test=np.zeros(3, int),
    )
    assert len(make(archive.parent).datasets().test) == 5
    assert len(make(archive).datasets().test) == 5
    assert len(make(archive.parent / "a.npz").datasets().test) == 3
    archive.unlink()
    assert len(make(archive.parent).datasets().test) == 3


def test_example(archive):
    assert make(archive).example().endswith("target airplane")


@pytest.mark.unchecked
def test_missing(tmp_path):
    with pytest.raises(DataError, match=r"scifar: the data file .*cifar-10-binary\.tar\.gz must"):
        make(tmp_path).datasets()


class Payload:
    ran = False

    def __reduce__(self):
        return setattr, (Payload, "ran", True)


@pytest.mark.unchecked
def test_the_python_version_is_not_unpickled(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    names = [f"cifar-10-batches-py/{n}" for n in ("data_batch_1", "test_batch")]
    write_tar(path, dict.fromkeys(names, pickle.dumps(Payload())))
    with pytest.raises(DataError, match=r"be the binary version of CIFAR-10, .*Python version"):
        make(path).datasets()
    np.savez(tmp_path / "x.npz", x_train=np.array([Payload()]), y_train=np.zeros(1, int))
    with pytest.raises(DataError, match="must hold x_train and y_train, got"):
        make(tmp_path / "x.npz").datasets()
    assert not Payload.ran


@pytest.mark.unchecked
@pytest.mark.parametrize("size", [0, 100, 20_000, -2])
def test_truncated_archive(archive, size):
    archive.write_bytes(archive.read_bytes()[:size])
    with pytest.raises(DataError, match=r"must be the binary version of CIFAR-10, .*Get it anew"):
        make(archive).datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"3073 bytes in .*data_batch_1\.bin, got 0 bytes"),
        (bytes(3072), "records of 3073 bytes in .*, got 3072"),
        (b"\x0a" * 3073, "classes must be 0 to 9, got 10 to 10"),
    ],
)
def test_wrong_records(tmp_path, content, message):
    names = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    write_tar(tmp_path / "a.tar.gz", dict.fromkeys(names, content))
    with pytest.raises(DataError, match=message):
        make(tmp_path / "a.tar.gz").datasets()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 32, 32, 3)), np.zeros(2, int)),
        (np.zeros((2, 3, 32, 32), np.uint8), np.zeros(2, int)),
        (np.zeros((2, 32, 32, 3), np.uint8), np.zeros(3, int)),
        (np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2)),
    ],
)
def test_wrong_arrays(tmp_path, images, labels):
    np.savez(tmp_path / "x.npz", x_train=images, y_train=labels)
    with pytest.raises(DataError, match=r"images must be bytes \(images, 32, 32, 3\) and labels"):
        make(tmp_path / "x.npz").datasets()


@pytest.mark.unchecked
def test_no_archive_at_all(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(b"<html>"))
    with pytest.raises(DataError, match="must be the binary version of CIFAR-10"):
        make(tmp_path / "a.tar.gz").datasets()

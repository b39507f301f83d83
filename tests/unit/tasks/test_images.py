"""The tasks that read images: sMNIST, psMNIST, Fashion-MNIST."""

import gzip
import hashlib

import numpy as np
import pytest
import torch
from made_data import idx, write_idx

from linrnn.errors import DataError, UnknownNameError
from linrnn.tasks._kinds.images import RowOptions, read_idx
from linrnn.tasks.fashion_mnist import FashionMNIST
from linrnn.tasks.psmnist import PSMNIST, PSMNISTOptions, permutation
from linrnn.tasks.smnist import SMNIST


def smnist(folder, **options):
    return SMNIST(RowOptions(data=str(folder), **options))


@pytest.fixture
def folder(tmp_path):
    write_idx(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def real(shared_data):
    return smnist(shared_data / "mnist").datasets()


def test_real_files_split(real):
    assert [len(part) for part in real] == [54_000, 6_000, 10_000]
    classes = torch.cat([part.target for part in real[:2]])
    assert torch.bincount(classes).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949
    ]  # fmt: skip
    assert torch.bincount(real.test.target).max() / 10_000 == SMNIST().chance
    pixels = torch.cat([part.pixels for part in real[:2]]).double().mean() / 255
    assert pixels == pytest.approx(0.1307, abs=5e-5)
    assert torch.bincount(real.validation.target).min() > 500


def test_real_images_are_digits(real):
    x, target = real.test[[0, 1]]
    assert target.tolist() == [7, 2]
    assert x.shape == (2, 784, 1)
    # the stroke of a 7 begins in row 7
    assert (x[0, :, 0].view(28, 28).sum(1) > 0).nonzero()[0] == 7
    assert x.max() == pytest.approx(1, abs=0.01)


def test_real_fashion_mnist_test_part(shared_data):
    task = FashionMNIST(RowOptions(data=str(shared_data / "fashion_mnist")))
    _, labels = task.images("test")
    assert np.bincount(labels).tolist() == [1000] * 10
    assert "target boot" in task.example()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz must exist.*Get train-im"):
        task.datasets()


def test_splits_share_no_image_and_depend_on_nothing(folder):
    splits = smnist(folder).datasets()
    torch.manual_seed(5)
    np.random.seed(5)
    again = smnist(folder).datasets()
    rows = []
    for part, other in zip(splits, again, strict=True):
        x, target = part[range(len(part))]
        assert torch.equal(x, other[range(len(part))][0])
        assert torch.equal(part[0][0], x[0])
        assert target.dtype == torch.int64
        rows += [row.numpy().tobytes() for row in x]
    assert len(set(rows)) == 30
    assert [len(part) for part in splits] == [18, 2, 10]


@pytest.mark.parametrize("task", ["smnist", "psmnist", "fashion_mnist"])
def test_rows_are_the_same_pixels(folder, task):
    cls = {"smnist": SMNIST, "psmnist": PSMNIST, "fashion_mnist": FashionMNIST}[task]
    one, row = (cls(cls.Options(data=str(folder), rows=rows)) for rows in (False, True))
    assert (one.sequence_length, one.d_input) == (784, 1)
    assert (row.sequence_length, row.d_input) == (28, 28)
    x, y = one.datasets().test[0][0], row.datasets().test[0][0]
    assert y.shape == (28, 28)
    assert torch.equal(x.flatten(), y.flatten())


MD5 = {
    "exprnn": "04138854572e383debe774312249e5ef",
    "lmu": "95c5b5230289707c29384e50d5c3c755",
    "bit-reversal": "8b1cd662f87cfdabdbcf0b519f00aa17",
}


@pytest.mark.parametrize("name", MD5)
def test_permutations_are_the_published_ones(name):
    order = permutation(name)
    assert hashlib.md5(order.astype("<i8").tobytes()).hexdigest() == MD5[name]
    assert sorted(order.tolist()) == list(range(784))


@pytest.mark.parametrize("name", MD5)
def test_psmnist_permutes_every_image_alike(folder, name):
    task = PSMNIST(PSMNISTOptions(data=str(folder), permutation=name))
    x, target = smnist(folder).datasets().train[range(18)]
    y, same = task.datasets().train[range(18)]
    assert torch.equal(y, x[:, permutation(name)])
    assert torch.equal(target, same)


@pytest.mark.unchecked
def test_psmnist_unknown_permutation():
    with pytest.raises(UnknownNameError, match=r"no PSMNIST permutation named 'lum'. Did you mean"):
        PSMNIST(PSMNISTOptions(permutation="lum"))


def test_read_gives_what_training_saw(folder, tmp_path):
    task = PSMNIST(PSMNISTOptions(data=str(folder)))
    images, _ = task.images("test")
    np.save(tmp_path / "x.npy", images)
    assert torch.equal(task.read(tmp_path / "x.npy"), task.datasets().test[range(10)][0])


@pytest.mark.unchecked
@pytest.mark.parametrize("factor", [1 / 255, -1.0, 2.0])
def test_read_refuses_other_scales(tmp_path, factor):
    np.save(tmp_path / "x.npy", np.full((2, 784), 200) * factor)
    with pytest.raises(DataError, match=r"pixels must lie in 0\.\.255, got"):
        SMNIST().read(tmp_path / "x.npy")


def test_example_needs_no_network(folder, tmp_path, monkeypatch):
    text = smnist(folder).example()
    assert len(text.splitlines()) == 16
    assert text.endswith("target 0")
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"smnist: the data file .*t10k-images-idx3-ubyte\.gz must"):
        SMNIST().example()


BAD = {
    "empty": (b"", "with 3 axes, got one that begins with nothing"),
    "html": (b"<html>" * 9, "with 3 axes, got one that begins with 3c68746d"),
    "labels": (idx(np.zeros(20)), "with 3 axes, got one that begins with 00000801"),
    "short header": (idx(np.zeros((2, 28, 28)))[:12], "begins with 00000803"),
    "truncated": (idx(np.zeros((2, 28, 28)))[:-1], "2 x 28 x 28 bytes, got 1567. Is it truncated"),
    "longer": (idx(np.zeros((2, 28, 28))) + b"1", "2 x 28 x 28 bytes, got 1569"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_read_idx_damaged(tmp_path, content, message):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=rf"x\.gz: the file must hold .*{message}"):
        read_idx(path, 3)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("images-idx3", np.zeros((3, 28, 28)), "a label for each image, got 3 images and 20"),
        ("images-idx3", np.zeros((20, 27, 28)), "28x28 images of the classes 0 to 9, got 27x28"),
        ("labels-idx1", np.full(20, 10), "of the classes 0 to 9, got 28x28 and 10"),
    ],
)
def test_files_that_do_not_fit(folder, name, array, message):
    (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=f"smnist: the train files must hold .*{message}"):
        smnist(folder).datasets()


@pytest.mark.unchecked
def test_file_cut_short_by_a_copy(folder):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: .*Get it anew"):
        smnist(folder).datasets()

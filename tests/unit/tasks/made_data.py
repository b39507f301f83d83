"""Tiny files in the formats of the real data sets, so that a task can be run without them."""

import gzip

import numpy as np


def idx(array):
    """An array of bytes in the format of MNIST."""
    header = np.array([0x800 + array.ndim, *array.shape], ">u4")
    return header.tobytes() + array.astype("u1").tobytes()


def write_idx(folder, train=20, test=10):
    """The four files of MNIST; returns the arrays by the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    arrays = {}
    for prefix, size in (("train", train), ("t10k", test)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.randint(0, 256, (size, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(size) % 10
    for name, array in arrays.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    return arrays


def write_all(root):
    """Every data set, in folders as below LINRNN_DATA."""
    write_idx(root / "mnist")
    write_idx(root / "fashion_mnist")

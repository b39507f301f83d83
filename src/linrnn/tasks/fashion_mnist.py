"""Fashion-MNIST: pieces of clothing, read one pixel at a time."""

from typing import ClassVar

from linrnn.tasks._kinds.images import IdxTask
from linrnn.tasks._reading.files import Source

_PLACE = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_FILES = {
    "train_images": ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "train_labels": ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
    "test_images": ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
    "test_labels": ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
}


class FashionMNIST(IdxTask):
    """Grey photographs of clothing, 28x28 pixels, row by row as 784 steps; 10 equal classes.

    Files, sizes and splits are those of the task `smnist`; the images are harder to tell apart.
    With the option `rows` a step is a row of 28 pixels.

    Args:
        options: `linrnn.tasks._kinds.images.RowOptions`.
    """

    summary: ClassVar[str] = "Fashion-MNIST clothing, 28x28 pixels read one at a time, 10 classes"

    data_set = "fashion_mnist"
    sources: ClassVar[dict[str, Source]] = {
        part: Source(name, _PLACE + name, f"md5:{digest}")
        for part, (name, digest) in _FILES.items()
    }
    class_names = (
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "boot",
    )

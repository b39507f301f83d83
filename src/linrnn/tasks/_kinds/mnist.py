"""Where MNIST is published."""

from linrnn.tasks._reading.files import Source

_PLACE = "https://storage.googleapis.com/cvdf-datasets/mnist/"

SOURCES = {
    name: Source(file, _PLACE + file, f"sha256:{digest}")
    for name, file, digest in (
        (
            "train_images",
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        (
            "train_labels",
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        (
            "test_images",
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        (
            "test_labels",
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )
}

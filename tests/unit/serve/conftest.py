"""Two tiny runs, a language model and a forecast, and clients that ask without a socket."""

from contextlib import contextmanager

import pytest

from linrnn import serve
from linrnn.cli import main
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig, run

TEXT = "the cat sat on the mat\nand the dog sat on the log\n" * 40
TINY = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a run of each kind."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINRNN_DATA", str(folder / "cache"))
        options = LMOptions(data=(str(folder / "text.txt"),), tokenizer="byte", length=32)
        config = Config(
            task="lm",
            mixer="lru",
            task_options=options,
            model=ModelConfig(d_model=8, n_layers=1, norm="layer", pool="none"),
            train=TrainConfig(epochs=1, batch_size=8, threads=1),
        )
        run(config, out=folder / "text")
        series = ["train", "mackey_glass", "--mixer", "mingru", *TINY]
        assert main([*series, "--out", str(folder / "series"), "-q"]) == 0
    return folder


@pytest.fixture(scope="session")
def runs(folder):
    """The trained runs of that folder."""
    return serve.open_runs(folder)


@pytest.fixture
def client(runs):
    """Makes clients of a service, one after the other."""
    testing = pytest.importorskip("starlette.testclient", reason="needs the extra dev")
    pytest.importorskip("httpx", reason="needs the extra dev")

    @contextmanager
    def begin(only=None, **options):
        app = serve.application(runs if only is None else {only: runs[only]}, **options)
        with testing.TestClient(app, base_url="http://127.0.0.1") as asking:
            yield asking

    return begin

"""Files that earlier versions left on users' disks are read, and give what they gave."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from linrnn import tokenizers, train
from linrnn.errors import DataError, RunFolderError
from linrnn.streaming import Session
from linrnn.train.folder import RunFolder

pytestmark = pytest.mark.unchecked

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # machines differ in the order of a sum


def rows(steps):
    return torch.arange(1, steps + 1).mul(0.7).sin()[None, :, None]


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A copy that a test may change."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


@pytest.fixture(scope="module")
def model():
    return train.load_model(GOLDEN / "digits")[0]


def test_weights_give_the_recorded_outputs(model):
    with torch.no_grad():
        y = model(rows(64))[0]
    torch.testing.assert_close(y, torch.tensor(EXPECTED["outputs"]), **CLOSE)


def test_result_is_the_recorded_one():
    result = RunFolder(GOLDEN / "digits").read_result()
    assert result is not None
    assert result.test_metric == EXPECTED["test_metric"]


def test_finished_run_is_tested_again(golden):
    (golden / "digits" / "result.json").unlink()
    assert train.resume(golden / "digits").test_metric == pytest.approx(
        EXPECTED["test_metric"], abs=0.01
    )


def test_stopped_run_goes_on(golden, monkeypatch):
    monkeypatch.chdir(golden)
    result = train.resume("language")
    assert result.best_step in (result.steps // 2, result.steps)
    assert (golden / "language" / "result.json").is_file()


def test_session_goes_on(model):
    session = Session(model)
    session.load(GOLDEN / "session.safetensors")
    assert session.steps == 40
    torch.testing.assert_close(
        session.feed(rows(3)[0]), torch.tensor(EXPECTED["after the session"]), **CLOSE
    )


@pytest.mark.parametrize(
    ("kind", "file"), [("char", "language/tokenizer.json"), ("bpe", "bpe.json")]
)
def test_tokenizers_give_the_recorded_ids(kind, file):
    if kind == "bpe":
        pytest.importorskip("tokenizers")
    tokenizer = tokenizers.load(GOLDEN / file)
    text = (GOLDEN / "text.txt").read_text()[:20]
    assert tokenizer.encode(text).tolist() == EXPECTED[kind]
    assert tokenizer.decode(EXPECTED[kind]) == text


def test_run_folder_of_a_newer_version_names_it(golden):
    path = golden / "digits" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2, "linrnn": "7.8.9"}))
    for use in (train.load_model, train.resume, train.evaluate):
        with pytest.raises(RunFolderError, match=r"got 2\. .*pip install 'linrnn>=7\.8\.9'"):
            use(golden / "digits")


def test_state_of_a_newer_version_names_it(golden, model):
    path = golden / "session.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    header = json.loads(metadata["state"]) | {"format": 2, "linrnn": "7.8.9"}
    save_file(load_file(path), path, metadata | {"state": json.dumps(header)})
    with pytest.raises(DataError, match=r"got 2\. .*pip install 'linrnn>=7\.8\.9'"):
        Session(model).load(path)


def test_tokenizer_of_a_newer_version_says_so(golden):
    path = golden / "language" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(DataError, match=r"got format 2 .*pip install --upgrade linrnn"):
        tokenizers.load(path)


def test_golden_files_are_small():
    assert sum(p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file()) < 300_000

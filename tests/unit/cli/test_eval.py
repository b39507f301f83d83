import re

import pytest

from linrnn.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "run"
    tiny = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]
    assert main(["train", "digits", *tiny, "--out", str(folder)]) == 0
    return folder


def test_eval_prints_the_test_metric_of_the_run(run, capsys):
    assert main(["eval", str(run)]) == 0
    out = capsys.readouterr().out
    result = (run / "result.json").read_text()
    value = float(re.search(r'"test_metric": ([\d.]+)', result)[1])
    assert out.startswith(f"test accuracy {100 * value:.2f} % on 360 sequences, loss ")
    assert out.endswith("(digits, lru, seed 0)\n")


@pytest.mark.unchecked
def test_eval_refuses_a_damaged_run(run, capsys):
    path = run / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 255]))
    try:
        assert main(["eval", str(run)]) == 1
    finally:
        path.write_bytes(data)
    err = capsys.readouterr().err
    assert "model.safetensors: the file must be as it was written" in err
    assert len(err.splitlines()) == 1


def test_eval_without_a_run_exits_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["eval"])
    assert caught.value.code == 2
    assert "RUN" in capsys.readouterr().err

import json
import re

import pytest
import torch

from linrnn.cli import main
from linrnn.cli.eval import parse_lengths
from linrnn.errors import ArgumentError
from linrnn.train import load_model
from linrnn.train._memory import inputs_of_mixers


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
    assert main(["eval"]) == 2
    assert "RUN" in capsys.readouterr().err


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "heads"
    sizes = {"length": 8, "train-size": 32, "validation-size": 8, "test-size": 8}
    options = [word for name, n in sizes.items() for word in (f"--task.{name}", str(n))]
    tiny = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]
    tiny += ["--mixer", "mingru", "--recipe", "none", "--model.pool", "last"]
    assert main(["train", "induction_heads", *options, *tiny, "--out", str(folder)]) == 0
    return folder


def test_eval_prints_a_row_for_each_length(heads, capsys):
    capsys.readouterr()
    assert main(["eval", str(heads), "--lengths", "2^3..2^5,10", "--examples", "4"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["length", "steps", "test", "accuracy", "chance", "sequences"]
    assert [row.split()[0] for row in rows] == ["8", "10", "16", "32"]
    assert all(row.split()[-3:] == ["6.667", "%", "4"] for row in rows)
    assert last.startswith(f"{heads} holds this table as lengths.csv")


def test_eval_prints_how_the_state_of_every_layer_moves(run, capsys):
    capsys.readouterr()
    assert main(["eval", str(run), "--lyapunov", "--steps", "6"]) == 0
    head, row, last = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["layer", "numbers", "largest", "median"]
    model, _, _ = load_model(run)
    logs = model.mixers[0].eigenvalues().abs().log()
    layer, numbers, largest, _, above, radius = row.split()
    assert (layer, int(numbers), int(above)) == ("1", 2 * len(logs), 0)
    assert float(largest) == pytest.approx(logs.max().item(), abs=1e-4)
    assert float(radius) == pytest.approx(logs.max().exp().item(), abs=1e-4)
    assert last.startswith(f"{run} holds all exponents as lyapunov.csv")
    rows = (run / "lyapunov.csv").read_text().splitlines()
    assert rows[0] == "layer,index,exponent"
    assert len(rows) == 1 + 2 * len(logs)
    assert (run / "lyapunov.svg").read_text().count("Lyapunov exponents") == 1


@pytest.fixture(scope="module")
def linear_pieces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eval") / "pieces"
    tiny = ["--model.d-model", "4", "--model.n-layers", "2", "--train.epochs", "1"]
    assert main(["train", "digits", "--mixer", "plrnn", *tiny, "--out", str(folder)]) == 0
    return folder


def test_eval_prints_the_cycles_of_every_layer(linear_pieces, capsys):
    capsys.readouterr()
    assert main(["eval", str(linear_pieces), "--cycles", "2"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["layer", "order", "kind", "spectral", "radius"]
    assert last.startswith(f"{linear_pieces} holds the points of all as cycles.csv")
    assert {row.split()[0] for row in rows} == {"1", "2"}  # each comes to rest
    assert all(row.split()[-1] == "stable" for row in rows)
    table = (linear_pieces / "cycles.csv").read_text().splitlines()
    assert table[0] == "layer,cycle,order,kind,stable,radius,step,point"
    model, task, _ = load_model(linear_pieces)
    x = task.datasets().test[0][0][None].double()
    inputs = inputs_of_mixers(model.double(), x)
    for layer, (mixer, (z, _)) in enumerate(zip(model.mixers, inputs, strict=True), 1):
        point = next(line.split(",")[-1] for line in table if line.startswith(f"{layer},1,1,"))
        point = torch.tensor([[float(number) for number in point.split()]]).double()
        after = mixer.step(z.mean(1), point)[1]
        torch.testing.assert_close(after, point, rtol=1e-6, atol=1e-6)


def test_cycles_in_json(linear_pieces, capsys):
    capsys.readouterr()
    assert main(["--json", "eval", str(linear_pieces), "--cycles", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["run", "order", "layers"]
    about = ["order", "kind", "stable", "points", "eigenvalues"]
    assert [list(one) for cycles in found["layers"] for one in cycles] == [about, about]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--steps", "4"], "--steps is of --lyapunov"),
        (["--cycles", "2", "--lyapunov"], "--lyapunov must be alone, got --cycles too"),
        (["--cycles", "2", "--examples", "4"], "--cycles must be alone"),
        (["--cycles", "0"], "order must be"),
        (["--cycles", "2"], "every layer must be piecewise linear, got a LRU. Train one of"),
        (["--lyapunov", "--examples", "4"], "--lyapunov must be alone"),
        (["--lyapunov", "--steps", "0"], "steps must be"),
    ],
)
def test_options_of_lyapunov_that_do_not_fit_are_one_line(run, capsys, words, what):
    assert main(["eval", str(run), *words]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.unchecked
def test_eval_of_a_task_without_lengths_is_one_line(run, capsys):
    assert main(["eval", str(run), "--lengths", "64"]) == 2
    err = capsys.readouterr().err
    assert "the task must have an option 'length'" in err
    assert len(err.splitlines()) == 1


@pytest.mark.unchecked
@pytest.mark.parametrize("text", ["", "a", "64,", "0", "2^", "-4", "2^4..", "1e3", "4...16"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(ArgumentError, match="--lengths must be like 64,128 or 2"):
        parse_lengths(text)


@pytest.mark.unchecked
@pytest.mark.parametrize("text", ["64..100", "128..64"])
def test_ranges_go_up_by_doubling(text):
    with pytest.raises(ArgumentError, match=r"lengths A\.\.B must go up by doubling"):
        parse_lengths(text)


def test_lengths_are_numbers_powers_and_ranges():
    assert parse_lengths("64, 100,2^3..2^5,10..20") == [64, 100, 8, 16, 32, 10, 20]

"""Answers as JSON: one document on standard output, of the shape that the page says."""

import ast
import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from linrnn.cli import main
from linrnn.cli._line.output import Manner, joined, json_text, plain

TINY = ["--model.d-model", "6", "--model.n-layers", "1", "--train.epochs", "1"]


@pytest.fixture(scope="module")
def shapes(request):
    """The fields of each verb that the page names, those before the first colon."""
    page = (request.config.rootpath / "docs" / "command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z][a-z -]+)` \| (.*) \|$", page, re.MULTILINE)
    return {verb: re.findall(r"`(\w+)`", text) for verb, text in rows}


def said(*argv):
    """Exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(argv))
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the digits, told as JSON, and quietly one of a language model."""
    path = tmp_path_factory.mktemp("runs")
    (path / "text.txt").write_text("the cat sat on the mat. " * 200)
    text = ["--data", str(path / "text.txt"), "--task.length", "16", "--train.batch-size", "8"]
    digits = said("train", "digits", *TINY, "--out", str(path / "digits"), "--json")
    lm = said("-q", "train", "lm", *TINY, *text, "--out", str(path / "lm"))
    return path, digits, lm


@pytest.fixture
def folder(trained):
    return trained[0]


def answer(capsys, *argv):
    capsys.readouterr()
    code = main([*argv, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out)


def has(found, names):
    assert set(found) >= set(names), set(names) - set(found)


def test_every_verb_that_answers_is_described(shapes):
    from importlib import import_module

    from linrnn import cli

    parsers = {verb: import_module(f"linrnn.cli.{verb}").parser() for verb in cli.verbs()}
    takes = {verb for verb, one in parsers.items() if "--json" in one._option_string_actions}
    assert takes == {verb.split()[0] for verb in shapes}
    assert set(cli.verbs()) - takes == {"help", "completion"}


def test_list(capsys, shapes):
    code, found = answer(capsys, "list", "mixers")
    assert code == 0
    assert list(found) == ["mixers"]
    lru = next(one for one in found["mixers"] if one["name"] == "lru")
    assert lru["family"] == "diagonal"
    assert lru["dt"] is True
    _, found = answer(capsys, "list", "recipes")
    has(found["recipes"][0], shapes["list"][4:])


def test_show(capsys, shapes):
    _, found = answer(capsys, "show", "LRU")
    (entry,) = found["entries"]
    has(entry, ["kind", "name", "entry", "text", "facts", "options"])
    assert {"name": "d_state", "type": "int | None", "default": "None"}.keys() == entry["options"][
        0
    ].keys()
    assert entry["kind"] == "mixer"


def test_doctor(capsys, shapes):
    code, found = answer(capsys, "doctor")
    has(found, shapes["doctor"])
    assert found["ok"] is (code == 0)
    assert found["backends"]["reference"] == "available"


def test_check(capsys, shapes):
    _, found = answer(capsys, "check", "lru", "--property", "causal")
    assert found["mixer"] == "lru"
    has(found["properties"][0], shapes["check"][2:])


def test_train_and_where_progress_and_remarks_go(trained, shapes):
    folder, (code, out, err), _ = trained
    assert code == 0
    found = json.loads(out)
    assert list(found) == shapes["train"][: len(found)]  # behind them stand those of a contest
    assert found["contest"] is None
    assert found["folder"] == str(folder / "digits")
    assert "epoch 1/1" in err
    assert "linrnn eval" in err


def test_quiet_leaves_the_answer_alone(trained):
    _, _, (code, out, err) = trained
    assert code == 0
    assert out.count("\n") == 1
    assert out.startswith("test bits per byte")
    assert err == ""


def test_verbose_says_where_an_error_comes_from(capsys):
    assert main(["show", "lur", "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["show", "lur"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_eval_and_predict(capsys, shapes, folder):
    _, found = answer(capsys, "eval", str(folder / "digits"))
    assert list(found)[:9] == [
        "run",
        "task",
        "mixer",
        "seed",
        "loss",
        "metric",
        "metric_name",
        "examples",
        "standard_error",
    ]
    _, found = answer(capsys, "eval", str(folder / "digits"), "--lyapunov", "--steps", "8")
    assert list(found) == ["run", "steps", "layers"]
    assert found["layers"][0]["exponents"]
    rows = folder / "rows.csv"
    rows.write_text("\n".join(",".join(["3"] * 64) for _ in range(2)))
    _, found = answer(capsys, "predict", str(folder / "digits"), str(rows))
    assert [one["index"] for one in found["predictions"]] == [0, 1]
    assert set(found["predictions"][0]) == {"index", "class", "probability"}


def test_sweep_has_the_fields_of_compare(capsys, shapes, tmp_path, runs_here):
    over = ["--over", "optim.lr=0.001", "--out", str(tmp_path / "sweep")]
    _, found = answer(capsys, "sweep", "digits", *over, *TINY)
    assert list(found) == shapes["sweep"][:4]
    assert found["best"] == {"optim.lr": 0.001}
    (one,) = found["settings"]
    assert one["options"] == {"optim.lr": 0.001}
    has(one, shapes["compare"][3:])
    assert one["values"] == [one["mean"]]
    assert one["validation"] == [one["validation_mean"]]


def test_no_part_of_an_answer_hides_another(request):
    """Records are joined by `joined`, which refuses a name that comes twice."""
    with pytest.raises(AssertionError, match="have label, values"):
        joined({"values": 1, "label": 2, "n": 3}, {"values": 4, "label": 5})
    for path in sorted((request.config.rootpath / "src" / "linrnn" / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            merged = isinstance(node, ast.Dict) and None in node.keys
            assert not merged, f"{path.name}:{node.lineno}: use joined, or | where one overrides"


def test_language(capsys, shapes, folder, monkeypatch):
    _, found = answer(capsys, "eval", str(folder / "lm"))
    assert list(found) == shapes["eval"]
    # the likeliest bytes: others may be parts of one character
    likeliest = ["--prompt", "the", "--max-new-tokens", "4", "--temperature", "0"]
    _, found = answer(capsys, "generate", str(folder / "lm"), *likeliest)
    assert found["texts"][0]["prompt"] == "the"
    assert len(found["texts"][0]["text"]) == 4


def test_stream_answers_in_lines(capsysbinary, folder, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("the cat\nsat \xff\n", encoding="latin-1")
    before = sys.stdin
    with lines.open() as sys.stdin:
        assert main(["stream", str(folder / "lm"), "--json"]) == 0
    sys.stdin = before
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [one["line"] for one in found] == ["the cat", "sat \\xff"]
    assert set(found[0]) == {"bits", "bits_per_byte", "flagged", "line"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"nan"'),
        ([float("inf"), -float("inf"), 1.5], '["inf", "-inf", 1.5]'),
        ({"a": None, "b": True, 3: "ä"}, '{"a": null, "b": true, "3": "ä"}'),
    ],
)
def test_what_json_has_no_number_for_is_a_text(value, text):
    assert json_text(value, indent=None) == text


def test_records_are_plain():
    assert plain(Manner()) == {"quiet": False, "verbose": False, "json": False}

"""Files as a newcomer has them: an answer, or one line that names the file and a way that works."""

import argparse
import codecs
import importlib
import re
import sys

import numpy as np
import pandas as pd
import pytest

from linrnn.cli import main
from linrnn.errors import DataError
from linrnn.estimators._panel.files import read_table, roles_of
from linrnn.tasks import open_frame
from linrnn.tasks.forecast import ForecastOptions
from linrnn.train import Config, ModelConfig
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

pytestmark = pytest.mark.unchecked

HOURS = pd.date_range("2024-01-01", periods=40, freq="h")
LINES = [f"{when.isoformat()};{k % 7},{k % 4}" for k, when in enumerate(HOURS)]
DIRTY = {
    "missing": "\n".join(["when;load", *LINES[:30], f"{HOURS[30].isoformat()};", *LINES[31:]]),
    "twice": "\n".join(["when;load", *LINES[:30], *LINES[29:]]),
    "two heads": "\n".join(["when;load", *LINES[:30], "when;load", *LINES[30:]]),
    "a zone from there on": "\n".join(["when;load", *LINES[:39], LINES[39].replace(";", "Z;")]),
    "days first": "\n".join(["when;load", *(x.replace("2024-01-", "01.01.") for x in LINES)]),
    "units": "\n".join(["when;load", *(f"{x} kW" for x in LINES)]),
    "infinity": "\n".join(["when;load", *LINES[:39], f"{HOURS[39].isoformat()};inf"]),
    "cut": "\n".join(["when;load", *LINES[:5]]),
    "a third cell": "\n".join(["when;load", *LINES[:30], LINES[30] + ";1", *LINES[31:]]),
    "thousands": "\n".join(["when;load", *(re.sub(r";.*", ";1,234", x) for x in LINES)]),
    "head alone": "when;load\n",
    "nothing": "",
    "blank": "\n \n\n",
    "UTF-16": "\n".join(["when;load", *LINES]).encode("utf-16"),
    "Latin-1": "\n".join(["when;load;größe", *LINES]).encode("latin-1"),
    "an archive": b"PK\x03\x04\xff\xfe",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An untrained run that forecasts a series of one column with times."""
    place = tmp_path_factory.mktemp("first")
    (place / "load.csv").write_text("\n".join(["when;load", *LINES]))
    options = ForecastOptions(data=str(place / "load.csv"), time="when", length=8, horizon=2)
    model = ModelConfig(d_model=4, n_layers=1, norm="layer", pool="last")
    config = Config(task="forecast", task_options=options, mixer="lru", model=model)
    folder = RunFolder.create(place / "run", config)
    task = build_task(config)
    save_tensors(build_model(config, task).state_dict(), folder.model)
    for name, text in task.run_files().items():
        (folder.path / name).write_text(text)
    return folder.path


def options_of(verb):
    """The options that a verb has."""
    parser: argparse.ArgumentParser = importlib.import_module(f"linrnn.cli.{verb}").parser()
    return set(parser._option_string_actions)


@pytest.mark.parametrize("name", DIRTY)
def test_an_error_of_predict_names_the_file_and_options_that_help(run, name, tmp_path, capsys):
    """Options of training only behind the word: `predict` refused the one that it was told of."""
    path = tmp_path / "dirty.csv"
    text = DIRTY[name]
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    capsys.readouterr()
    assert main(["predict", str(run), str(path)]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"linrnn: {path}: "), error
    assert "\n" not in error
    for option in re.findall(r"(?<!train with )(?<!other columns with )(--[a-z.-]+)", error):
        assert option in options_of("predict"), error


@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_spreadsheets_write_is_read(run, start, end, tmp_path, capsys):
    path = tmp_path / "clean.csv"
    path.write_text(start + end.join(["when;load", *LINES, ""]), newline="", encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", str(run), str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("0,0,2024-01-02T16:00:00,")


def test_text_of_another_encoding_is_named_with_its_place(run, tmp_path, capsys):
    for name, words in {
        "UTF-16": "got UTF-16. Save it as UTF-8",
        "Latin-1": "got the byte f6 in line 1",
        "an archive": "got the byte ff in line 1",
    }.items():
        path = tmp_path / "x.csv"
        path.write_bytes(DIRTY[name])
        assert main(["predict", str(run), str(path)]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["predict", "eval", "export", "stream", "serve", "distill"])
def test_a_file_in_the_place_of_a_run_is_said_to_be_one(verb, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("1\n")
    more = {"predict": ["x"], "export": ["x"]}.get(verb, [])
    for path, kind in ((tmp_path / "x.csv", "a file"), (tmp_path / "no", "no such folder")):
        assert main([verb, str(path), *more]) == 1
        assert f"got {kind}." in capsys.readouterr().err


def piped(monkeypatch, tmp_path, content):
    (tmp_path / "stdin").write_bytes(content)
    file = open(tmp_path / "stdin")  # noqa: SIM115 - closed with the test's end
    monkeypatch.setattr(sys, "stdin", file)
    return file


def test_a_state_that_cannot_be_written_is_an_error_before_the_input_is_read(
    run, monkeypatch, tmp_path, capsys
):
    """An endless stream had its answers first, and the error when it was stopped."""
    with piped(monkeypatch, tmp_path, b"1\n2\n"):
        assert main(["stream", str(run), "--state", str(tmp_path / "stdin" / "state")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "must be writable" in err


def test_a_mark_of_utf_8_before_the_first_number_is_no_part_of_it(
    run, monkeypatch, tmp_path, capsys
):
    said = []
    for mark in (b"", codecs.BOM_UTF8):
        with piped(monkeypatch, tmp_path, mark + b"1\n2\n"):
            assert main(["stream", str(run)]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    with piped(monkeypatch, tmp_path, b"1\n" + codecs.BOM_UTF8 + b"2\n"):
        assert main(["stream", str(run)]) == 1
    assert "line 2" in capsys.readouterr().err


def test_a_row_twice_in_a_table_of_many_series_is_named_with_its_lines(tmp_path):
    path = tmp_path / "many.csv"
    days = pd.date_range("2024-01-01", periods=12)
    table = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 12), "ds": days.append(days)})
    table["y"] = np.arange(24.0)
    pd.concat([table, table.iloc[[14]]]).to_csv(path, index=False)
    frame = open_frame(path)
    for value in (True, False):  # as `train` reads it, and as `predict` does
        with pytest.raises(DataError, match=r"many\.csv: .* 2024-01-03 .* line 16 and line 26"):
            read_table(frame, roles_of(frame), value=value)


def test_serve_says_what_a_folder_of_many_series_is_for(tmp_path, capsys):
    (tmp_path / "panel.json").write_text("{}")
    assert main(["serve", str(tmp_path)]) == 1
    assert "a forecaster of many series, which" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--only", "bank"], ["--mixer", "lru"], ["--only", "trained"]])
def test_a_table_of_many_series_is_not_trained_on_as_one(options, tmp_path, capsys):
    """The second series was read as what came after the first."""
    path, run = tmp_path / "many.csv", tmp_path / "run"
    rows = "".join(f"{name},{k},{k % 7}\n" for name in "ab" for k in range(200))
    path.write_text(f"unique_id,ds,y\n{rows}")
    argv = ["train", "forecast", "--data", str(path), "--task.horizon", "2", "--task.length", "8"]
    assert main([*argv, *options, "--out", str(run), "-q"]) == 1
    assert "must hold one series, got 2 in column unique_id" in capsys.readouterr().err
    assert not run.exists()


def test_a_table_of_many_series_is_not_forecast_as_one(run, tmp_path, capsys):
    path = tmp_path / "many.csv"
    rows = "".join(f"{name},{when},{k},0\n" for name in "ab" for k, when in enumerate(HOURS))
    path.write_text(f"unique_id,when,load,ds\n{rows}")
    assert main(["predict", str(run), str(path)]) == 1
    assert "must hold one series, got 2" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named_with_the_option(tmp_path, capsys):
    path = tmp_path / "many.csv"
    rows = "".join(f"a,{k},{k % 7}\n" for k in range(12))
    path.write_text(f"unique_id,ds,y\n{rows}")
    argv = ["train", "forecast", "--data", str(path), "--task.horizon", "2", "-q"]
    assert main([*argv, "--out", str(path / "run")]) == 1
    error = capsys.readouterr().err
    assert "the run folder must be one that can be made" in error
    assert "Choose another --out." in error

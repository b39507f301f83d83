"""Every reproduction states its source and scales; the cheap ones are run."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from linrnn import reproductions
from linrnn.compare.run_table import Run
from linrnn.reproductions import Findings, Setting, Table
from linrnn.reproductions import lru_proposition_3 as proposition
from linrnn.reproductions._page.report import publish, write_report
from linrnn.reproductions._page.runs import Runs
from linrnn.train import Config, OptimConfig, Result
from linrnn.train.folder import RunFolder

each = pytest.mark.parametrize("name", reproductions.names())


@each
def test_it_says_what_it_compares(name):
    what = reproductions.load(name)
    assert what.summary
    assert what.source
    assert all(what.scales.values())
    for table in what.published:
        assert all(len(row) == len(table.head) for row in table.rows)


@each
def test_the_documentation_names_it(name, root):
    page = (root / "docs" / "reproductions.md").read_text(encoding="utf-8")
    assert f"| `{name.replace('_', '-')}` |" in page


def test_measured_gain_is_that_of_the_formula(tmp_path, monkeypatch):
    monkeypatch.setattr(proposition, "RINGS", ((0.0, 0.9), (0.5, 0.9)))
    monkeypatch.setattr(proposition, "THIN", (0.1,))
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)
    found = proposition.LRUProposition3().run(setting)
    for row in found.tables[0].rows:
        measured, formula = float(row[1].split()[0]), float(row[3])
        assert measured == pytest.approx(formula, rel=0.03)
        assert float(row[2]) == pytest.approx(1, rel=0.03)
    assert float(found.tables[1].rows[0][1]) == pytest.approx(10, rel=0.05)


def test_formula_is_the_mean_over_the_ring():
    radius_squared = torch.linspace(0.5**2, 0.9**2, 100_001, dtype=torch.float64)
    mean = (1 / (1 - radius_squared)).mean().item()
    assert proposition.gain(0.5, 0.9) == pytest.approx(mean, rel=1e-4)


def test_command_prints_theirs_and_ours(capsys, tmp_path, monkeypatch):
    from linrnn.cli import main

    monkeypatch.setattr(proposition, "RINGS", ((0.0, 0.9),))
    monkeypatch.setattr(proposition, "THIN", ())
    out = tmp_path / "p3"
    command = ["reproduce", "lru-proposition-3", "--seeds", "1", "--out", str(out)]
    assert main([*command, "--jobs", "2"]) == 0
    page = capsys.readouterr().out
    assert "--jobs 2 changed nothing" in page
    assert page.index("## Published") < page.index("## Ours")
    assert (out / "report.md").is_file()
    assert (out / "table-1.csv").read_text().startswith('"ring [r_min, r_max]"')


def test_finished_report_is_copied_without_runs(capsys, tmp_path, monkeypatch):
    from linrnn.cli import main

    monkeypatch.setattr(proposition, "RINGS", ((0.0, 0.9),))
    monkeypatch.setattr(proposition, "THIN", ())
    out, results = tmp_path / "p3", tmp_path / "results"
    (out / "runs").mkdir(parents=True)
    command = ["reproduce", "lru-proposition-3", "--seeds", "1", "--out", str(out)]
    assert main([*command, "--results", str(results)]) == 0
    kept = results / "lru-proposition-3-cpu"
    assert {f.name for f in kept.iterdir()} == {
        "report.md",
        "table-1.csv",
        "table-2.csv",
        "verdicts.csv",
    }
    page = (out / "report.md").read_text()
    there = "](../runs/lru-proposition-3.csv)"
    assert (kept / "report.md").read_text() == page.replace("](runs.csv)", there)
    assert str(kept) in capsys.readouterr().out


def test_what_could_not_be_run_is_an_exit_code(capsys, tmp_path, monkeypatch):
    from linrnn.cli import main

    found = Findings(tables=(), comparable="nothing", complete=False)
    monkeypatch.setattr(proposition.LRUProposition3, "run", lambda self, setting: found)
    out, results = tmp_path / "out", tmp_path / "results"
    kept = results / "lru-proposition-3-cpu" / "report.md"
    kept.parent.mkdir(parents=True)
    kept.write_text("a finished page")
    command = ["reproduce", "lru-proposition-3", "--out", str(out), "--results", str(results)]
    assert main(command) == 1
    page = capsys.readouterr().out
    assert "nothing" in page
    assert "has no copy of it: some of it could not be run" in page
    assert kept.read_text() == "a finished page"


def test_figures_lie_beside_the_page_that_shows_them(tmp_path):
    from matplotlib.figure import Figure

    found = Findings(
        tables=(Table("T", ["a"], [["1,5"]]),), comparable="all", figures={"f": Figure()}
    )
    lines = Figure()
    lines.subplots().plot([1], [2], label="lru")
    found = replace(found, figures={"f": Figure(), "g": lines})
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)
    files = write_report("x", proposition.LRUProposition3, setting, found, 1.0)
    assert [f.name for f in files] == [
        "report.md",
        "f.svg",
        "g.svg",
        "g.drawn.csv",
        "table-1.csv",
    ]
    assert "(g.drawn.csv)" in files[0].read_text()
    assert "(f.drawn.csv)" not in files[0].read_text()
    assert "![f](f.svg)" in files[0].read_text()
    assert (tmp_path / "f.png").stat().st_size > 0
    assert files[-1].read_text() == 'a\n"1,5"\n'


@pytest.fixture
def of_two_runs(tmp_path):
    """A setting whose folder has the records of two finished runs and of one that has not."""
    for seed in (0, 1, 2):
        config = Config(task="digits", mixer="lru", seed=seed, optim=OptimConfig(lr=0.02))
        folder = RunFolder.create(tmp_path / "runs" / "a-task" / f"lru-seed{seed}", config)
        if seed == 2:
            continue
        done = {"test_metric": 0.5 + seed / 16, "test_loss": 1.25, "validation_metric": 0.75}
        sizes = {"best_step": 10, "steps": 20, "n_parameters": 1234, "n_state": 4}
        what = {"task": "digits", "mixer": "lru", "metric": "accuracy", "seconds": 300.25}
        folder.write_result(Result(**what, **done, **sizes, folder=folder.path))
    return Setting(scale="cpu", seeds=(0, 1), out=tmp_path)


def test_page_tells_the_time_of_runs_from_that_of_the_command(of_two_runs):
    found = Findings(tables=(), comparable="")
    for seconds, words in ((620.0, "; the command took 620 s"), (310.0, "this one took 310 s")):
        write_report("x", proposition.LRUProposition3, of_two_runs, found, seconds)
        text = (of_two_runs.out / "report.md").read_text()
        assert "2 runs, 600 s of training" in text
        assert words in text


def test_every_run_stands_beside_the_page(of_two_runs):
    found = Findings(tables=(), comparable="")
    files = write_report("x", proposition.LRUProposition3, of_two_runs, found, 1.0)
    assert "[Every run by itself](runs.csv)" in files[0].read_text()
    with next(file for file in files if file.name == "runs.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {(row["scale"], row["part"], row["row"]) for row in rows} == {("cpu", "a-task", "lru")}
    done = rows[:2]
    assert [(row["seed"], float(row["test"])) for row in done] == [("0", 0.5), ("1", 0.5625)]
    same = {(row["mixer"], row["lr"], row["steps"], row["validation"]) for row in done}
    assert same == {("lru", "0.02", "20", "0.75")}
    assert json.loads(done[0]["options"]) == {"optim.lr": 0.02, "task": "digits"}
    assert (rows[2]["seed"], rows[2]["test"], rows[2]["steps"]) == ("2", "", "0")
    assert len({row["config"] for row in rows}) == 1
    publish(files, of_two_runs.out / "results" / "x-cpu")
    kept = Runs.read(of_two_runs.out / "results" / "runs" / "x.csv")
    assert kept == Runs.read(of_two_runs.out / "runs.csv")
    assert kept.csv() == kept.appended(kept).csv()
    page = (of_two_runs.out / "results" / "x-cpu" / "report.md").read_text()
    assert "[Every run by itself](../runs/x.csv)" in page


def test_a_page_without_runs_names_none(tmp_path):
    (tmp_path / "runs.csv").write_text("of an older page")
    found, setting = (
        Findings(tables=(), comparable=""),
        Setting(scale="cpu", seeds=(0,), out=tmp_path),
    )
    files = write_report("x", proposition.LRUProposition3, setting, found, 1.0)
    assert "runs.csv" not in files[0].read_text()
    assert not (tmp_path / "runs.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lru-proposition-4"], "Did you mean 'lru-proposition-3'"),
        (["lru-proposition-3", "--scale", "moon"], "no reproduce --scale named 'moon'"),
        (["lru-proposition-3", "--seeds", "0"], "seeds must be"),
        (["lru-proposition-3", "--jobs", "0"], "jobs must be"),
    ],
)
def test_wrong_commands_are_explained(capsys, arguments, words):
    from linrnn.cli import main

    assert main(["reproduce", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_rows_of_a_file_give_the_claims_of_those_in_memory(tmp_path):
    rows = [
        Run(scale="cpu", part="a-task", row=row, seed=seed, metric="mse", test=size / (3 + seed),
            measures={"held": 1 / (7 + seed)})
        for row, size in (("one", 1.0), ("two", 2.0))
        for seed in range(5)
    ]  # fmt: skip
    runs = Runs(tuple(rows))
    path = tmp_path / "a.csv"
    path.write_bytes(runs.csv())
    assert Runs.read(path) == runs
    claims = [
        each_runs.part("a task").claim("one", "two", "it", "1")
        for each_runs in (runs, Runs.read(path))
    ]
    assert claims[0] == claims[1]

"""Every command a reader is told to type exists; every Python block runs."""

import functools
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from linrnn import cli, tasks
from linrnn.cli._line.entries import CATALOGUES, summaries
from linrnn.cli._line.options import parse_train
from linrnn.cli.train import starting_config
from linrnn.errors import LinrnnError

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    return [body for found, body in BLOCK.findall(text) if found == language]


def commands():
    """Every command line of a bash block, and every `linrnn ...` and `make ...` in running text."""
    for page in PAGES:
        for block in blocks(page, "bash"):
            yield from ((page, line) for line in block.splitlines() if line.strip())
        prose = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
        for code in re.findall(r"`((?:linrnn|make) [^`]+)`", prose):
            yield page, code


def make_targets():
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@functools.cache  # pages share a third of their commands
def problem(command):
    """Why a command cannot be typed as it stands, or None."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        unknown = {word for word in words[1:] if "=" not in word} - make_targets()
        return f"no make target {unknown}" if unknown else None
    if words[:2] == ["pip", "install"]:
        known = {"-c", "-e", "constraints.txt", ".", ".[train]", ".[serve]", ".[train,dev,docs]"}
        known |= {"-C", "cmake.define.LINRNN_ISAS="}  # of CMakeLists.txt: all processors
        return None if set(words[2:]) <= known else "an unknown way to install"
    if words[0] == "linrnn":
        return _problem_with_verb(words[1:])
    if words == ["source", ".venv/bin/activate"]:  # made by the targets of the Makefile
        return None
    return "neither make, pip nor linrnn"


def _problem_with_verb(words):
    if words[0].startswith("-") or words[0].isupper():
        return None if words[0] in ("--help", "--version", "VERB") else "no such option"
    if words[0] not in cli.verbs():
        return f"no verb {words[0]}"
    subject = words[1] if len(words) > 1 else None
    known = {
        "list": tuple(CATALOGUES),
        "show": (
            *(
                name
                for kind in ("mixers", "tasks", "learners", "recipes")
                for name in summaries(kind)
            ),
            *(name.replace("_", "-") for name in summaries("reproductions")),
        ),
        "train": tasks.names(),
    }.get(words[0])
    if known is None or subject is None or subject.isupper():
        return None
    if subject in ("--help", "--resume"):
        return None
    if subject not in known:
        return f"no {subject!r} for {words[0]}"
    return _problem_with_options(words[1:]) if words[0] == "train" else None


def _problem_with_options(words):
    options = [word for word in words[1:] if word != "--help"]
    try:
        parse_train(options, starting_config(words[0], options))
    except (SystemExit, LinrnnError):
        return f"wrong options {options}"
    return None


def test_pages_hold_commands():
    found = {command for _, command in commands()}
    assert {"make quickstart", "make test", "linrnn doctor", "linrnn train digits"} <= found


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_command_exists(page, command):
    assert problem(command) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "make nonsense",
        "linrnn nonsense",
        "linrnn show nonsense",
        "linrnn list lru",
        "linrnn train nonsense",
        "linrnn train digits --nonsense 1",
        "linrnn train digits --seed one",
        "linrnn train digits --scale nonsense",
        "rm -rf /",
    ],
)
def test_a_wrong_command_is_noticed(wrong):
    assert problem(wrong) is not None


# pages whose blocks another test runs, and looks at what they give
RUN_BY = {
    "docs/learners.md": "tests/unit/train/test_training_module.py",
    "docs/own-recurrence.md": "tests/unit/cells/test_page.py",
}


@pytest.mark.parametrize(("page", "test"), RUN_BY.items())
def test_pages_that_others_run_are_read_there(page, test):
    assert blocks(page, "python")
    assert f'"{Path(page).name}"' in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page not in RUN_BY]
)
def test_python_blocks_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they may leave files
    names = {"__name__": "readme"}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    made = [value for value in names.values() if isinstance(value, torch.Tensor)]
    assert all(value.isfinite().all() for value in made)


@pytest.mark.parametrize("target", sorted(make_targets()))
def test_make_target_is_explained_and_expands(target):
    run = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    assert re.search(rf"^{target} ", subprocess.run(["make", "help"], **run).stdout, re.MULTILINE)
    assert subprocess.run(["make", "--dry-run", target], **run).stdout


def test_links_between_files_lead_somewhere():
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8")):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{page}: {target}"


def test_readme_shows_a_first_result_before_line_20():
    top = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:19])
    assert "make quickstart" in top
    assert "accuracy" in top


def test_tables_are_those_made_from_the_catalogue(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    lists = importlib.import_module("lists")
    tables = {lists.DROP_IN: lists.state_table()}
    tables[lists.DEPLOYMENT] = lists.export_table()
    tables[lists.CELL_FUNCTIONS] = lists.cell_functions.table()
    tables[lists.PUBLISHED] = lists.published_table()
    for page, table in tables.items():
        text = page.read_text(encoding="utf-8")
        assert lists.BLOCK.search(text), f"{page.name} has no marked block"
        assert lists.filled_in(text, table) == text, "run: python docs/lists.py"
        other = text.replace(table, table.replace("`", "", 1))
        assert lists.filled_in(other, table) != other


def test_readme_prints_what_it_says(capsys):
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), {})
    shape, error = capsys.readouterr().out.rsplit(" ", 1)
    said = blocks("README.md", "text")[0]
    assert said.startswith(shape)
    assert float(error) <= 5 * float(said.rsplit(" ", 1)[1])  # processors round differently


def test_readme_fits_on_two_screens():
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Citation")[0]
    assert len(text.splitlines()) <= 90

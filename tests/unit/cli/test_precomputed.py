"""Answers that come with the package: what is computed, of these sources and of no others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import linrnn
from linrnn.cli import list as list_verb
from linrnn.cli import show
from linrnn.cli._line import precomputed as module
from linrnn.cli._verbs import precompute

ROOT = Path(__file__).parents[3]


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A folder of the package whose answers are used, with one source file."""
    (tmp_path / "source.py").write_text("one = 1\n")
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "source.py").write_text("one = 1\n")
    monkeypatch.setattr(linrnn, "__path__", [str(tmp_path)])
    monkeypatch.delenv("LINRNN_ANSWERS")
    monkeypatch.delitem(sys.modules, "torch")
    module._table.cache_clear()
    yield tmp_path
    module._table.cache_clear()


def write(folder, needs=(), **more):
    table = {
        "pages": {"mixers/lru": {"answer": ["page"], "needs": [*needs]}},
        "seal": module.seal(),
    }
    (folder / module.FILE).write_text(json.dumps(table | more))


def ask():
    module._table.cache_clear()
    return module.precomputed("pages", "mixers/lru")


def test_an_answer_is_that_of_the_sources_it_was_made_of(package):
    assert ask() is None
    write(package)
    assert ask() == ["page"]
    assert module.precomputed("pages", "mixers/gru") is None


@pytest.mark.parametrize("name", ["source.py", "lower/source.py"])
@pytest.mark.parametrize("edit", ["changed", "removed", "renamed", "new"])
def test_any_edit_of_a_source_is_seen(package, name, edit):
    write(package)
    path = package / name
    before = path.stat()
    if edit == "changed":  # as long, and of the same time
        path.write_text("one = 2\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif edit == "removed":
        path.unlink()
    elif edit == "renamed":
        path.rename(path.with_name("other.py"))
    else:
        path.with_name("other.py").write_text("")
    assert ask() is None


def test_bytecode_and_kernels_change_no_answer(package):
    write(package)
    for name in ("__pycache__", "_native"):
        (package / name).mkdir()
        (package / name / "file").write_text("")
    assert ask() == ["page"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"seal": 3}'])
def test_a_damaged_file_is_not_believed(package, text):
    write(package)
    (package / module.FILE).write_text(text)
    assert ask() is None


def test_what_is_not_installed_is_not_shown(package):
    write(package, needs=["no_such_module"])
    assert ask() is None


@pytest.mark.parametrize(("name", "value"), [("LINRNN_ANSWERS", "0"), ("LINRNN_TRUST", "m:Mine")])
def test_a_variable_asks_for_a_fresh_answer(package, monkeypatch, name, value):
    write(package)
    monkeypatch.setenv(name, value)
    assert ask() is None


def test_programs_and_plugins_compute(package, monkeypatch):
    write(package)
    with monkeypatch.context() as patch:
        patch.setattr(module, "registered", lambda group: {"theirs": []})
        assert ask() is None
    monkeypatch.setitem(sys.modules, "torch", object())
    assert ask() is None


@pytest.mark.parametrize("task", ["digits", "table"])
@pytest.mark.parametrize("width", ["80", "93", "200"])
def test_the_help_of_a_task_is_that_of_tyro(task, width):
    ((name, stated),) = precompute.options_of_tasks([task])
    assert name == task
    stated = json.loads(json.dumps(stated))
    _, real = precompute.stated_options(task)
    text = precompute.printed(lambda: module.print_options(stated), width)
    assert text == precompute.printed(real, width)
    assert "--mixer.d-state" in text


def test_a_page_that_reads_data_is_no_answer_of_the_sources():
    assert precompute.page("mixers", "lru") == [p._asdict() for p in show.pages("mixers", "lru")]
    assert precompute.page("tasks", "images") is None
    with_example, without = (precompute.page("tasks", "digits", w) for w in ("", "sklearn"))
    assert with_example is not None
    assert without is None  # it says what is missing
    assert "sklearn" in sys.modules


def test_a_process_answers_from_the_file_until_a_source_is_touched(tmp_path):
    folder = Path(linrnn.__file__).parent
    shutil.copytree(folder, tmp_path / "linrnn", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {k: v for k, v in os.environ.items() if k != "LINRNN_ANSWERS"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
    record = {"answer": "from the file\n", "needs": []}
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__.lower()]
import linrnn
"""
    make = f"""{code}
import json
from linrnn.cli._line.precomputed import seal
table = {{"lines": {{"learners": {record!r}}}, "seal": seal()}}
open(linrnn.__path__[0] + "/_precomputed.json", "w").write(json.dumps(table))
"""
    say = f"""{code}
from linrnn.cli import main
sys.argv = ["linrnn", "list", "learners"]
sys.exit(main())
"""

    def run(text):
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return done.stdout

    run(make)
    assert run(say) == "from the file\n"
    source = tmp_path / "linrnn" / "learn" / "bptt.py"
    text = source.read_text()
    words = text.split('"""')[1].split("\n")[0]
    assert words in run("import linrnn") + text
    source.write_text(text + "\n# touched\n")
    assert run(say) == list_verb.SECTIONS["lines"]("learners")

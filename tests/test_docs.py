"""Docstrings: everything public has one, a mixer's has its sections, every example runs."""

import doctest
import importlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linrnn import cli, mixers, recipes, tasks
from linrnn._options.catalogue import studied
from linrnn.state import leaves
from linrnn.train.folder import RunFolder
from package_modules import MODULES

ROOT = Path(__file__).parents[1]
SECTIONS = [
    "Equation",
    "Args",
    "Departures from the paper",
    "Example",
    "Reference",
]
each_mixer = pytest.mark.parametrize("name", mixers.names())


def public_members(module):
    """Public functions, classes and their public methods, each defined in this module."""
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(member) or inspect.isclass(member):
            yield name, member
        if inspect.isclass(member):
            for method, value in vars(member).items():
                if not method.startswith("_") and inspect.isfunction(value):
                    yield f"{name}.{method}", value


def test_everything_public_has_a_docstring():
    bare = []
    for name in MODULES:
        module = importlib.import_module(name)
        bare += [] if module.__doc__ else [name]
        bare += [f"{name}.{m}" for m, value in public_members(module) if not inspect.getdoc(value)]
    assert bare == []


def unlike(name):
    """Outputs of a module's examples that differ from those shown."""
    torch.manual_seed(0)  # as every test begins
    module, report, attempted = importlib.import_module(name), io.StringIO(), 0
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
        attempted += runner.run(example, out=report.write).attempted
    if not attempted and "\n    >>> " in inspect.getsource(module):
        report.write(f"{name} shows an example that doctest does not find")
    return report.getvalue()


def test_examples_run():
    found = [report for report in map(unlike, MODULES) if report]
    assert not found, "\n".join(found)


def test_mixers_were_found():
    assert "lru" in mixers.names()


@each_mixer
def test_mixer_docstring_has_its_sections_in_order(name):
    titles = re.findall(r"^([A-Z][\w ]+):{1,2}$", inspect.getdoc(mixers.load(name)), re.MULTILINE)
    assert titles == SECTIONS


@each_mixer
def test_mixer_docstring_shows_an_example(name):
    example = inspect.getdoc(mixers.load(name)).split("\nExample:\n")[1].split("\nReference:")[0]
    assert ">>> " in example
    assert mixers.load(name).__name__ in example


@each_mixer
def test_mixer_docstring_names_every_argument(name):
    cls = mixers.load(name)
    entries = inspect.getdoc(cls).split("\nArgs:\n")[1].split("\nDepartures")[0]
    named = set()
    for entry in re.findall(r"^    ([\w, ]+):", entries, re.MULTILINE):
        named |= set(entry.split(", "))
    shared = {"d_model", "device", "dtype"}  # the contract's page says what they are
    assert named == set(inspect.signature(cls).parameters) - shared


@each_mixer
def test_mixer_cites_an_entry_of_the_bibliography(name, hooks):
    key = re.search(r"Key: (\w+)\.$", inspect.getdoc(mixers.load(name)), re.MULTILINE)
    assert key is not None
    assert key[1] in hooks.bibliography.read()


@each_mixer
def test_mixer_has_its_page(name, hooks):
    page = hooks.mixer.page(name)
    for part in leaves(mixers.build(name, 4).init_state(1)):
        axes = part.ndim - 1
        assert re.search(rf"^state.*: \(batch(, \w+){{{axes}}}\) \w+$", page, re.MULTILINE), page
    assert f"::: linrnn.mixers.{name}.{mixers.load(name).__name__}" in page
    assert "../references.md#" in page


def test_page_on_recipes_lists_every_scale(hooks):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    table = hooks.on_page_markdown(page).split("## All recipes")[1]
    for name in recipes.names():
        for scale in recipes.scales(name):
            assert f"| {name} | {scale} | " in table


def test_bibliography_is_read_whole(hooks):
    text = hooks.bibliography.SOURCE.read_text(encoding="utf-8")
    entries = hooks.bibliography.read()
    assert len(entries) == text.count("\n@") + 1
    for entry in entries.values():
        assert {"title", "author", "year"} <= set(entry)
    first = entries["orvieto2023resurrecting"]
    assert first["author"].startswith("Antonio Orvieto, Samuel L. Smith, Albert Gu")
    assert first["eprint"] == "2303.06349"


@pytest.mark.parametrize("catalogue", [mixers, tasks, recipes], ids=lambda m: m.__name__)
def test_every_entry_of_a_catalogue_loads(catalogue):
    for name in catalogue.names():
        assert inspect.getdoc(catalogue.load(name))


@pytest.mark.parametrize("name", recipes.names())
def test_every_scale_has_a_docstring(name):
    rows = studied("linrnn.recipes")
    if name in rows:
        assert rows[name].text.endswith(".")
        return
    module = importlib.import_module(f"linrnn.recipes.{name}")
    assert all(inspect.getdoc(getattr(module, scale)) for scale in recipes.scales(name))


def test_every_verb_has_a_summary_and_a_main():
    assert {"list", "show", "doctor"} <= set(cli.verbs())
    for verb, summary in cli.verbs().items():
        assert summary.endswith("."), verb
        assert callable(importlib.import_module(f"linrnn.cli.{verb}").main)


def test_page_on_the_run_folder_lists_every_file(tmp_path):
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    for path in vars(RunFolder(tmp_path)).values():
        name = path.relative_to(tmp_path).as_posix()
        assert name == "." or f"| `{name}" in page, name


def test_page_on_the_command_line_lists_every_environment_variable():
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    sources = (p.read_text(encoding="utf-8") for p in (ROOT / "src" / "linrnn").rglob("*.py"))
    used = set(re.findall(r"environ(?:\.get\(|\[)\"(LINRNN_\w+)", "\n".join(sources)))
    assert "LINRNN_BACKEND" in used
    assert {name for name in used if f"| `{name}" not in page} == set()


def test_sections_of_a_docstring_become_markdown(monkeypatch):
    pytest.importorskip("griffe")
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.delitem(sys.modules, "docstrings", raising=False)
    rewrite = importlib.import_module("docstrings").rewrite
    source = (
        "One.\n\nEquation:\n    y = x\n      + 1\n\n"
        "Args:\n    x: it.\n\nExample:\n    >>> 1\n    1\n"
    )
    head, formulas, rest = re.split(r"(<section .*</section>)", rewrite(source), flags=re.DOTALL)
    assert head == "One.\n\n**Equation:**\n\n"
    assert "= x + 1" in formulas
    assert rest == "\n\nArgs:\n    x: it.\n\nExamples:\n    >>> 1\n    1\n"


def test_names_that_share_an_entry_show_their_types(monkeypatch, tmp_path):
    griffe = pytest.importorskip("griffe")
    (tmp_path / "shared.py").write_text(
        "class Ring:\n"
        '    """A ring.\n\n    Args:\n        low, high: radii.\n        n, name: others.\n'
        '\n    Raises:\n        ValueError, TypeError: always.\n    """\n\n'
        "    def __init__(self, low: float = 0.5, high: float = 0.5, *, n: int, name: str): ...\n"
    )
    monkeypatch.delitem(sys.modules, "docstrings", raising=False)
    extensions = griffe.load_extensions(str(ROOT / "docs" / "docstrings.py"))
    package = griffe.load("shared", search_paths=[tmp_path], extensions=extensions)
    docstring = package["Ring"].docstring.value
    assert "low, high (float = 0.5): radii." in docstring
    assert "n, name (int, str): others." in docstring
    assert "ValueError, TypeError: always." in docstring


@pytest.fixture(scope="module")
def site_reader():
    """Docstrings of a package as the site reads them, and what is warned of meanwhile."""
    griffe = pytest.importorskip("griffe", reason="griffe is not installed")
    pytest.importorskip("mkdocs")
    from mkdocs.config import load_config

    plugin = load_config(str(ROOT / "mkdocs.yml")).plugins["mkdocstrings"]
    options = plugin.config.handlers["python"]["options"]

    def read(name, folder):
        extensions = griffe.load_extensions(*(str(ROOT / path) for path in options["extensions"]))
        package = griffe.load(
            name,
            search_paths=[folder],
            extensions=extensions,
            docstring_parser=griffe.Parser(options["docstring_style"]),
            docstring_options=options["docstring_options"],
            allow_inspection=False,
        )
        return _parse_all(package)

    return read


def _parse_all(node):
    """How many docstrings there are in and below a node of griffe, each parsed."""
    count = 0
    if node.docstring is not None:
        count += len(node.docstring.parsed) > 0
    return count + sum(_parse_all(m) for m in node.members.values() if not m.is_alias)


def test_the_site_reads_every_docstring_without_a_warning(site_reader, warnings_logged):
    """Whatever page shows it: `mkdocs build --strict` ends at the first warning."""
    assert site_reader("linrnn", ROOT / "src") > 3000
    assert warnings_logged == []


@pytest.mark.parametrize(
    "args",
    ["one, two,\n        three: over two lines.", "one without a colon"],
    ids=["two", "none"],
)
def test_an_entry_that_the_site_cannot_read_is_warned_of(
    args, site_reader, warnings_logged, tmp_path
):
    source = f'def f(one, two, three):\n    """It.\n\n    Args:\n        {args}\n    """\n'
    (tmp_path / "wrong.py").write_text(source)
    site_reader("wrong", tmp_path)
    assert any("Failed to get 'name: description' pair" in text for text in warnings_logged)


def test_a_warning_ends_the_build_of_the_site(tmp_path):
    """With the options of `make docs`: --quiet would keep warnings from being counted."""
    pytest.importorskip("mkdocstrings")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"\$\(BIN\)/mkdocs build (.*)", makefile)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("::: wrong.f\n")
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: wrong\nplugins: [{mkdocstrings: {handlers: {python: {paths: [.]}}}}]\n"
    )
    codes = []
    for entry in ("one: a number.", "one,\n        over two lines."):
        source = f'def f(one: int) -> None:\n    """It.\n\n    Args:\n        {entry}\n    """\n'
        (tmp_path / "wrong.py").write_text(source)
        command = [sys.executable, "-m", "mkdocs", "build", *options.split()]
        codes.append(subprocess.run(command, cwd=tmp_path, check=False, timeout=60).returncode)
    assert codes[0] == 0
    assert codes[1] != 0

"""The site: every public name is on a page, and what is generated follows its declarations."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "linrnn"
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def described(hooks):
    """Everything that a page of the site describes by its docstring."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    texts = [hooks.on_page_markdown(text) for text in texts] + [*hooks.mixer.pages().values()]
    return [found(path) for path in sorted({*DIRECTIVE.findall("\n".join(texts))})]


def public_modules():
    """Modules a user may name: those of the package, of its folders, and of `interop`."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names = [part for part in parts if part != "__init__"]
        inside = len(parts) == 1 or parts[1:] == ("__init__",) or parts[0] == "interop"
        if inside and parts[0] != "cli" and not any(name.startswith("_") for name in names):
            yield ".".join(["linrnn", *names]), path


def public_names(body):
    """What a module defines, and what it hands on: ``from a import b as b``."""
    for node in body:
        if isinstance(node, ast.If):  # TYPE_CHECKING: what is imported when it is first used
            yield from public_names(node.body)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
            yield node.name


def found(path):
    """The module, or what a module holds, that a directive names."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("module", "path"), [*public_modules()], ids=lambda value: str(value)[-30:]
)
def test_every_public_name_is_on_a_page(module, path, described):
    held = importlib.import_module(module)
    things = {n: getattr(held, n) for n in public_names(ast.parse(path.read_text("utf-8")).body)}
    missing = [
        name
        for name, thing in things.items()
        if not (inspect.ismodule(thing) or held in described or thing in described)
        and sys.modules.get(getattr(thing, "__module__", "")) not in described
    ]
    assert missing == []


def test_public_names_are_found():
    assert {"linrnn", "linrnn.train", "linrnn.nn", "linrnn.state"} <= {
        m for m, _ in public_modules()
    }
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    assert {"SequenceModel", "load", "train"} <= {*public_names(tree.body)}


def test_every_folder_of_results_is_a_page_with_its_figures(hooks):
    pages, files = hooks.results.pages(), hooks.results.files()
    for folder in (ROOT / "results").iterdir():
        if folder.is_dir():
            (page,) = (uri for uri in pages if uri.startswith(f"results/{folder.name}/"))
            shown = re.findall(r"\]\(([^)#:]+\.(?:svg|csv|png|wav))\)", pages[page])
            assert {f"results/{folder.name}/{name}" for name in shown} <= {*files, *pages}
            assert f"]({folder.name}/" in pages["results/README.md"]
            listed = [uri for entry in hooks.results.navigation() for uri in entry.values()]
            assert page in listed


def test_links_of_results_into_the_documentation_hold_on_the_site(hooks):
    for uri, text in hooks.results.pages().items():
        for link in re.findall(r"\]\((\.\./[^)#]+\.md)\)", text):
            place = (Path("/site") / uri).parent.joinpath(link).resolve().relative_to("/site")
            on_disk = ROOT / "docs" / place
            assert on_disk.exists() or place.as_posix() in hooks.results.pages(), (uri, link)

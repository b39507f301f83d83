"""Which pages and tutorials use what a page of the reference describes."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
_TITLE = {
    ".md": re.compile(r"^# (.+)$", re.MULTILINE),
    ".py": re.compile(r"^# # (.+)$", re.MULTILINE),
}


def section(markdown: str, uri: str) -> str:
    """A list of the pages whose code uses a name that this page describes, or nothing."""
    described = _DIRECTIVE.findall(markdown)
    pages = [
        (title, page)
        for page, (title, names) in programs().items()
        if page != uri and any(_is_used(path, names) for path in described)
    ]
    up = "../" * uri.count("/")
    lines = "".join(f"- [{title}]({up}{page})\n" for title, page in sorted(pages))
    return f"\n\n## Examples {{ data-search-exclude }}\n\n{lines}" if lines else ""


@cache
def programs() -> dict[str, tuple[str, frozenset[str]]]:
    """Title and dotted names of linrnn that the code uses, by page."""
    found = {}
    for path in sorted([*DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.py")]):
        text = path.read_text(encoding="utf-8")
        blocks = _BLOCK.findall(text) if path.suffix == ".md" else [text]
        names = frozenset(name for block in blocks for name in _names(block))
        title = _TITLE[path.suffix].search(text)
        if names and title:
            uri = path.relative_to(DOCS).with_suffix(".md").as_posix()
            found[uri] = (title[1], names)
    return found


def _names(code: str) -> Iterator[str]:
    """`linrnn.a.b` of ``from linrnn.a import b`` and of ``linrnn.a.b``."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linrnn"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if re.fullmatch(r"linrnn(\.\w+)+", dotted):
                yield dotted


def _is_used(path: str, names: frozenset[str]) -> bool:
    """Whether a name is the object at a path, or inside of it if that is a module."""
    described = _resolve(path)
    if isinstance(described, ModuleType):
        homes = {getattr(_resolve(name), "__module__", None) or "" for name in names}
        return any(f"{home}.".startswith(f"{path}.") for home in {*homes, *names})
    return any(_resolve(name) is described for name in names)


@cache
def _resolve(path: str) -> object:
    """The module, or the object in one, of a dotted name; a fresh object if there is none."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(_resolve(module), name, object()) if module else object()

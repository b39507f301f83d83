"""Phrases that a reader has to translate stay out of the sources and the pages.

Each has a plain word: "requested" or "the target" for the first, "its own" or "separate" for the
fifth, "instead of" for the eighth.
"""

import ast
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = re.compile(
    r"\b(asked for|what is left of|is told of|nobody asked|of its own|so many|"
    r"there is none beside|in the place of|is said|as ever|what holds|what stands)\b",
    re.IGNORECASE,
)
PYTHON = sorted((ROOT / "src").rglob("*.py"))
NATIVE = sorted(p for ending in ("*.h", "*.cpp") for p in (ROOT / "src").rglob(ending))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", ".ci")
PROGRAMS = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
FIRST = re.compile(r"\s*(What|That|Of|Whom)\b")
#: A text that begins so, as it is written; a module without one need not be parsed.
WRITTEN = re.compile(r"""["'](\s|\\\s)*(What|That|Of|Whom)\b""")


def python_words(source):
    """Every text of a module, and every comment that could have a phrase: few lines need tokens."""
    commented = any("#" in line and phrases([line]) for line in source.splitlines())
    lines = iter(source.splitlines(keepends=True) if commented else ())
    for token in tokenize.generate_tokens(lambda: next(lines, "")):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def phrases(texts):
    """The phrases in some texts, as they are written, over the ends of lines too."""
    return [found[0] for text in texts for found in PHRASES.finditer(" ".join(text.split()))]


def test_phrases_are_found_in_texts_and_comments_and_over_lines():
    source = 'def f():\n    """A row of\n    its own."""\n    x = f"{1} as ever"  # So many.\n'
    assert sorted(phrases(python_words(source))) == ["So many", "as ever", "of its own"]
    assert phrases(["shared by so manyfold", "answered"]) == []


def by_file(texts):
    """Phrases by the name of the file, without files that have none."""
    return {file.relative_to(ROOT).as_posix(): found for file, found in texts.items() if found}


def test_sources_say_it_plainly():
    read = {file: file.read_text(encoding="utf-8") for file in PYTHON}
    assert by_file({file: phrases(python_words(text)) for file, text in read.items()}) == {}


def test_native_sources_say_it_plainly():
    read = {file: file.read_text(encoding="utf-8").replace("//", " ") for file in NATIVE}
    assert by_file({file: phrases([text]) for file, text in read.items()}) == {}


def test_pages_say_it_plainly():
    read = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert by_file({page: phrases([text]) for page, text in read.items()}) == {}


def docstrings(source):
    """Texts that are statements: docstrings, and those of fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            value = getattr(node.value, "value", None)
            if isinstance(value, str):
                yield value


def beginnings(source):
    """Docstrings that begin with none of the two."""
    return [text for text in docstrings(source) if FIRST.match(text)]


def test_a_docstring_that_begins_otherwise_is_noticed():
    for source in ('"""What."""', "def f():\n    r'''\n    Of.'''", 'x = 1\n"""\\\nThat is."""'):
        assert WRITTEN.search(source)
        assert len(beginnings(source)) == 1


def test_docstrings_begin_with_a_verb_or_a_noun():
    read = {file: file.read_text(encoding="utf-8") for file in PROGRAMS}
    found = {file: beginnings(text) for file, text in read.items() if WRITTEN.search(text)}
    assert by_file(found) == {}

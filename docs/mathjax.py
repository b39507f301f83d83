"""A mkdocs hook: MathJax into the site, from the package that the lock installs, and nothing else.

One file holds the reader of TeX, the writer of SVG and its glyphs, so a page asks nobody for more.
"""

from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PACKAGE = "sphinx-mathjax-offline"
NAME = "tex-svg.js"


def source() -> Path:
    """Where the installed package keeps the file."""
    for path in distribution(PACKAGE).files or []:
        if path.name == NAME:
            return Path(str(path.locate()))
    raise FileNotFoundError(f"{PACKAGE} has no {NAME}; `make docs` installs the version that has")


def on_files(files: Files, config: Any) -> Files:
    """Add the file, so that it is copied with the pages."""
    content = source().read_bytes()
    files.append(File.generated(config, f"assets/mathjax/{NAME}", content=content))
    return files

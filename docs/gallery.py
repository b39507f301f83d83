"""A mkdocs hook: the gallery, every picture of the committed results and of the tutorials.

And the numbers of the benchmarks, which pages offer beside the pictures of them.
"""

import re
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "results"
TUTORIALS = Path(__file__).parent / "tutorials"
_NUMBERS = (".drawn.csv", ".csv")
_TICK = re.compile(r"[−\d.,/e+%×\s]+")
_LONGEST_LABEL = 50
"""Characters of a label of an axis; longer texts are titles."""
HEAD = """---
search:
  boost: 0.5
---
# Gallery

These are pictures of real runs. Click a title to see how one was made. Pictures of published
results come from the pages of [reproductions](reproductions.md), which also have the tables and
what you may conclude. Pictures of tutorials were drawn when this site was built.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add the page, and the pictures of results that no other page has brought."""
    there = {file.src_uri for file in files}
    drawn = sorted(name for name in there if re.fullmatch(r"tutorials/.*\.svg", name))
    for name, path in pictures().items():
        if name not in there:
            files.append(File.generated(config, name, content=path.read_bytes()))
    for name, path in numbers().items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, "gallery.md", content=page(drawn)))
    return files


def pictures() -> dict[str, Path]:
    """Every picture of the results, by its name in the site."""
    return {f"results/{p.parent.name}/{p.name}": p for p in sorted(RESULTS.glob("*/*.svg"))}


def numbers() -> dict[str, Path]:
    """Every table of the benchmarks, by its name in the site."""
    return {f"benchmarks/{path.name}": path for path in sorted(BENCHMARKS.glob("*.csv"))}


def page(drawn: list[str]) -> str:
    """The page, with these pictures of tutorials."""
    parts = [HEAD, "## Tutorials\n", *block([(name, tutorial(name)) for name in drawn], "own")]
    for folder in sorted({path.parent for path in pictures().values()}):
        shown = [(name, caption(p)) for name, p in pictures().items() if p.parent == folder]
        parts += [f"## {heading(folder)}\n", *block(shown)]
    return "\n".join(parts)


def caption(picture: Path) -> str:
    """The subject of a picture of results, with a link to its numbers where they exist."""
    words = picture.stem.replace("-", " ")
    words = f"{words[:1].upper()}{words[1:]}{axes(picture.read_text(encoding='utf-8'))}"
    table = next((p for p in map(picture.with_suffix, _NUMBERS) if p.exists()), None)
    if table is None:
        return words
    return f"{words} ([numbers](results/{table.relative_to(RESULTS).as_posix()}))"


def axes(svg: str) -> str:
    """ ": y against x" of the first panel, whose labels follow the ticks of each axis."""
    texts = re.findall(r"<!-- (.*?) -->", svg)
    labels = [
        text
        for tick, text in pairwise(texts)
        if _TICK.fullmatch(tick) and not _TICK.fullmatch(text) and len(text) < _LONGEST_LABEL
    ]
    if len(labels) != 2 or labels[1].startswith(labels[0]):  # several panels, or bars
        return ""
    return f": {labels[1]} against {labels[0]}"


def tutorial(name: str) -> str:
    """The title of the tutorial that drew a picture, with a link."""
    stem = Path(re.sub(r"-\d+\.svg$", "", name)).name
    text = (TUTORIALS / f"{stem}.py").read_text(encoding="utf-8")
    title = re.search(r"^# # (.+)$", text, re.MULTILINE)
    return f"[{title[1] if title else stem}](tutorials/{stem}.md)"


def heading(folder: Path) -> str:
    """The title of a page of results, with a link."""
    page = next(folder / name for name in ("report.md", "README.md") if (folder / name).exists())
    title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
    return f"[{title}](results/{page.relative_to(RESULTS).as_posix()})"


def block(shown: list[tuple[str, str]], kind: str = "") -> list[str]:
    """Pictures side by side, each with what it is called."""
    lines = [f'<div class="gallery {kind}" markdown>\n']
    for name, words in shown:
        alone = re.sub(r" \(\[numbers\].*", "", words)
        plain = escape(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", alone), quote=True)
        lines.append(f"<figure markdown>\n![{plain}]({name}){{ loading=lazy }}\n")
        lines.append(f"<figcaption markdown>{words}</figcaption>\n</figure>\n")
    return [*lines, "</div>\n"]

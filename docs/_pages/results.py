"""The pages of results/, with their figures and tables, as they lie in the repository."""

import csv
import re
from pathlib import Path

from linrnn.reproductions._page.verdict import OPPOSITE, UNRESOLVED

FOLDER = Path(__file__).parents[2] / "results"
_BESIDE = {".svg", ".png", ".csv", ".wav"}
_DOCS = re.compile(r"\]\(\.\./docs/")  # results/ lies beside docs/ there, and inside of it here

_LAST = "---\nsearch:\n  boost: 0.3\n---\n\n"
"""Who looks for a system wants its page, and not all that it was compared with."""


def reports() -> list[Path]:
    """The page of each folder, `report.md` or `README.md`, sorted by folder."""
    found = (FOLDER.glob(f"*/{name}") for name in ("report.md", "README.md"))
    return sorted((path for paths in found for path in paths), key=lambda path: path.parent.name)


def uri(path: Path) -> str:
    """Where a file of results/ lies on the site."""
    return f"results/{path.relative_to(FOLDER).as_posix()}"


def pages() -> dict[str, str]:
    """The Markdown of every page, by its place."""
    overview = FOLDER / "README.md"
    found = {uri(overview): _overview(overview.read_text(encoding="utf-8"))}
    for path in reports():
        text = _DOCS.sub("](../../", path.read_text(encoding="utf-8"))
        found[uri(path)] = f"{_LAST}{text.rstrip()}\n{_leads(path.parent)}{_downloads(path.parent)}"
    return found


def files() -> dict[str, Path]:
    """Files that the pages show or offer, by address."""
    return {uri(path): path for path in sorted(FOLDER.glob("*/*")) if path.suffix in _BESIDE}


def navigation() -> list[dict[str, str]]:
    """An entry for each page."""
    return [{"Overview": uri(FOLDER / "README.md")}] + [
        {heading(path): uri(path)} for path in reports()
    ]


def title(path: Path) -> str:
    """The first line of a page, without its mark."""
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def heading(path: Path) -> str:
    """The title of a page without the name of its folder, for the navigation.

    Example:
        >>> heading(FOLDER / "lru-table-1-cpu" / "report.md")
        'Dense RNNs with ReLU, tanh and no nonlinearity'
    """
    whole = title(path)
    words = whole.partition(": ")[2] or whole
    return words[:1].upper() + words[1:]


def _overview(text: str) -> str:
    """The page of the folder, and every page in it."""
    rows = [
        f"| [{path.parent.name}]({path.relative_to(FOLDER).as_posix()}) | {_plain(title(path))} |"
        for path in reports()
    ]
    table = "\n".join(["| page | what it shows |", "| --- | --- |", *rows])
    return f"{text.replace('](../docs/', '](../').rstrip()}\n\n## All pages\n\n{table}\n"


def _plain(text: str) -> str:
    """A title in a cell of a table."""
    return text.partition(": ")[2].replace("|", "\\|") or text


def _leads(folder: Path) -> str:
    """Where causes are looked into, for a page that leaves a claim open."""
    if not any(_open(path) for path in folder.glob("*.csv")):
        return ""
    where = "../../reproductions.md#leads"
    return f"\nNot every claim came out as published: [where causes are looked into]({where}).\n"


def _open(path: Path) -> bool:
    """Whether a claim of a page came out the other way, or not at all."""
    with path.open(newline="", encoding="utf-8") as file:
        verdicts = [row.get("verdict") or "" for row in csv.DictReader(file)]
    return any(verdict.startswith((OPPOSITE, UNRESOLVED)) for verdict in verdicts)


def _downloads(folder: Path) -> str:
    """Links to the tables as data."""
    names = [path.name for path in sorted(folder.glob("*.csv"))]
    links = [f"[{name}]({name}){_SAID.get(name, '')}" for name in names]
    return f"\nAs data: {', '.join(links)}.\n" if names else ""


_SAID = {"verdicts.csv": " (the claims)"}

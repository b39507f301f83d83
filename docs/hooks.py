"""Pages made while the site is built: one for each mixer, and the bibliography."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from linrnn import cli, mixers
from linrnn._catalogue import stems
from linrnn.cli import _recipes
from linrnn.state_spec import describe

sys.path.append(str(Path(__file__).parent))
import lists

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")
ARXIV = "https://arxiv.org/abs/"


def on_config(config: Any) -> Any:
    """Put every mixer of the catalogue into the navigation, under its family."""
    section = next(entry for entry in config.nav if "Mixers" in entry)
    section["Mixers"] = [
        {heading: [{mixers.load(name).__name__: f"mixers/{name}.md"} for name in names]}
        for heading, names in lists.by_family().items()
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, which exist nowhere on disk."""
    for name in stems(mixers.__name__):
        page = mixer_page(name)
        files.append(File.generated(config, f"mixers/{name}.md", content=page))
    files.append(File.generated(config, "references.md", content=bibliography_page()))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fill in the tables of verbs, mixers and recipes where a page asks for one."""
    markdown = markdown.replace("<!-- verbs -->", verb_table())
    if "<!-- mixers -->" in markdown:
        markdown = markdown.replace("<!-- mixers -->", lists.mixer_table())
    if "<!-- recipes -->" in markdown:
        markdown = markdown.replace("<!-- recipes -->", recipe_table())
    return markdown


def verb_table() -> str:
    """Every verb of the command line and its summary."""
    rows = [f"| `linrnn {verb}` | {summary} |" for verb, summary in cli.verbs().items()]
    return "\n".join(["| command | what it does |", "| --- | --- |", *rows])


def recipe_table() -> str:
    """Every recipe and scale, what to expect of it and what it shows."""
    head = ["recipe", "scale", "expected", "time", "what it is", "can and cannot show"]
    lines = [head, ["---"] * len(head), *_recipes.rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def mixer_page(name: str) -> str:
    """The mixer's docstring, its methods, and what else is known about it."""
    cls = mixers.load(name)
    key = re.search(r"Key: (\w+)\.", cls.__doc__ or "")
    shapes = "\n".join(describe(mixers.build(name, 4).state_spec()))
    cited = f"\nCited as [{key[1]}](../references.md#{key[1]}).\n" if key else ""
    return f"""# {cls.__name__}

The mixer `{name}`, of the family *{cls.family}*: `linrnn train TASK --mixer {name}`,
`linrnn show {name}`, `from linrnn.mixers import {cls.__name__}`.
{cited}
::: {cls.__module__}.{cls.__name__}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      members: [eigenvalues, reset_parameters]

What every mixer takes and raises is said once, in [the contract](../reference/mixers.md).

```text
{shapes}
```
"""


def bibliography_page() -> str:
    """Every entry of references.bib, under an anchor that is its key."""
    lines = ["# Bibliography", ""]
    for key, entry in sorted(read_bibliography().items()):
        venue = entry.get("booktitle") or entry.get("journal") or entry.get("institution", "")
        eprint = entry.get("eprint")
        link = f" [arXiv:{eprint}]({ARXIV}{eprint})." if eprint else ""
        lines += [
            f"### {key} {{ #{key} }}",
            "",
            f"{entry['author']}. *{entry['title']}*. {venue}, {entry['year']}.{link}",
            "",
        ]
    return "\n".join(lines)


def read_bibliography() -> dict[str, dict[str, str]]:
    """The fields of every entry, by key; understands the plain BibTeX of references.bib."""
    text = BIBLIOGRAPHY.read_text(encoding="utf-8")
    entries = {}
    for key, body in re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"(\w+)\s*=\s*\{(.*?)\}(?:,|\s*$)", body, re.DOTALL)
        entries[key] = {name: " ".join(value.split()) for name, value in fields}
    for entry in entries.values():
        people = [" ".join(reversed(p.split(", "))) for p in entry["author"].split(" and ")]
        entry["author"] = ", ".join(people)
    return entries

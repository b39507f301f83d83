"""Hooks of the site's build: pages that exist nowhere on disk, and tables in others."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parent))
import lists
from _pages import (
    atlas_map,
    bibliography,
    catalogues,
    examples,
    leaderboard,
    mixer,
    repository,
    reproduced,
    results,
)

TABLES: dict[str, Callable[[], str]] = {
    "verbs": catalogues.verbs,
    "mixers": lists.mixer_table,
    "recipes": catalogues.recipe_table,
    "every recipe": catalogues.every_recipe,
    "every task": catalogues.every_task,
    "every learner": catalogues.every_learner,
    "every system": leaderboard.systems,
    "every score": leaderboard.scores,
    "counts of claims": reproduced.counts,
    "grid of claims": reproduced.grid,
    "published claims": reproduced.claims,
    "claims of ours": reproduced.ours,
    "pages without runs": reproduced.lost,
    "atlas about": atlas_map.about,
    "atlas heat": atlas_map.heat,
    "atlas plane": atlas_map.plane,
    "atlas laws": atlas_map.laws,
    "atlas fits": atlas_map.fits,
    "atlas residuals": atlas_map.residuals,
    "atlas curves": atlas_map.curves,
}
"""The table that replaces a comment with this name."""


def on_config(config: Any) -> Any:
    """Put every mixer of the catalogue, under its family, and every result into the navigation.

    A section's tab leads to its first page, which of the results is the one that lists them.
    """
    repository.configure(config)
    entries = dict(_sections(config.nav))
    entries["Mixers"] += mixer.navigation()
    overview, *pages = results.navigation()
    entries["Results"][:] = [overview, *entries["Results"], *pages]
    return config


def _sections(nav: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Every section of the navigation, however deep, with its title."""
    for entry in nav:
        for title, inside in entry.items() if isinstance(entry, dict) else ():
            if isinstance(inside, list):
                yield title, inside
                yield from _sections(inside)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and what those of results/ show."""
    pages = {"references.md": bibliography.page(), **mixer.pages(), **results.pages()}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in {**results.files(), "atlas-map/atlas.csv": atlas_map.DATA}.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_pre_page(page: Any, config: Any, **kwargs: Any) -> Any:
    """Link a page to its source, which of many is no Markdown."""
    page.edit_url = repository.edit_url(config.repo_url, page.file.src_uri)
    return page


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Fill in the tables of a page; a search finds tutorials before references."""
    page = kwargs.get("page")
    uri = page.file.src_uri if page is not None else ""
    if uri.startswith("tutorials/"):
        page.meta["search"] = {"boost": 4}
    if uri.startswith("reference/"):
        markdown += examples.section(markdown, uri)
    for name, table in TABLES.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", table())
    return markdown


def on_page_content(html: str, page: Any, **kwargs: Any) -> str:
    """Leave sources, signatures and revisions out of the search, and break long names of tests.

    Fewer words make an index of a browser sooner. Of words like "s4@06031dc" it also makes wrong
    ones: lunr takes nodes of its automaton for equal whose digits and numbers read alike.
    """
    for begin in (_SOURCE, _SIGNATURE):
        html = html.replace(begin, f"{begin} data-search-exclude")
    html = _REVISION.sub(r"<span data-search-exclude>\g<0></span>", html)
    if page.file.src_uri != "guarantees-tests.md":
        return html
    return re.sub(r"(?<=<code>)[^<]+(?=</code>)", lambda found: _BREAK.sub("<wbr>", found[0]), html)


_SOURCE = '<details class="mkdocstrings-source"'
_SIGNATURE = '<div class="doc-signature highlight"'
_REVISION = re.compile(r"(?<=\w)@[0-9a-f]{7}\b")
_BREAK = re.compile(r"(?<=[/_])(?=\w)|(?<=\w)(?=::)")

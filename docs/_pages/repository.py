"""Links from pages to their sources and a menu of versions, if the repository has an address."""

from typing import Any

VARIABLE = "LINRNN_REPOSITORY"
"""Environment variable that `mkdocs.yml` reads as ``repo_url``."""
EDIT = "edit/main/"
"""Between the address of the repository and the path of a file, as GitHub and Gitea have it."""
_SOURCES = {
    "mixers/index.md": "docs/_pages/choices.py",
    "references.md": "docs/references.bib",
    "gallery.md": "docs/gallery.py",
}


def configure(config: Any) -> None:
    """Switch on the source and edit links and the menu of versions, if there is an address.

    The menu shows what ``mike deploy VERSION`` has published beside this version.
    """
    if config.repo_url:
        config.theme["features"] = [*config.theme["features"], "content.action.edit"]
        config.extra["version"] = {"provider": "mike"}


def edit_url(repo_url: str | None, uri: str) -> str | None:
    """The address at which a page of the site is edited; None without a repository.

    Example:
        >>> edit_url("https://example.org/linrnn", "mixers/lru.md")
        'https://example.org/linrnn/edit/main/src/linrnn/mixers/lru.py'
    """
    return f"{repo_url.rstrip('/')}/{EDIT}{source(uri)}" if repo_url else None


def source(uri: str) -> str:
    """The file of the repository from which a page is made.

    Args:
        uri: of the page, such as ``mixers/lru.md``.
    """
    folder, _, name = uri.rpartition("/")
    stem = name.removesuffix(".md")
    if uri in _SOURCES:
        return _SOURCES[uri]
    if folder == "mixers":
        return f"src/linrnn/mixers/{stem}.py"
    if folder == "tutorials":
        return f"docs/tutorials/{stem}.py"
    return uri if uri.startswith("results/") else f"docs/{uri}"

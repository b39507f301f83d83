"""A page for each mixer."""

import re

import lists

from linrnn import mixers
from linrnn._catalogue import stems
from linrnn.state_spec import describe


def pages() -> dict[str, str]:
    """The Markdown of every page, by its place."""
    return {f"mixers/{name}.md": page(name) for name in stems(mixers.__name__)}


def navigation() -> list[dict[str, list[dict[str, str]]]]:
    """Every mixer under its family."""
    return [
        {heading: [{mixers.load(name).__name__: f"mixers/{name}.md"} for name in names]}
        for heading, names in lists.by_family().items()
    ]


def page(name: str) -> str:
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

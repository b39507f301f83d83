"""The catalogue of recipes: functions that return a complete configuration, one file each.

A file has one function for each scale of its recipe, named like the scale: ``cpu()`` takes at
most ten minutes on two cores, ``paper()`` has the published settings and mostly wants a GPU.
``recipes/digits.py`` with its ``cpu()`` is ``load("digits", "cpu")``. The recipe named like a task
is what ``linrnn train TASK`` runs; those of other mixers are named ``<task>_<mixer>``.

A study that trained one model on many tasks is a file of ``_studies``: a table of what differs
from task to task, a dictionary ``RECIPES`` of the names it adds, each with a line of text, and a
function ``paper(name)``. These recipes have that scale alone.
"""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linrnn._options.catalogue import entries, studied
from linrnn.errors import UnknownNameError

if TYPE_CHECKING:
    from linrnn.recipes._settings.base import Recipe as Recipe
    from linrnn.recipes._studies.lru import LRU_TABLE as LRU_TABLE
    from linrnn.recipes._studies.lru import lru_config as lru_config
    from linrnn.train import Config

__all__ = [
    "CPU",
    "Recipe",
    "default_scale",
    "load",
    "names",
    "scales",
    "untuned",
]

_PUBLIC = {
    "Recipe": "_settings.base",
}
_SHARED = {
    "LRU_TABLE": "_studies.lru",
    "lru_config": "_studies.lru",
}
"""Names that other parts of the package use; not in the reference."""
_WHERE = _PUBLIC | _SHARED
CPU = "cpu"
"""The scale that is taken where none is named: at most ten minutes on two cores."""


def names() -> list[str]:
    """Every recipe, sorted; finding them imports none.

    Example:
        >>> "digits" in names()
        True
    """
    return entries(__name__)


def scales(name: str) -> list[str]:
    """The scales of a recipe, in the order of its file, which is read and not imported.

    Raises:
        UnknownNameError: no such recipe.

    Example:
        >>> scales("digits")
        ['cpu']
    """
    if name not in names():
        raise UnknownNameError("recipe", name, names())
    if name in studied(__name__):
        return ["paper"]
    spec = find_spec(f"{__name__}.{name}")
    assert spec
    assert spec.origin
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if not function.startswith("_")]


def default_scale(name: str) -> str:
    """``cpu`` where the recipe has it, else its first scale.

    Raises:
        UnknownNameError: no such recipe.

    Example:
        >>> default_scale("digits"), default_scale("listops_s5")
        ('cpu', 'paper')
    """
    available = scales(name)
    return CPU if CPU in available else available[0]


def load(name: str, scale: str | None = None) -> "Recipe":
    """Build a recipe by the scale's function in ``linrnn/recipes/<name>.py`` or in its study.

    Args:
        name: of the recipe.
        scale: one of `scales`; None takes `default_scale`.

    Raises:
        UnknownNameError: no such recipe, or the recipe has no such scale.

    Example:
        >>> load("digits").config.task
        'digits'
        >>> load("listops", "paper").config.model.n_layers
        6
    """
    available = scales(name)
    scale = default_scale(name) if scale is None else scale
    if scale not in available:
        raise UnknownNameError(f"scale of the recipe {name}", scale, available)
    row = studied(__name__).get(name)
    module = importlib.import_module(f"{__name__}.{row.module if row else name}")
    recipe: Recipe = getattr(module, scale)(*([name] if row else []))
    return recipe


def untuned(task: str) -> "Config":
    """Defaults that nobody tuned, for a task without a recipe: any task, an LRU, no promise.

    Raises:
        UnknownNameError: no such task.

    Example:
        >>> untuned("digits").mixer
        'lru'
    """
    from linrnn import tasks
    from linrnn.train import Config, ModelConfig

    return Config(task=task, model=ModelConfig(pool=tasks.load(task).pools[0]))


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

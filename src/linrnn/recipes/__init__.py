"""The catalogue of recipes: functions that return a complete configuration, one file each.

``recipes/digits.py`` has the function ``recipe()`` and is ``load("digits")``. The recipe named
like a task is what ``linrnn train TASK`` runs; variants are named ``<task>_<variant>``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from linrnn._catalogue import stems
from linrnn.errors import UnknownNameError

if TYPE_CHECKING:
    from linrnn.recipes._base import Recipe as Recipe
    from linrnn.train import Config


def names() -> list[str]:
    """Every recipe, sorted; finding them imports none.

    Example:
        >>> "digits" in names()
        True
    """
    return stems(__name__)


def load(name: str) -> "Recipe":
    """The recipe in ``linrnn/recipes/<name>.py``; only that file is imported.

    Raises:
        UnknownNameError: no such recipe.

    Example:
        >>> load("digits").config.task
        'digits'
    """
    if name not in names():
        raise UnknownNameError("recipe", name, names())
    recipe: Recipe = importlib.import_module(f"{__name__}.{name}").recipe()
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

    return Config(task=task, model=ModelConfig(pool=tasks.load(task).pools[0]))  # type: ignore[arg-type]


def __getattr__(name: str) -> Any:
    if name == "Recipe":
        return importlib.import_module(f"{__name__}._base").Recipe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Checks that the optional packages a verb needs are installed, before anything is imported."""

import importlib.util

from linrnn.errors import MissingExtraError

TRAIN = ("lightning", "tyro", "rich", "tensorboard", "matplotlib", "sklearn")
"""Modules of the extra ``train``."""
SERVE = ("fastapi", "uvicorn")
"""Modules of the extra ``serve``."""


def missing(modules: tuple[str, ...] = TRAIN) -> str | None:
    """The first of some modules that is not installed; none is imported."""
    for name in modules:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return name
    return None


def need_train(what: str) -> None:
    """Raise unless the extra ``train`` is installed.

    Args:
        what: needs it, for the message.

    Raises:
        MissingExtraError: it is not, with the line that installs it.
    """
    module = missing()
    if module is not None:
        package = {"sklearn": "scikit-learn"}.get(module, module)
        raise MissingExtraError(what, package, "train")

"""Every model of the process: functions of the modules of transformers, loaded or to come."""

import functools
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from linrnn.interop._accelerate.report import Acceleration, Left, Replaced

VARIABLE = "LINRNN_ACCELERATE"
_MODELS = re.compile(r"transformers\.models\.\w+\.modeling_\w+")
#: How many accelerations of the process are attached; the last to go undoes them.
_attached: list[object] = []


def accelerate() -> Acceleration:
    """Replace in every module of models; see `linrnn.interop.accelerate`."""
    token = object()
    _attached.append(token)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    replaced: list[Replaced] = []
    left: list[Left] = []
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and _MODELS.fullmatch(name):
            _patch(module, replaced, left)

    def undo() -> None:
        _attached.remove(token)
        if not _attached:
            _restore()

    return Acceleration(replaced, left, undo)


def attached() -> bool:
    """Whether every model of the process is accelerated."""
    return bool(_attached)


class _Finder:
    """Replaces in a module of models as soon as it was executed."""

    def __init__(self) -> None:
        self._busy = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._busy or not _MODELS.fullmatch(name):
            return None
        self._busy = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy = False
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            loader.exec_module = functools.partial(_execute, loader.exec_module)
        return spec


def _execute(execute: Any, module: ModuleType) -> None:
    execute(module)
    if _attached:
        _patch(module, [], [])


_finder = _Finder()


def _patch(module: ModuleType, replaced: list[Replaced], left: list[Left]) -> None:
    # here: `import linrnn` may call this module, and needs no PyTorch without a model
    from linrnn.interop._accelerate.choice import functions, methods

    for name, one in functions(vars(module)).items():
        if one.ours is None:
            left.append(Left(module.__name__, name, one.label))
            continue
        setattr(module, name, one.ours)
        replaced.append(Replaced(module.__name__, name, one.label))
    for kind in _classes(module):
        for name, base, one in methods(kind):
            if base is kind and one.ours is not None:
                setattr(kind, name, one.ours)
                replaced.append(Replaced(f"{module.__name__}.{kind.__name__}", name, one.label))
        _record(kind)


def _record(kind: type) -> None:
    """Let a class record how its layers read a token."""
    from linrnn.interop._accelerate.choice import callers
    from linrnn.interop._accelerate.recorded import recorded, records
    from linrnn.interop._accelerate.recorded_blocks import recorded_block
    from linrnn.interop._accelerate.theirs import is_ours

    forward = vars(kind).get("forward")
    if forward is None or is_ours(forward):
        return
    record = recorded_block(kind)
    for name, method, _ in callers(kind):
        if records(name, method):
            record = recorded(method)
    if record is not None:
        record.__linrnn_stands_for__ = forward  # type: ignore[attr-defined]
        kind.forward = record  # type: ignore[attr-defined]


def _restore() -> None:
    from linrnn.interop._accelerate.theirs import is_ours, stood_for

    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or not _MODELS.fullmatch(module_name):
            continue
        for space in (module, *_classes(module)):
            for name, function in list(vars(space).items()):
                if is_ours(function):
                    setattr(space, name, stood_for(function))


def _classes(module: ModuleType) -> list[type]:
    return [
        x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__
    ]

"""One model: methods of its modules, bound to them over other functions."""

import warnings
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from linrnn.errors import ArgumentTypeError
from linrnn.interop._accelerate.choice import Choice, callers, methods
from linrnn.interop._accelerate.rebuild import rebuilt
from linrnn.interop._accelerate.recorded import recorded, records
from linrnn.interop._accelerate.recorded_blocks import recorded_block
from linrnn.interop._accelerate.report import Acceleration, Left, Replaced

#: On the methods that are bound here, by which `detach` knows them.
_MARK = "__linrnn_method__"


class _Plan:
    """The change to each module of a class.

    Attributes:
        methods: functions to bind, by the name of the method.
        replaced: our ops, by the name of what they replace.
        left: reasons, by the name of what stays.
        records: whether its ``forward`` is recorded, and a layer around it may be too.
    """

    def __init__(self, kind: type[nn.Module]) -> None:
        self.methods: dict[str, FunctionType] = {}
        self.replaced: dict[str, str] = {}
        self.left: dict[str, str] = {}
        self.records = False
        for name, method, choices in callers(kind):
            functions = self._noted(choices)
            if not functions:
                continue
            self.methods[name] = rebuilt(method, functions)
            if records(name, method):
                record = recorded(self.methods[name])
                self.methods[name] = record or self.methods[name]
                self.records = record is not None
        block = recorded_block(kind)
        if block is not None:
            self.methods["forward"] = block
        for name, _, one in methods(kind):
            for ours in self._noted({name: one}).values():
                self.methods[name] = rebuilt(ours, {})  # a function of this model, to be marked
        for method in self.methods.values():
            setattr(method, _MARK, True)

    def surround(self, kind: type[nn.Module]) -> None:
        """Record a layer around one that is recorded, with its norms and its perceptron."""
        forward: Any = kind.forward
        record = None if "forward" in self.methods else recorded(forward, around=True)
        if record is not None:
            self.methods["forward"] = record
            setattr(record, _MARK, True)

    def _noted(self, choices: dict[str, Choice]) -> dict[str, Any]:
        """Functions that do replace; all are written down."""
        for name, one in choices.items():
            (self.left if one.ours is None else self.replaced)[name] = one.label
        return {name: one.ours for name, one in choices.items() if one.ours is not None}


def accelerate(model: nn.Module) -> Acceleration:
    """Attach to every module inside of a model; see `linrnn.interop.accelerate`."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"accelerate: model must be a torch.nn.Module, got {type(model).__name__}. "
            "Leave it out for every model of the process."
        )
    plans = {kind: _Plan(kind) for kind in {type(module) for module in model.modules()}}
    for around in {type(x) for x in model.modules() if _has_recorded(x, plans)}:
        plans[around].surround(around)
    replaced: list[Replaced] = []
    left: list[Left] = []
    modules: list[tuple[nn.Module, str]] = []
    for place, module in model.named_modules():
        plan = plans[type(module)]
        left += [Left(place, name, why) for name, why in plan.left.items()]
        taken = [name for name in plan.methods if not _free(module, name)]
        if taken:
            left += [Left(place, name, "another library has bound its method") for name in taken]
            continue
        for name, method in plan.methods.items():
            _bind(module, name, MethodType(method, module))
            modules.append((module, name))
        replaced += [Replaced(place, name, op) for name, op in plan.replaced.items()]
    if not replaced:
        kind = type(model).__name__
        warnings.warn(f"accelerate: there is no recurrence in {kind} to replace", stacklevel=3)

    def undo() -> None:
        for module, name in modules:
            _unbind(module, name)

    return Acceleration(replaced, left, undo)


def _has_recorded(module: nn.Module, plans: Mapping[type, _Plan]) -> bool:
    return any(plans[type(part)].records for part in module.children())


def _free(module: nn.Module, name: str) -> bool:
    """Whether a method is the class's, ours, or inside a hook of the package accelerate."""
    present = module.__dict__.get(name)
    if present is None or (name == "forward" and "_old_forward" in module.__dict__):
        return True
    function = getattr(present, "__func__", None)  # of the original class where it was pickled
    return hasattr(function, _MARK) or function is getattr(type(module), name)


def _bind(module: nn.Module, name: str, method: MethodType) -> None:
    hooked = name == "forward" and "_old_forward" in module.__dict__
    module.__dict__["_old_forward" if hooked else name] = method


def _unbind(module: nn.Module, name: str) -> None:
    """Remove our method, wherever a hook has put it since."""
    if hasattr(getattr(module.__dict__.get(name), "__func__", None), _MARK):
        del module.__dict__[name]
    if hasattr(getattr(module.__dict__.get("_old_forward"), "__func__", None), _MARK):
        module.__dict__["_old_forward"] = MethodType(getattr(type(module), name), module)

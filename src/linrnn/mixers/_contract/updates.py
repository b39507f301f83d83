"""Runs `after_update` of layers after each step of an optimiser, whoever trains them.

PyTorch calls one function of ours after a step of any optimiser. It finds the layers whose
parameters the optimiser has moved, so a loop of anybody's own keeps their constraints without a
call of ours.
"""

import functools
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_followed: WeakSet[nn.Module] = WeakSet()


def follow(layer: nn.Module) -> None:
    """Call ``layer.after_update()`` after each step that moves one of its parameters."""
    _register()
    _followed.add(layer)


@functools.cache
def _register() -> None:
    """Once a process, and not before there is a layer that wants it."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    moved = {
        id(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None  # a step without gradients, as one left out, moves nothing
    }
    for layer in list(_followed):
        is_built = "_parameters" in vars(layer)  # its constructor has come so far
        if is_built and any(id(parameter) in moved for parameter in layer.parameters()):
            layer.after_update()  # type: ignore[operator]

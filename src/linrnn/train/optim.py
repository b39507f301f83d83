"""Parameter groups and the learning-rate schedule."""

from math import cos, pi
from typing import Any

import torch
from torch import nn

from linrnn.nn import has_decay
from linrnn.train.config import OptimConfig


def param_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Split a model's parameters for an optimiser, as published linear recurrences train.

    Parameters that a mixer, or a part, names in ``recurrent_parameters`` learn at ``lr *
    recurrent_lr_factor`` without weight decay: decay would move eigenvalues.
    In the rest, weights have weight decay, and biases, gains, skips and first states have none:
    each module says which is which, `linrnn.nn.has_decay`. What asks for no gradient, as of a
    reservoir, is left out.

    Args:
        model: any module; its mixers are found wherever they are.
        config: learning rates and weight decay.

    Returns:
        Groups with ``params``, ``lr``, ``weight_decay`` and ``name``; empty ones are left out.

    Example:
        >>> from linrnn import SequenceModel
        >>> model = SequenceModel(1, 2, d_model=4, n_layers=1)
        >>> [g["name"] for g in param_groups(model, OptimConfig())]
        ['recurrent', 'weights', 'vectors']
        >>> optimizer = torch.optim.AdamW(param_groups(model, OptimConfig(lr=3e-3)))
    """
    recurrent = {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters()
        if name in getattr(module, "recurrent_parameters", ())
    }
    decayed = {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if has_decay(module, name)
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slow = [p for p in trained if id(p) in recurrent]
    weights = [p for p in trained if id(p) in decayed - recurrent]
    vectors = [p for p in trained if id(p) not in decayed | recurrent]
    lr = config.lr
    groups = [
        _group("recurrent", slow, lr * config.recurrent_lr_factor, 0.0),
        _group("weights", weights, lr, config.weight_decay),
        _group("vectors", vectors, lr, 0.0),
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """AdamW over `param_groups`."""
    groups = param_groups(model, config)
    real = not any(p.is_complex() for group in groups for p in group["params"])
    # fused: one kernel a group instead of a dozen small ones a tensor; it has no complex form
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=real)


def lr_factor(step: int, total: int, config: OptimConfig) -> float:
    """The factor of every learning rate at a step: linear warm-up, then the schedule.

    Args:
        step: optimiser steps done, from 0.
        total: steps of the whole run.
        config: gives the warm-up's part and the last learning rate.

    Example:
        >>> config = OptimConfig(lr=1.0, min_lr=0.1, warmup_fraction=0.2)
        >>> [round(lr_factor(s, 10, config), 3) for s in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.1]
    """
    warmup = round(total * config.warmup_fraction)
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "constant":
        return 1.0
    low = config.min_lr / config.lr
    done = (step - warmup) / max(1, total - 1 - warmup)
    return low + (1 - low) * (1 + cos(pi * min(done, 1.0))) / 2


def _group(name: str, params: list[nn.Parameter], lr: float, decay: float) -> dict[str, Any]:
    return {"name": name, "params": params, "lr": lr, "weight_decay": decay}

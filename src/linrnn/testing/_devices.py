"""Laws on another device: what it computes there is what the CPU computes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from linrnn.errors import ArgumentError
from linrnn.testing._mixer_runs import (
    BATCH,
    FORM_ROUNDINGS,
    TIME,
    WIDTH,
    MakeMixer,
    busy_state,
    compare,
    in_each_form,
    results,
    signal,
    stepwise,
)

Run = Callable[..., Any]


def there(device: str, run: Run) -> Run:
    """A function computed on a device: its tensors go there, and its results come back."""

    def moved(*arguments: Any, **named: Any) -> Any:
        arguments, named = tree_map_only(Tensor, lambda x: x.to(device), (arguments, named))
        return tree_map_only(Tensor, lambda x: x.cpu(), run(*arguments, **named))

    return moved


def same_numbers_on(device: str, make: MakeMixer) -> None:
    """Every form of a mixer, its steps and its resets, with all gradients."""
    reset = torch.zeros(BATCH, TIME, dtype=torch.bool)
    reset[0, 5], reset[2, 0] = True, True
    for dtype in (torch.float64, torch.float32):
        x = signal(BATCH, TIME, WIDTH, dtype=dtype)
        for form, mixer in in_each_form(make, dtype=dtype):
            state, moved = busy_state(mixer), copy.deepcopy(mixer).to(device)
            runs: dict[str, tuple[Run, Run]] = {
                "at once": (mixer, moved),
                "step by step": (stepwise(mixer), stepwise(moved)),
                "with resets": (
                    partial(mixer, reset=reset),
                    partial(moved, reset=reset.to(device)),
                ),
            }
            for what, (reference, run) in runs.items():
                try:
                    expected = results(reference, mixer, x, state)
                except ArgumentError:  # a form that takes no resets
                    continue
                got = results(there(device, run), moved, x, state)
                got = {name: value.cpu() for name, value in got.items()}
                compare(f"{device} {dtype} {form} {what}", got, expected, FORM_ROUNDINGS)

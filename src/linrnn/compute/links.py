"""Results as functions of all sources of a call, whatever a call of such a length reads of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Link(torch.autograd.Function):
    """Tensors as they are; one of which no result is made has a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, *sources: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in sources)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


def linked_sources(*groups: Sequence[Tensor]) -> list[list[Tensor]]:
    """Whether a segment ended in a call must not decide which gradients there are."""
    every = [x for group in groups for x in group]
    places = [i for i, x in enumerate(every) if x.requires_grad]
    if places:
        for i, x in zip(places, _Link.apply(*(every[i] for i in places)), strict=True):
            every[i] = x
    linked = iter(every)
    return [[next(linked) for _ in group] for group in groups]


def without_inputs(results: Sequence[Tensor], *inputs: Sequence[Tensor]) -> list[Tensor]:
    """The results, copied where they are an input: a program may write into what it gets back."""
    sources = [x for group in inputs for x in group]
    return [y.clone() if any([y is x for x in sources]) else y for y in results]


def tied(results: Sequence[Tensor], sources: Sequence[Tensor], linked: bool) -> list[Tensor]:
    """The results as functions of all sources; those that are one of a linked source are."""
    differentiable = [x for x in sources if x.requires_grad]
    if not torch.is_grad_enabled() or not differentiable:
        return list(results)
    if linked and all(y.requires_grad for y in results):
        return list(results)
    never = torch.zeros((), dtype=torch.bool, device=results[0].device)
    source_sum = sum(
        (x[(slice(0, 1),) * x.ndim].sum() for x in differentiable), results[0].new_zeros(())
    )
    return [
        y if linked and y.requires_grad else torch.where(never, source_sum.to(y.dtype), y)
        for y in results
    ]

"""How near the gradient of a rule is to the true one, parameter by parameter."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from linrnn.learn._parts.base import Learner, Loop
from linrnn.learn._parts.batch import Batch
from linrnn.learn.bptt import BPTT


class Alignment(NamedTuple):
    """A gradient beside the true one.

    NaN where one of them is zero.
    """

    cosine: float
    """Cosine of the angle between both: 1 if the rule has the direction of back-propagation."""
    ratio: float
    """The norm of the rule's over that of the true one."""


def alignment(
    model: nn.Module,
    learner: Learner,
    batch: Batch,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Alignment]:
    """Compare the gradient of a learner with that of back-propagation through the whole batch.

    Both begin without a carried state and with the same random numbers; the model's ``.grad`` is
    empty afterwards, and the learner remembers the batch.

    Args:
        model: that the learner can train.
        learner: the rule.
        batch: inputs and targets.
        loss: of an answer and its target, as a `Loop` has it.

    Returns:
        By the name of each parameter that either finds a gradient of; ``""`` is of all together,
        and ``blocks.0`` and the like, the parts of the model, are of all below them.

    Example:
        >>> from linrnn import SequenceModel, learn
        >>> model = SequenceModel(1, 1, d_model=4, n_layers=1, norm="layer", pool="none")
        >>> batch = Batch(torch.randn(2, 9, 1), torch.randn(2, 9, 1), None, None)
        >>> rule = learn.build("chunked_rtrl", {"window": 4})
        >>> found = alignment(model, rule, batch, nn.functional.mse_loss)
        >>> round(found["blocks.0.mixer"].cosine, 4), found[""].cosine < 1
        (1.0, True)
    """
    learner.check(model)
    truth, ours = (_gradients(model, rule, batch, loss) for rule in (BPTT(), learner))
    names = [name for name, _ in model.named_parameters() if name in truth or name in ours]
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        for end in range(len(parts) + 1):
            groups.setdefault(".".join(parts[:end]), []).append(name)
    return {group: _compare(ours, truth, members) for group, members in groups.items()}


def _gradients(
    model: nn.Module, rule: Learner, batch: Batch, loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        rule.step(model, batch, None, Loop(loss))
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return grads


def _compare(ours: dict[str, Tensor], truth: dict[str, Tensor], names: list[str]) -> Alignment:
    inner = mine = true = 0.0
    for name in names:
        g, t = (_real(grads[name]) if name in grads else None for grads in (ours, truth))
        mine += 0.0 if g is None else g.square().sum().item()
        true += 0.0 if t is None else t.square().sum().item()
        inner += 0.0 if g is None or t is None else (g * t).sum().item()
    both = (mine * true) ** 0.5
    nan = float("nan")
    return Alignment(inner / both if both else nan, (mine / true) ** 0.5 if true else nan)


def _real(g: Tensor) -> Tensor:
    return (torch.view_as_real(g) if g.is_complex() else g).double()

"""Helpers for states: plain trees of tensors whose leading axis is the batch."""

from collections.abc import Callable
from typing import cast

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from linrnn.typing import State


def map_state(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply ``function`` to every tensor of a state.

    Example:
        >>> import torch
        >>> map_state(lambda h: h[:1], {"h": torch.zeros(2, 3)})
        {'h': tensor([[0., 0., 0.]])}
    """
    return cast(State, tree_map(function, state))


def detach(state: State) -> State:
    """Cut a state off from its history, as truncated back-propagation does between chunks."""
    return map_state(Tensor.detach, state)


def leaves(state: State) -> list[Tensor]:
    """Every tensor of a state, in a fixed order.

    Example:
        >>> import torch
        >>> [h.shape for h in leaves((torch.zeros(2, 3), torch.zeros(2)))]
        [torch.Size([2, 3]), torch.Size([2])]
    """
    return cast(list[Tensor], tree_flatten(state)[0])


def n_floats(state: State) -> int:
    """Real numbers held for each sequence of the batch; a complex one counts twice.

    Example:
        >>> import torch
        >>> n_floats(torch.zeros(5, 8, dtype=torch.complex64))
        16
    """
    return sum(h[:1].numel() * (2 if h.is_complex() else 1) for h in leaves(state))

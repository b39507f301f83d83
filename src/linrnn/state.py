"""Helpers for states: plain trees of tensors whose leading axis is the batch."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from linrnn.errors import ArgumentError
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


def flatten(state: State) -> dict[str, Tensor]:
    """Every tensor by its number in the tree, complex ones as pairs of real numbers.

    The result is what `safetensors` stores; `unflatten` is the inverse.

    Example:
        >>> import torch
        >>> {n: tuple(h.shape) for n, h in flatten([torch.zeros(2, 3, dtype=torch.cfloat)]).items()}
        {'0': (2, 3, 2)}
    """
    return {
        str(i): (torch.view_as_real(h) if h.is_complex() else h).detach().contiguous()
        for i, h in enumerate(leaves(state))
    }


def unflatten(flat: Mapping[str, Tensor], like: State) -> State:
    """The state that `flatten` took apart.

    Args:
        flat: what `flatten` returned, perhaps read from a file.
        like: a state of the same structure, such as ``init_state(1)``.

    Raises:
        ArgumentError: ``flat`` has other tensors than a state like ``like``.
    """
    expected = [str(i) for i in range(len(leaves(like)))]
    if sorted(flat) != sorted(expected):
        raise ArgumentError(
            f"unflatten: flat must hold the tensors {expected}, got {sorted(flat)}. "
            "Is it the state of another model?"
        )
    remaining = iter(expected)

    def restore(h: Tensor) -> Tensor:
        stored = flat[next(remaining)]
        return torch.view_as_complex(stored.contiguous()) if h.is_complex() else stored

    return map_state(restore, like)

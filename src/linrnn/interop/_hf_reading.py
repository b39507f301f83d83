"""How our models of transformers read: inputs, padding, the cache, and what their layers see."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, DTypeError, check_shape
from linrnn.interop._hf_cache import LinrnnCache
from linrnn.interop._hf_padding import WHERE, read_rows, split_padding, unmasked
from linrnn.typing import State

Around = Callable[[Callable[..., tuple[Tensor, State]], Tensor, State], tuple[Tensor, State]]


class Reading(NamedTuple):
    """The outputs and the state of one call of the model."""

    z: Tensor
    """(batch, time, d_model), zero at padding."""
    state: State
    valid: Tensor | None
    """Boolean (batch, time): what is no padding; None for all."""
    hidden: tuple[Tensor, ...] | None
    """The input of each block, and last z; None unless requested."""
    reset: Tensor | None
    """Boolean (batch, time): before which steps the state began anew; None for none."""


def embedded(
    model: SequenceModel, ids: Any, embeddings: Any, mask: Tensor | None, size: int, past: int
) -> tuple[Tensor, Tensor | None]:
    """Embeddings (batch, time, d_model), of ids or given, and which are no padding (None: all).

    Raises:
        ArgumentError: both, no token, or one outside the vocabulary.
        ShapeError, DTypeError: something that does not fit.
    """
    if embeddings is not None:
        if ids is not None:
            raise ArgumentError(
                f"{WHERE}: inputs_embeds must be given instead of input_ids, got both."
            )
        _check_embeddings(model, embeddings)
        valid = None if mask is None else unmasked(mask, embeddings, past)
        return embeddings, None if valid is None or bool(valid.all()) else valid
    ids, valid = split_padding(checked_ids(ids), mask, size, past)
    z: Tensor = model.encoder(ids)
    return z, valid


def checked_ids(ids: Any) -> Tensor:
    """Token ids (batch, time), not looked at one by one.

    Raises:
        ArgumentError: there are none.
        ShapeError, DTypeError: something else.
    """
    if not isinstance(ids, Tensor):
        raise DTypeError(
            f"{WHERE}: input_ids must be a tensor of token ids, got {type(ids).__name__}."
        )
    check_shape(WHERE, "input_ids", ids.shape, {"batch": None, "time": None})
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.is_complex():
        raise DTypeError(f"{WHERE}: input_ids must be integers, got {ids.dtype}.")
    if not ids.numel():
        raise ArgumentError(f"{WHERE}: input_ids must hold a token, got shape {tuple(ids.shape)}.")
    return ids.long()


def _check_embeddings(model: SequenceModel, z: Any) -> None:
    if not isinstance(z, Tensor) or not z.is_floating_point():
        got = z.dtype if isinstance(z, Tensor) else type(z).__name__
        raise DTypeError(f"{WHERE}: inputs_embeds must be real numbers, got {got}.")
    axes = {"batch": None, "time": None, "d_model": model.d_model}
    check_shape(WHERE, "inputs_embeds", z.shape, axes)
    if not z.numel():
        raise ArgumentError(
            f"{WHERE}: inputs_embeds must hold a token, got shape {tuple(z.shape)}."
        )


def read(
    model: SequenceModel,
    x: Tensor,
    valid: Tensor | None,
    reset: Tensor | None,
    cache: LinrnnCache,
    *,
    hidden: bool = False,
    around: Around | None = None,
) -> Reading:
    """Read embeddings after what a cache holds, which is not changed.

    Args:
        model: to read with.
        x: (batch, time, d_model).
        valid: see `Reading`.
        reset: boolean (batch, time), before which steps the state begins anew; None for none.
        cache: what was read before.
        hidden: keep what goes into each block.
        around: see `linrnn.SequenceModel.features_of`.

    Raises:
        ArgumentError: ``hidden`` with several rates, or padding that cannot be passed over.
    """
    if hidden and model.between:
        raise ArgumentError(
            f"{WHERE}: output_hidden_states must be False where layers have several rates, got "
            f"True with tiers={tuple(model.shape.tiers)}."
        )

    def features(
        x: Tensor, state: State | None, reset: Tensor | None, valid: Tensor | None = None
    ) -> tuple[Tensor, State]:
        layer_inputs: list[Tensor] = []

        def watched(call: Any, z: Tensor, previous_state: State) -> tuple[Tensor, State]:
            layer_inputs.append(z)
            return call(z, previous_state) if around is None else around(call, z, previous_state)

        call = watched if hidden else around
        z, next_state = model.features_of(x, state, reset=reset, valid=valid, around=call)
        return torch.cat([*layer_inputs, z], -1) if hidden else z, next_state

    begun = cache.begun
    begun = x.new_zeros(len(x), dtype=torch.bool) if begun is None else begun
    grows = any("constant_memory" in mixer.declared for mixer in model.mixers)
    z, state = read_rows(features, x, valid, cache.state, begun, grows, reset)
    if valid is not None:
        z = z.masked_fill(~valid[..., None], 0)
    every = z.split(model.d_model, -1)
    return Reading(every[-1], state, valid, every if hidden else None, reset)


def checkpointed(function: Callable[..., Any], every: int) -> Around:
    """Calls blocks by ``function``, a kind of `torch.utils.checkpoint.checkpoint`.

    Args:
        function: takes a function and tensors.
        every: only the first of this many blocks.
    """
    count = iter(range(1 << 62))

    def around(call: Any, z: Tensor, previous_state: State) -> tuple[Tensor, State]:
        if next(count) % every:
            outputs: tuple[Tensor, State] = call(z, previous_state)
            return outputs
        parts, tree = tree_flatten(previous_state)
        trees: list[TreeSpec] = []

        def flat(z: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
            # tensors side by side: the reentrant kind finds no others
            y, next_state = call(z, tree_unflatten(parts, tree))
            new, spec = tree_flatten(next_state)
            trees[:] = [spec]
            return (y, *new)

        y, *new = function(flat, z, *parts)
        return y, tree_unflatten(new, trees[0])

    return around

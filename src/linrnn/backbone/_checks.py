"""The rules of a `linrnn.SequenceModel`: of its arguments, and of what it is called with."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from linrnn.backbone.pattern import MOST_LAYERS
from linrnn.backbone.tiers import Shape
from linrnn.block import BLOCKS
from linrnn.compute.arguments import check_device, check_like_parameters, check_tensor
from linrnn.compute.sequence_parallel import refuse
from linrnn.errors import (
    ArgumentError,
    DTypeError,
    check_at_most,
    check_in,
    check_positive,
    check_positive_int,
    check_probability,
    check_shape,
)
from linrnn.mixers import Mixer
from linrnn.nn import CausalConv, ChannelMix
from linrnn.nn.lengths import as_lengths, check_lengths, steps_before
from linrnn.typing import Lengths

WHERE = "SequenceModel"
"""The name in messages."""


def check_stack(
    sizes: Mapping[str, int], shape: Shape, dropout: float, bidirectional: bool
) -> None:
    """Raise `ArgumentError` for sizes that no stack has."""
    check_positive_int(WHERE, **sizes)
    check_at_most(WHERE, MOST_LAYERS, n_layers=sizes["n_layers"])
    shape.check(WHERE)
    if bidirectional and shape.tiers:
        raise ArgumentError(
            f"{WHERE}: bidirectional must be False with tiers, which read forward, got True."
        )
    check_probability(WHERE, one=False, dropout=dropout)


def kinds_of(block: str, pattern: Sequence[str], n_layers: int) -> tuple[str, ...]:
    """The kinds of blocks, to be repeated along the depth."""
    check_in("block", "kind", block, BLOCKS)
    for kind in pattern:
        check_in(WHERE, "block_pattern", kind, BLOCKS)
    if len(pattern) > n_layers:
        raise ArgumentError(
            f"{WHERE}: block_pattern must have at most n_layers={n_layers} kinds, got "
            f"{len(pattern)}."
        )
    return tuple(pattern) or (block,)


def check_ends(
    encoder: str,
    identity_ends: str,
    documents: int,
    pool: str,
    encoder_scale: float,
    logit_soft_cap: float | None,
) -> None:
    """Raise unless encoder, head and their settings go together."""
    check_in(WHERE, "encoder", encoder, ("linear", "tokens"))
    check_in(WHERE, "identity_ends", identity_ends, ("none", "in", "both"))
    if documents not in (1, 2) or (documents == 2 and pool == "none"):
        raise ArgumentError(
            f"{WHERE}: documents must be 1, or 2 with a pool over time, got {documents} with "
            f"pool={pool!r}."
        )
    check_positive(WHERE, encoder_scale=encoder_scale)
    if logit_soft_cap is not None:
        check_positive(WHERE, logit_soft_cap=logit_soft_cap)


def check_lengths_of(x: Tensor, lengths: Lengths, documents: int) -> Tensor:
    """The lengths, checked: (batch,), or (batch, 2) of pairs."""
    stops = as_lengths(WHERE, lengths)
    if documents == 1:
        return check_lengths(WHERE, stops, x)
    check_shape(WHERE, "lengths", stops.shape, {"batch": len(x), "documents": 2})
    check_lengths(WHERE, stops.flatten(), x.flatten(0, 1))
    return stops


def check_split(model: nn.Module, mixers: Sequence[Mixer], rules: Mapping[str, bool]) -> None:
    """Raise inside of `sequence_parallel` unless nothing but the mixers looks along time.

    Args:
        model: whose parts are looked at.
        mixers: its own.
        rules: further ones, each with whether it is broken.

    Raises:
        BackendError: something else does.
    """

    def has(kind: type[nn.Module]) -> bool:
        return any(isinstance(part, kind) for part in model.modules())

    for mixer in mixers:
        mixer.check_split()
    broken = {
        **rules,
        "conv_width must be 0": has(CausalConv),
        'norm must be "layer", "rms" or "none"': has(nn.BatchNorm1d) and model.training,
        'block must not be "channel_mix" or "relu_mix"': has(ChannelMix),
    }
    for rule, is_broken in broken.items():
        if is_broken:
            refuse("SequenceModel.forward", rule, "Build the model so.")


def mask_of(z: Tensor, stops: Tensor | None, valid: Tensor | None, pool: str) -> Tensor:
    """Which steps of z (batch, time, d_model) are not padding, by lengths or a mask."""
    if valid is None:
        assert stops is not None
        return steps_before(stops, z.shape[1], z.device)
    check_shape(WHERE, "valid", valid.shape, {"batch": len(z), "time": z.shape[1]})
    if stops is not None or pool != "none":
        raise ArgumentError(
            f"{WHERE}: valid must be None with lengths or a pool, got a mask with pool={pool!r}. "
            "Put padding at the end of rows, and pass lengths."
        )
    return valid


def check_input(
    x: Tensor, axes: Sequence[str], d_input: int, documents: int, encoder: nn.Module
) -> Tensor:
    """The input as an encoder takes it.

    Args:
        x: with these axes, and those of pairs and channels.
        axes: ``batch``, and ``time`` of sequences.
        d_input: channels.
        documents: 2 of pairs.
        encoder: an embedding of tokens, which have no channels, or a linear map.
    """
    name = "x" if "time" in axes else "x_t"
    check_tensor(WHERE, name, x)
    weight = cast(Tensor, encoder.weight)
    sizes: dict[str, int | None] = {"batch": None}
    sizes |= {"documents": 2} if documents > 1 else {}
    sizes |= dict.fromkeys(axes[1:])
    tokens = isinstance(encoder, nn.Embedding)
    axes_of_x = sizes if tokens else {**sizes, "d_input": d_input}
    fix = _shape_fix(x, name, len(axes_of_x), "time" in sizes)
    check_shape(WHERE, name, x.shape, axes_of_x, fix)
    if not weight.is_meta:  # as while they wait elsewhere for a hook that brings them
        check_device(WHERE, "the parameters", weight.device, **{name: x})
    if not tokens:
        if not x.is_floating_point() and not x.is_complex():
            raise DTypeError(
                f"{WHERE}: {name} must be {weight.dtype} like the parameters, got {x.dtype}. "
                f"Convert it with {name}.to({weight.dtype}), or for token ids build the model "
                "with encoder='tokens'."
            )
        check_like_parameters(WHERE, name, x, weight.dtype)
        return x
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise DTypeError(
            f"{WHERE}: {name} must be integer token ids, got {x.dtype}. For numbers build the "
            "model with encoder='linear'."
        )
    # an embedding takes none of fewer bits, as bytes have
    return x if x.dtype in (torch.int64, torch.int32) else x.long()


def _shape_fix(x: Tensor, name: str, axes: int, time: bool) -> str:
    """The usual fix of an input without the axis of the batch, or of a step with one of time."""
    if time and x.ndim == axes - 1:
        return f"Pass {name}.unsqueeze(0) for one sequence."
    if not time and x.ndim == axes + 1:
        return "Call the model itself for several steps."
    return ""


def embed(encoder: nn.Module, x: Tensor) -> Tensor:
    """The output of an encoder.

    Raises:
        ArgumentError: a token that is none of the vocabulary. On a GPU PyTorch says it, later.
    """
    if not isinstance(encoder, nn.Embedding) or torch.compiler.is_compiling():
        return cast(Tensor, encoder(x))
    try:
        return cast(Tensor, encoder(x))
    except IndexError as error:
        size = encoder.num_embeddings
        outside = x[(x < 0) | (x >= size)]
        raise ArgumentError(
            f"{WHERE}: tokens must be between 0 and {size - 1}, got {outside[0].item()}. "
            "Is it the tokenizer of another model?"
        ) from error

"""Encoder and head: how the weights of both start, and what ties them."""

from typing import cast

from torch import Tensor, nn

from linrnn.backbone._checks import WHERE
from linrnn.errors import ArgumentError
from linrnn.nn.channel_mix import start_ends
from linrnn.nn.head import hand_on


def start_both(
    encoder: nn.Module, head: nn.Linear, ends_init: str, identity_ends: str, *, tied: bool
) -> None:
    """Start both ends as the arguments of `linrnn.SequenceModel` say."""
    if ends_init == "rwkv":
        check_apart(tied, identity_ends)
        start_ends(cast(Tensor, encoder.weight), head.weight)
    if tied:
        tie(encoder, head)
    ends = {"none": (), "in": (encoder,), "both": (encoder, head)}
    for end in ends[identity_ends]:
        hand_on(WHERE, "identity_ends", identity_ends, end)


def tie(encoder: nn.Module, head: nn.Linear) -> None:
    """Give the head the matrix of an embedding, which starts anew."""
    if not isinstance(encoder, nn.Embedding) or encoder.num_embeddings != head.out_features:
        outputs = head.out_features
        inputs = getattr(encoder, "num_embeddings", getattr(encoder, "in_features", None))
        raise ArgumentError(
            f"{WHERE}: tie_embeddings must be False unless tokens go in and as many outputs come "
            f"out, got d_input={inputs} and d_output={outputs}."
        )
    nn.init.normal_(encoder.weight, std=encoder.embedding_dim**-0.5)  # logits of variance 1
    head.weight = encoder.weight


def check_apart(tie_embeddings: bool, identity_ends: str) -> None:
    """Raise where the weights of both ends start in another way."""
    if tie_embeddings or identity_ends == "both":
        name, value = ("tie_embeddings", True) if tie_embeddings else ("identity_ends", "both")
        raise ArgumentError(
            f"{WHERE}: ends_init must be 'default' with {name}={value!r}, got 'rwkv'. Leave one "
            "of the two out."
        )

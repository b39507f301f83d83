"""Qwen3-Next: the stack of Qwen3.5, with maps of DeltaNet that are joined key head by key head."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3NextForCausalLM

from linrnn.interop._hf_families import qwen3_5_moe_text, qwen3_5_text
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import DELTA, delta_widths
from linrnn.interop._hf_parts import gated_weights, in_blocks
from linrnn.interop._hf_weights import Tensors, Weight, renamed

_DELTA = {**DELTA, "out.norm_weight": "norm.weight", "out.out_proj.weight": "out_proj.weight"}


def _by_key_heads(
    ours: tuple[str, ...], theirs: str, heads: int, widths: list[list[int]]
) -> Weight:
    """Tensors of ours, each of some vectors ``widths`` long, whose rows alternate there.

    A head there has the rows of all vectors that are its own, one vector after another.
    """
    each = [width // heads for vectors in widths for width in vectors]
    counts = [len(vectors) for vectors in widths]

    def to_ours(x: Tensors) -> Tensors:
        vectors = [v.flatten(0, 1) for v in x[0].unflatten(0, (heads, -1)).split(each, 1)]
        return [torch.cat(part) for part in _grouped(vectors, counts)]

    def to_theirs(x: Tensors) -> Tensors:
        vectors = [v for part, w in zip(x, widths, strict=True) for v in part.split(w)]
        return [torch.cat([v.unflatten(0, (heads, -1)) for v in vectors], 1).flatten(0, 1)]

    return Weight(ours, (theirs,), to_ours, to_theirs)


def _grouped(vectors: list[Tensor], counts: list[int]) -> list[list[Tensor]]:
    rest = iter(vectors)
    return [[next(rest) for _ in range(count)] for count in counts]


def _delta(options: Mapping[str, Any]) -> list[Weight]:
    q, k, v = delta_widths(options)
    heads, rates = options["key_heads"], options["n_heads"]
    maps = "qkv.heads.proj.weight", "out.gate_proj.weight"
    both = "beta_proj.weight", "decay.proj.weight"
    return [
        *renamed(_DELTA),
        _by_key_heads(maps, "in_proj_qkvz.weight", heads, [[q, k, v], [v]]),
        _by_key_heads(both, "in_proj_ba.weight", heads, [[rates], [rates]]),
    ]


def _parts(theirs: Any) -> list[str]:
    """The feed-forward part of every layer."""
    every, step = range(theirs.num_hidden_layers), theirs.decoder_sparse_step
    return [
        "moe"
        if i not in theirs.mlp_only_layers and theirs.num_experts > 0 and (i + 1) % step == 0
        else "swiglu"
        for i in every
    ]


def _stack(theirs: Any) -> dict[str, Any]:
    parts, stack = _parts(theirs), qwen3_5_text.stack_of(theirs)
    if "swiglu" in parts:
        stack["d_ffn"] = theirs.intermediate_size
    if "moe" in parts:
        experts = qwen3_5_moe_text.experts(theirs) | {"normalise": theirs.norm_topk_prob}
        stack["block_options"] = {"moe": experts}
    return {**stack, "block_pattern": tuple(parts)}


def _weights(theirs: Any) -> list[Weight]:
    delta = _delta(qwen3_5_text.options_of(theirs)["gated_delta_net"])
    mixers = qwen3_5_text.mixer_weights(theirs, delta)
    mlp = [*qwen3_5_text.part_norm("swiglu"), *gated_weights("swiglu", "mlp")]
    parts = {"swiglu": mlp, "moe": qwen3_5_moe_text.expert_part()}
    kinds = zip(theirs.layer_types, _parts(theirs), strict=True)
    blocks = [[*mixers[kind], *parts[part]] for kind, part in kinds]
    return in_blocks(qwen3_5_text.outer(), blocks)


FAMILY = Family(
    *(Qwen3NextForCausalLM, _stack, _weights), qwen3_5_text.check, qwen3_5_text.MORE_KEYS
)

"""Parts of hybrids with delta rules and gated attention: options and weights of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from linrnn.errors import DataError
from linrnn.interop._hf_parts import (
    attention_weights,
    expert_weights,
    gated_weights,
    routed_experts,
)
from linrnn.interop._hf_weights import Tensors, Weight, one_more, renamed, turned, within


def stacked(ours: str, theirs: Sequence[str], sizes: Sequence[int]) -> Weight:
    """A tensor of which the rows are several there, ``sizes`` rows each, one below the other."""
    return Weight(
        (ours,), tuple(theirs), lambda x: [torch.cat(list(x))], lambda x: x[0].split(list(sizes))
    )


def norms(names: Mapping[str, str], one: bool = False) -> list[Weight]:
    """Weights of norms, ours to theirs, which may lack a 1 there."""
    return [one_more(*pair) for pair in names.items()] if one else renamed(names)


def gated_attention_weights(options: Mapping[str, Any]) -> list[Weight]:
    """As `attention_weights`, where each head's queries are followed by the rows of its gate."""
    heads, width = options["n_heads"], options["d_head"]
    weights = []
    for weight in attention_weights(options):
        name = weight.ours[0]
        if not name.startswith("q_proj."):
            weights.append(weight)
            continue
        order = turned(name, name, width, options["d_rotary"])
        both = name, name.replace("q_proj", "g_proj")
        weights.append(Weight(both, (name,), *_halves(order, heads, width)))
    return weights


def _halves(
    order: Weight, heads: int, width: int
) -> tuple[Callable[[Tensors], Tensors], Callable[[Tensors], Tensors]]:
    """Queries and gates of all heads out of rows that alternate head by head, and back."""

    def to_ours(x: Tensors) -> Tensors:
        q, gate = x[0].unflatten(0, (heads, 2, width)).unbind(1)  # (heads, width, ...)
        return [*order.to_ours([q.flatten(0, 1)]), gate.flatten(0, 1)]

    def to_theirs(x: Tensors) -> Tensors:
        rows = [*order.to_theirs(x[:1]), x[1]]
        return [torch.stack([r.unflatten(0, (heads, width)) for r in rows], 1).flatten(0, 2)]

    return to_ours, to_theirs


def delta_options(theirs: Any, **more: Any) -> dict[str, Any]:
    """Options of `linrnn.mixers.GatedDeltaNet` from the usual fields of a configuration.

    Args:
        theirs: the configuration.
        **more: of those that it has no usual field for.
    """
    options = {
        "n_heads": theirs.linear_num_value_heads,
        "key_heads": theirs.linear_num_key_heads,
        "d_key": theirs.linear_key_head_dim,
        "d_value": theirs.linear_value_head_dim,
        "d_conv": theirs.linear_conv_kernel_dim,
        "norm_eps": theirs.rms_norm_eps,
        "norm_weight": True,
    }
    return options | more


def delta_widths(options: Mapping[str, Any]) -> tuple[int, int, int]:
    """Channels of queries, keys and values of `linrnn.mixers.GatedDeltaNet`, over all heads."""
    keys = options["key_heads"] * options["d_key"]
    return keys, keys, options["n_heads"] * options["d_value"]


DELTA = {
    "qkv.conv1d.weight": "conv1d.weight",
    "decay.A_log": "A_log",
    "decay.dt_bias": "dt_bias",
}
"""Weights of `linrnn.mixers.GatedDeltaNet` that have one name everywhere."""


def kda_options(theirs: Any, **more: Any) -> dict[str, Any]:
    """Options of `linrnn.mixers.KDA` from the usual fields of a configuration."""
    options = {
        "n_heads": theirs.linear_num_heads,
        "d_key": theirs.linear_head_dim,
        "d_value": theirs.linear_head_dim,
        "d_conv": theirs.linear_conv_kernel_dim,
        "norm_eps": theirs.rms_norm_eps,
        "norm_weight": True,
    }
    return options | more


def kda_weights(options: Mapping[str, Any], names: Mapping[str, str]) -> list[Weight]:
    """Weights of `linrnn.mixers.KDA`; ``names`` are those of the maps to decays and gates."""
    qkv = [f"{p}_proj.weight" for p in "qkv"]
    same = {
        "qkv.conv1d.weight": "conv1d.weight",
        "decay.A_log": "forget_gate.A_log",
        "decay.dt_bias": "forget_gate.dt_bias",
        "beta_proj.weight": "b_proj.weight",
        "out.norm_weight": "o_norm.weight",
        "out.out_proj.weight": "o_proj.weight",
    }
    width = options["n_heads"] * options["d_key"]
    return [*renamed({**same, **names}), stacked("qkv.heads.proj.weight", qkv, [width] * 3)]


def latent_options(theirs: Any, **more: Any) -> dict[str, Any]:
    """Options of `linrnn.mixers.LatentAttention` from the usual fields of a configuration."""
    options = {
        "n_heads": theirs.num_attention_heads,
        "d_head": theirs.qk_nope_head_dim,
        "d_value": theirs.v_head_dim,
        "d_rotary": theirs.qk_rope_head_dim,
        "rank": theirs.kv_lora_rank,
        "norm_eps": 1e-6,  # whatever that of the other norms is
        "bias": bool(theirs.attention_bias),
    }
    return options | more


def latent_weights(options: Mapping[str, Any]) -> list[Weight]:
    """Weights of `linrnn.mixers.LatentAttention`, in which what turns together are neighbours."""
    names = {
        "kv_down.weight": "kv_a_proj_with_mqa.weight",
        "kv_norm.weight": "kv_a_layernorm.weight",
        "kv_up.weight": "kv_b_proj.weight",
        "o_proj.weight": "o_proj.weight",
    }
    if options["bias"]:
        names |= {"kv_down.bias": "kv_a_proj_with_mqa.bias", "o_proj.bias": "o_proj.bias"}
    if options.get("q_rank") is None:
        names["q_proj.weight"] = "q_proj.weight"
    else:
        names |= {"q_down.weight": "q_a_proj.weight", "q_norm.weight": "q_a_layernorm.weight"}
        names["q_proj.weight"] = "q_b_proj.weight"
        names |= {"q_down.bias": "q_a_proj.bias"} if options["bias"] else {}
    names |= {"g_proj.weight": "g_proj.weight"} if options.get("gate") == "head" else {}
    return renamed(names)


def mixture_weights(theirs: str, names: Mapping[str, str], shared: str = "") -> list[Weight]:
    """Weights of `linrnn.nn.MoE` in a block.

    Args:
        theirs: name of the mixture there.
        names: of the router and what else differs.
        shared: their name of the shared network, if there is one.
    """
    weights = [*renamed(names), *expert_weights("x", "experts")]
    weights = [w._replace(ours=tuple(n.removeprefix("x.") for n in w.ours)) for w in weights]
    weights += gated_weights("shared", shared) if shared else []
    return within("moe.", f"{theirs}.", weights)


def deepseek_moe(theirs: Any) -> dict[str, Any]:
    """Options of `linrnn.nn.MoE` as DeepSeek-V3 has it, from its fields of a configuration."""
    return {
        **routed_experts(theirs, theirs.num_local_experts),
        "d_shared": theirs.moe_intermediate_size * theirs.n_shared_experts,
    }


DEEPSEEK = {"router.weight": "gate.weight", "correction": "gate.e_score_correction_bias"}
"""Weights of its router."""


def check_whole_heads(where: str, theirs: Any) -> None:
    """Raise unless all channels of a head are turned, as some models do whatever a share says."""
    share = (theirs.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    if share != 1:
        raise DataError(
            f"{where}: partial_rotary_factor must be 1.0 to be converted, got {share!r}."
        )

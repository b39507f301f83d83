"""Zamba2: Mamba-2, some layers of which are told what a shared transformer block says."""

from typing import Any

from transformers import Zamba2ForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_layouts import require
from linrnn.interop._hf_parts import OUTER, check_rotary, layers, mamba2_weights
from linrnn.interop._hf_weights import Weight, renamed, turned, within

_SHARED = {
    "pre_norm": "input_layernorm.weight",
    "value": "self_attn.v_proj.weight",
    "out": "self_attn.o_proj.weight",
    "mid_norm": "pre_ff_layernorm.weight",
    "up": "feed_forward.gate_up_proj.weight",
    "down": "feed_forward.down_proj.weight",
}


def _stack(theirs: Any) -> dict[str, Any]:
    kinds = {"linear_attention": "mamba2", "hybrid": "zamba2"}
    mixers = [kinds[kind] for kind in theirs.layers_block_type]
    return {**layers(mixers, _options(theirs)), "block": "bare"}


def _options(theirs: Any) -> dict[str, Any]:
    shared = {
        "d_state": theirs.mamba_d_state,
        "n_groups": theirs.mamba_ngroups,
        "d_conv": theirs.mamba_d_conv,
        "expand": theirs.mamba_expand,
        "norm_eps": theirs.rms_norm_eps,
        "dt_low": theirs.time_step_min,  # of whole sequences; their single steps have no bound
    }
    hybrid = {
        "n_heads": theirs.num_attention_heads,
        "d_ffn": theirs.intermediate_size,
        "rank": theirs.adapter_rank,
        "adapters": theirs.use_shared_attention_adapter,
        "rotary": theirs.use_mem_rope,
        "n_sets": theirs.num_mem_blocks,
        "mamba_head": theirs.mamba_headdim,
    }
    if theirs.use_mem_rope:
        hybrid["base"] = float(theirs.rope_parameters["rope_theta"])
    return {
        "mamba2": {**shared, "d_head": theirs.mamba_headdim},
        "zamba2": {**shared, **hybrid},
    }


def _weights(theirs: Any) -> list[Weight]:
    weights = renamed({**OUTER, "final_norm.weight": "model.final_layernorm.weight"})
    mamba = mamba2_weights(_options(theirs)["mamba2"])
    for i, kind in enumerate(theirs.layers_block_type):
        ours, place = f"blocks.{i}.", f"model.layers.{i}."
        if kind == "hybrid":
            continue
        inner = [*renamed({"norm.weight": "input_layernorm.weight"})]
        inner += within("mixer.", "mamba.", mamba)
        weights += within(ours, place, inner)
    for number, i in enumerate(theirs.hybrid_layer_ids):
        ours, place = f"blocks.{i}.mixer.", f"model.layers.{i}."
        inner = renamed(
            {
                "down_proj.weight": "linear.weight",
                "norm.weight": "mamba_decoder.input_layernorm.weight",
            }
        )
        inner += within("mamba.", "mamba_decoder.mamba.", mamba)
        weights += within(ours, place, inner)
        weights += _adapters(ours, f"{place}shared_transformer.", number, theirs)
        if number < theirs.num_mem_blocks:
            alone = len(theirs.hybrid_layer_ids) == 1
            block = f"{ours}block." if alone else "shared.0."
            shared = _set(number, theirs)
            weights += within(block, f"{place}shared_transformer.", shared)
    return weights


def _set(number: int, theirs: Any) -> list[Weight]:
    """The shared block of that number."""
    width = theirs.attention_head_dim
    d_rotary = width if theirs.use_mem_rope else 0
    weights = renamed({f"{ours}_{number}": name for ours, name in _SHARED.items()})
    for ours, name in (("query", "q"), ("key", "k")):
        weights.append(turned(f"{ours}_{number}", f"self_attn.{name}_proj.weight", width, d_rotary))
    return weights


def _adapters(ours: str, place: str, number: int, theirs: Any) -> list[Weight]:
    """The low-rank maps of a layer's call, which theirs keeps with the shared block."""
    names = {"up_adapter": f"feed_forward.gate_up_proj_adapter_list.{number}"}
    if theirs.use_shared_attention_adapter:
        for i, name in enumerate("qkv"):
            names[f"qkv_adapters.{i}"] = f"self_attn.linear_{name}_adapter_list.{number}"
    width = theirs.attention_head_dim
    d_rotary = width if theirs.use_mem_rope else 0
    weights: list[Weight] = []
    for low_rank, name in names.items():
        weights += renamed({f"{low_rank}.down.weight": f"{name}.0.weight"})
        last = f"{low_rank}.up.weight", f"{name}.1.weight"
        is_turned = low_rank in ("qkv_adapters.0", "qkv_adapters.1")
        weights += [turned(*last, width, d_rotary)] if is_turned else renamed(dict([last]))
    return within(ours, place, weights)


def _check(where: str, theirs: Any) -> None:
    require(where, theirs, hidden_act="gelu", attention_dropout=0.0, add_bias_linear=False)
    require(where, theirs, num_key_value_heads=theirs.num_attention_heads, rms_norm_eps=1e-5)
    if theirs.use_mem_rope:
        check_rotary(where, theirs)
        require(where, theirs, use_long_context=False)


FAMILY = Family(Zamba2ForCausalLM, _stack, _weights, _check)

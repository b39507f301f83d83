"""OLMo Hybrid: gated DeltaNet, with layers of attention whose norms stand behind each part."""

from typing import Any

from transformers import OlmoHybridForCausalLM

from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import (
    DELTA,
    check_whole_heads,
    delta_options,
    delta_widths,
    stacked,
)
from linrnn.interop._hf_parts import (
    OUTER,
    attention_options,
    attention_weights,
    check_rotary,
    check_usual,
    gated_weights,
    in_blocks,
    layers,
    qk_norm_weights,
)
from linrnn.interop._hf_weights import Weight, renamed, within

_KINDS = {"linear_attention": "gated_delta_net", "full_attention": "attention"}
_NORMS = {
    "linear_attention": ("input_layernorm", "post_attention_layernorm"),
    "full_attention": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
_DELTA = {
    **DELTA,
    "out.gate_proj.weight": "g_proj.weight",
    "beta_proj.weight": "b_proj.weight",
    "decay.proj.weight": "a_proj.weight",
    "out.norm_weight": "o_norm.weight",
    "out.out_proj.weight": "o_proj.weight",
}
_DELTA_EPS = 1e-5  # of the norm of its heads, whatever the configuration says


def _options(theirs: Any) -> dict[str, dict[str, Any]]:
    attention = {"qk_norm": "all", "norm_eps": theirs.rms_norm_eps}
    if (theirs.rope_parameters or {}).get("rope_theta") is None:
        attention["d_rotary"] = 0
    beta_max = 2.0 if theirs.linear_allow_neg_eigval else 1.0
    return {
        "gated_delta_net": delta_options(theirs, beta_max=beta_max, norm_eps=_DELTA_EPS),
        "attention": attention_options(theirs, **attention),
    }


def _stack(theirs: Any) -> dict[str, Any]:
    return {
        **layers([_KINDS[kind] for kind in theirs.layer_types], _options(theirs)),
        **{"out_norm": ("attention",), "block": "swiglu", "d_ffn": theirs.intermediate_size},
    }


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    qkv = [f"{p}_proj.weight" for p in "qkv"]
    widths = delta_widths(options["gated_delta_net"])
    delta = [*renamed(_DELTA), stacked("qkv.heads.proj.weight", qkv, widths)]
    attention = attention_weights(options["attention"])
    attention += qk_norm_weights(options["attention"])
    mixers = {
        "linear_attention": within("mixer.", "linear_attn.", delta),
        "full_attention": within("mixer.", "self_attn.", attention),
    }
    blocks = []
    for kind in theirs.layer_types:
        first, second = (f"{name}.weight" for name in _NORMS[kind])
        norms = renamed({"norm.weight": first, "swiglu_norm.weight": second})
        blocks.append([*norms, *gated_weights("swiglu", "mlp"), *mixers[kind]])
    return in_blocks(renamed(OUTER), blocks)


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs)
    check_rotary(where, theirs)
    check_whole_heads(where, theirs)


FAMILY = Family(OlmoHybridForCausalLM, _stack, _weights, _check)

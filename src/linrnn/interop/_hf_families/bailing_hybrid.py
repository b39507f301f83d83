"""Ling 3: KDA with bounded decays, layers of gated latent attention, and experts."""

from typing import Any

from transformers import BailingHybridForCausalLM

from linrnn.errors import DataError
from linrnn.interop._hf_families.kimi_linear import stack_of, weights_of
from linrnn.interop._hf_family import Family
from linrnn.interop._hf_hybrid_parts import kda_options, kda_weights, latent_options, latent_weights
from linrnn.interop._hf_parts import check_usual
from linrnn.interop._hf_weights import Weight

_KDA = {
    "decay.proj.weight": "forget_gate.f_proj.weight",
    "out.gate_proj.weight": "g_proj.weight",
}


def _options(theirs: Any) -> dict[str, dict[str, Any]]:
    bound = theirs.kda_lower_bound if theirs.kda_safe_gate else None
    kda = {"lower_bound": bound, "decay_map": "full", "gate_map": "full"}
    latent = {"gate": "head", "base": float(theirs.rope_parameters["rope_theta"])}
    return {
        "kda": kda_options(theirs, **kda),
        "latent_attention": latent_options(theirs, **latent),
    }


def _stack(theirs: Any) -> dict[str, Any]:
    return stack_of(theirs, _options(theirs))


def _weights(theirs: Any) -> list[Weight]:
    options = _options(theirs)
    kda = kda_weights(options["kda"], _KDA)
    return weights_of(theirs, kda, latent_weights(options["latent_attention"]))


def _check(where: str, theirs: Any) -> None:
    check_usual(where, theirs, num_key_value_heads=theirs.num_attention_heads)
    kind = theirs.rope_parameters.get("rope_type", "default")
    if kind != "default":
        raise DataError(f"{where}: rope_type must be 'default' to be converted, got {kind!r}.")


FAMILY = Family(
    *(BailingHybridForCausalLM, _stack, _weights, _check),
    (
        *("model_max_length", "moe_renormalize", "num_expert_group", "num_experts"),
        *("num_experts_per_token", "num_shared_experts", "num_nextn_predict_layers"),
        *("linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"),
    ),
)

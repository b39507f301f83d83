"""Small models of every family of transformers that `linrnn.interop.accelerate` knows."""

from typing import Any

import torch
import transformers

VOCABULARY = 512
#: Families whose configuration says nothing that the others' do not.
_SHARED = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}


def _attention(width: int) -> dict[str, Any]:
    return {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 2 * width}


def _mamba2(width: int) -> dict[str, Any]:
    heads = {"mamba_n_heads": 8, "mamba_d_head": width // 4, "mamba_n_groups": 1}
    return {**_attention(width), **heads, "mamba_d_state": 64, "mamba_chunk_size": 256}


def _delta(width: int) -> dict[str, Any]:
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    dims = {"linear_key_head_dim": width // 4, "linear_value_head_dim": width // 4}
    types = ["linear_attention"] * 3 + ["full_attention"]
    return {**_attention(width), **heads, **dims, "head_dim": width // 4, "layer_types": types}


def _experts(width: int) -> dict[str, Any]:
    return {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": width // 2}


def _latent(width: int) -> dict[str, Any]:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    dims = {
        "v_head_dim": width // 4,
        "qk_nope_head_dim": width // 4,
        "qk_rope_head_dim": width // 8,
    }
    experts = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width // 2,
    }
    return {**heads, **dims, **experts, "kv_lora_rank": width // 2, "intermediate_size": 2 * width}


def _options(width: int) -> dict[str, dict[str, Any]]:
    """Further options of each family, at a width."""
    linear, full = "linear_attention", "full_attention"
    mixed = [linear, linear, full, linear]
    shared_experts = {"shared_expert_intermediate_size": width // 2}
    lfm = {"layer_types": ["conv", "conv", "full_attention", "conv"], **_attention(width)}
    moe = {**_experts(width), "num_dense_layers": 1}
    jamba = {
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "num_experts": 1,
        "num_experts_per_tok": 1,
    }
    groups = {"n_group": 1, "topk_group": 1}
    kimi = {"linear_head_dim": width // 4, "linear_num_heads": 4}
    nemotron = {"mamba_num_heads": 8, "mamba_head_dim": width // 4, "ssm_state_size": 64}
    zamba2 = {
        "n_mamba_heads": 8,
        "mamba_d_state": 64,
        "num_attention_heads": 4,
        "hidden_act": "gelu",
    }
    return {
        "mamba": {"state_size": 16, "num_hidden_layers": 2},
        "falcon_mamba": {"state_size": 16, "num_hidden_layers": 2},
        "jamba": {**_attention(width), **jamba},
        "zamba": {**_attention(width), "num_key_value_heads": 4, "attn_layer_period": 2},
        "mamba2": {"num_heads": 8, "head_dim": width // 4, "state_size": 64, "n_groups": 1},
        "bamba": {**_mamba2(width), "attn_layer_indices": [2]},
        "zamba2": {**zamba2, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]},
        "falcon_h1": {**_mamba2(width), "mamba_d_ssm": 2 * width, "num_hidden_layers": 2},
        "granitemoehybrid": {
            **_mamba2(width),
            "layer_types": ["mamba", "mamba", "attention", "mamba"],
            "shared_intermediate_size": width,
            "num_local_experts": 4,
        },
        "nemotron_h": {
            **_attention(width),
            **nemotron,
            "head_dim": width // 4,
            "n_groups": 2,
            "layers_block_type": ["mamba", "attention", "mamba", "mlp"],
        },
        "qwen3_next": {**_delta(width), **_experts(width), **shared_experts},
        "qwen3_5": _delta(width),
        "qwen3_5_moe": {**_delta(width), **_experts(width), **shared_experts},
        "olmo_hybrid": {**_delta(width), "linear_num_key_heads": 4, "num_key_value_heads": 4},
        "kimi_linear": {**_latent(width), **kimi, "layer_types": mixed},
        "bailing_hybrid": {
            **_latent(width),
            **groups,
            "head_dim": width // 4,
            "layer_types": mixed,
        },
        "lfm2": {**lfm, "block_auto_adjust_ff_dim": False},
        "lfm2_moe": {**lfm, **moe},
        "lfm3": {**lfm, "head_dim": width // 4},
        "recurrent_gemma": {**_attention(width), "lru_width": width, "num_hidden_layers": 3},
        "rwkv": {"attention_hidden_size": width, "context_length": 2048},
        "xlstm": {"num_heads": 4, "qk_dim_factor": 1.0, "autocast_kernel_dtype": "float32"},
    }


FAMILIES = tuple(_options(64))
_CLASSES = {
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
}


def build(family: str, width: int, seed: int = 0) -> Any:
    """A model with random weights, none of which is zero, ready to answer."""
    options = {**_SHARED, "hidden_size": width, "num_hidden_layers": 4, **_options(width)[family]}
    names = _CLASSES.get(family)
    if names is None:
        config_type = transformers.models.auto.configuration_auto.CONFIG_MAPPING[family]
        mapping = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
        model_type = mapping[config_type]
    else:
        config_type, model_type = (getattr(transformers, name) for name in names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_type(config_type(**options))
        with torch.no_grad():
            for x in model.parameters():  # a start of zeros, as of some biases, would hide an error
                x.add_(torch.randn_like(x), alpha=0.02)
    model.eval()
    return model

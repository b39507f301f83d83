"""Multi-head latent attention as public models have it."""

import importlib

import torch

from linrnn.mixers import LatentAttention
from published.case import Case, compare_mapped, fill, waves

NAMES = {
    "q_proj": "q_proj",
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "q_proj",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "o_proj",
}
SIZES = {"d_head": 8, "d_value": 6, "d_rotary": 4, "rank": 10, "norm_eps": 1e-6}


def _mapped(weights):
    pairs = ((name.split("."), weight) for name, weight in weights.items())
    return {f"{NAMES[part]}.{kind}": weight for (part, kind), weight in pairs}


def _of_transformers(family, name, rotary=True, ours=None, **options):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    settings = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    sizes = {
        "hidden_size": 8,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_hidden_layers": 2,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "qk_rope_head_dim": 4,
        "kv_lora_rank": 10,
    }
    config = getattr(settings, f"{name}Config")(**sizes, **options, attn_implementation="eager")
    theirs = getattr(module, f"{name}Attention")(config, 0).double().eval()
    fill(list(theirs.parameters()))
    x, more = waves(2, 29, 8), {}
    if rotary:
        turns = getattr(module, f"{name}RotaryEmbedding")(config)
        more["position_embeddings"] = turns(x, torch.arange(29)[None])
    hidden = torch.full((29, 29), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    layer = LatentAttention(
        8, n_heads=3, **SIZES, rotary=rotary, **(ours or {}), dtype=torch.float64
    )
    return compare_mapped(
        *(layer, theirs, x, _mapped),
        lambda x: theirs(x, attention_mask=hidden, **more)[0],
    )


def _deepseek_v3():
    return _of_transformers("deepseek_v3", "DeepseekV3", q_lora_rank=None)


def _bottleneck():
    ours = {"q_rank": 7, "bias": True}
    options = {"q_lora_rank": 7, "attention_bias": True}
    return _of_transformers("deepseek_v3", "DeepseekV3", ours=ours, **options)


def _yarn():
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 40.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
    }
    ours = {"q_rank": 7, "scaling": "yarn", "factor": 40.0, "trained_length": 64}
    options = {"q_lora_rank": 7, "rope_parameters": rope, "max_position_embeddings": 2560}
    return _of_transformers("deepseek_v3", "DeepseekV3", ours=ours, **options)


def _glm():
    ours, options = {"q_rank": 7}, {"q_lora_rank": 7}
    return _of_transformers("glm4_moe_lite", "Glm4MoeLite", ours=ours, **options)


def _kimi():
    return _of_transformers("kimi_linear", "KimiLinear", rotary=False, q_lora_rank=None)


PLACE = "transformers 5.23.0, {}Attention"
CASES = [
    Case("latent_attention", PLACE.format("DeepseekV3"), "as it is", "layer", _deepseek_v3),
    Case(
        *("latent_attention", PLACE.format("DeepseekV3"), "q_lora_rank, biases", "layer"),
        _bottleneck,
    ),
    Case("latent_attention", PLACE.format("DeepseekV3"), "yarn by 40", "layer", _yarn),
    Case("latent_attention", PLACE.format("Glm4MoeLite"), "q_lora_rank", "layer", _glm),
    Case("latent_attention", PLACE.format("KimiLinear"), "no positions", "layer", _kimi),
]

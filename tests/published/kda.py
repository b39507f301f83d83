"""KDA and the layers of transformers and flash-linear-attention made of it."""

import importlib
import inspect
from unittest.mock import patch

import torch

from linrnn.mixers import KDA
from published.case import Case, compare_mapped, fill, fla_cases, waves


def _mapped(weights, low_rank=True):
    """Weights by the names of the layers of transformers."""
    heads = ("q_proj", "k_proj", "v_proj")
    rate, scale = weights["forget_gate.A_log"].flatten(), weights["o_norm.weight"]
    decay = {"f_a_proj": "down.", "f_b_proj": "up."} if low_rank else {"f_proj": ""}
    gate = {"g_a_proj": "down.", "g_b_proj": "up."} if low_rank else {"g_proj": ""}
    return {
        "qkv.heads.proj.weight": torch.cat([weights[f"{name}.weight"] for name in heads]),
        "qkv.conv1d.weight": weights["conv1d.weight"][:, 0],
        "beta_proj.weight": weights["b_proj.weight"],
        "decay.A_log": rate,
        "decay.dt_bias": weights["forget_gate.dt_bias"],
        "out.out_proj.weight": weights["o_proj.weight"] * scale.repeat(len(rate)),
        **{f"decay.proj.{o}weight": weights[f"forget_gate.{t}.weight"] for t, o in decay.items()},
        **{f"out.gate_proj.{o}weight": weights[f"{t}.weight"] for t, o in gate.items()},
    }


def _of_transformers(family, config, name, layer, mapped, **options):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    shared = {"hidden_size": 8, "num_hidden_layers": 1, "linear_num_heads": 2}
    sizes = {**shared, "linear_head_dim": 4, "rms_norm_eps": layer.norm_eps, **options}
    theirs = getattr(module, name)(
        getattr(module, config)(**sizes, layer_types=["linear_attention"]), 0
    )
    fill(list(theirs.parameters()))
    # their recurrence, which rounds less than their chunks; and no kernel of a GPU
    loop, conv = (
        inspect.unwrap(getattr(module, name))
        for name in ("recurrent_kimi_delta_attention", "causal_conv1d_fn")
    )
    with patch.multiple(module, chunk_kimi_delta_attention=loop, causal_conv1d_fn=conv):
        x = waves(2, 37, 8).float()  # theirs compute in float32 whatever comes
        return compare_mapped(layer, theirs, x, mapped)


def _kimi():
    layer = KDA(8, n_heads=2)
    name = "KimiLinearDeltaAttention"
    return _of_transformers("kimi_linear", "KimiLinearConfig", name, layer, _mapped)


def _glm():
    layer = KDA(8, n_heads=2, lower_bound=-5.0)
    name = "Glm5NextTextLinearAttention"
    return _of_transformers("glm5_next", "Glm5NextTextConfig", name, layer, _mapped)


def _bailing():
    layer = KDA(8, n_heads=2, lower_bound=-5.0, decay_map="full", gate_map="full")
    return _of_transformers(
        *("bailing_hybrid", "BailingHybridConfig", "BailingHybridDeltaAttention", layer),
        lambda weights: _mapped(weights, low_rank=False),
    )


HUB = "transformers 5.23, "
DEFAULT = "default but for the sizes"
CASES = [
    Case("kda", HUB + "KimiLinearDeltaAttention", DEFAULT, "layer", _kimi, 1e-4),
    Case("kda", HUB + "Glm5NextTextLinearAttention", DEFAULT, "layer", _glm, 1e-4),
    Case("kda", HUB + "BailingHybridDeltaAttention", DEFAULT, "layer", _bailing, 1e-4),
    *fla_cases(
        *("kda", "KimiDeltaAttention"),
        {
            "default": (DEFAULT, {}),
            "bounded": (
                "lower_bound=-5, num_v_heads=2 num_heads, allow_neg_eigval",
                {"num_v_heads": 4, "lower_bound": -5.0, "allow_neg_eigval": True},
            ),
            "without convolution": (
                "use_short_conv=False, expand_v=2",
                {"use_short_conv": False, "expand_v": 2},
            ),
            "bias in the convolution": ("conv_bias=True", {"conv_bias": True}),
        },
        **{"head_dim": 4, "num_heads": 2},
    ),
]

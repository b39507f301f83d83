"""Gated DeltaNet and the layers of transformers and flash-linear-attention made of it."""

import importlib
import inspect
from unittest.mock import patch

import torch

from linrnn.interop._fla_layers import mapped
from linrnn.mixers import GatedDeltaNet
from published.case import Case, compare_mapped, fill, fla_cases, waves


def _shared(weights, norm, out):
    """Weights laid out alike in all layers; the weight of their norm is in W_o."""
    rate, scale = weights["A_log"], weights[f"{norm}.weight"]
    return {
        "decay.A_log": rate,
        "decay.dt_bias": weights["dt_bias"],
        "out.out_proj.weight": weights[f"{out}.weight"] * scale.repeat(len(rate)),
    }


def _of_qwen3_next(weights):
    """Their rows are q, k, v and z of one head of keys after another, and b and a alike."""
    G, K, V, each = 2, 4, 6, 2
    width = each * V
    rows = weights["in_proj_qkvz.weight"].unflatten(0, (G, -1)).split([K, K, width, width], 1)
    q, k, v, z = (part.flatten(0, 1) for part in rows)
    rates = weights["in_proj_ba.weight"].unflatten(0, (G, -1)).split([each, each], 1)
    beta, decay = (part.flatten(0, 1) for part in rates)
    return {
        **_shared(weights, "norm", "out_proj"),
        "qkv.heads.proj.weight": torch.cat([q, k, v]),
        "qkv.conv1d.weight": weights["conv1d.weight"][:, 0],
        "out.gate_proj.weight": z,
        "beta_proj.weight": beta,
        "decay.proj.weight": decay,
    }


def _of_qwen3_5(weights):
    return {
        **_shared(weights, "norm", "out_proj"),
        "qkv.heads.proj.weight": weights["in_proj_qkv.weight"],
        "qkv.conv1d.weight": weights["conv1d.weight"][:, 0],
        "out.gate_proj.weight": weights["in_proj_z.weight"],
        "beta_proj.weight": weights["in_proj_b.weight"],
        "decay.proj.weight": weights["in_proj_a.weight"],
    }


def _of_olmo(weights):
    """Their names are those of flash-linear-attention, but for one convolution."""
    parts = {f"{x}_conv1d.weight": w for x, w in zip("qkv", _rows(weights), strict=True)}
    apart = {x: w for x, w in weights.items() if x != "conv1d.weight"} | parts
    sizes = {"hidden_size": 8, "num_heads": 2, "num_v_heads": 4, "head_dim": 4, "expand_v": 1.5}
    return mapped("GatedDeltaNet", apart, {**sizes, "allow_neg_eigval": True})[1]


def _rows(weights):
    widths = [len(weights[f"{x}_proj.weight"]) for x in "qkv"]
    return weights["conv1d.weight"].split(widths)


def _of_transformers(family, name, mapped, layer):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    settings = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(settings, f"{name}TextConfig", None) or getattr(settings, f"{name}Config")
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 6,
    }
    theirs = getattr(module, f"{name}GatedDeltaNet")(
        config(**sizes, layer_types=["linear_attention", "full_attention"]), 0
    )
    fill(list(theirs.parameters()))
    # their recurrence, which rounds less than their chunks; and no kernel of a GPU
    loop, conv = (
        inspect.unwrap(getattr(module, function))
        for function in ("torch_recurrent_gated_delta_rule", "causal_conv1d_fn")
    )
    with patch.multiple(module, torch_chunk_gated_delta_rule=loop, causal_conv1d_fn=conv):
        x = waves(2, 37, 8).float()  # theirs compute in float32 whatever comes
        return compare_mapped(layer, theirs, x, mapped)


QWEN = {"n_heads": 4, "key_heads": 2, "d_key": 4, "d_value": 6, "dt_start": "one"}


def _qwen3_next():
    layer = GatedDeltaNet(8, **QWEN, norm_eps=1e-6)
    return _of_transformers("qwen3_next", "Qwen3Next", _of_qwen3_next, layer)


def _qwen3_5():
    layer = GatedDeltaNet(8, **QWEN, norm_eps=1e-6)
    return _of_transformers("qwen3_5", "Qwen3_5", _of_qwen3_5, layer)


def _olmo_hybrid():
    sizes = {"n_heads": 4, "key_heads": 2, "d_key": 4, "d_value": 6}
    layer = GatedDeltaNet(8, **sizes, beta_max=2.0)
    return _of_transformers("olmo_hybrid", "OlmoHybrid", _of_olmo, layer)


HUB = "transformers 5.23, "
DEFAULT = "default but for the sizes"
CASES = [
    Case("gated_delta_net", HUB + "Qwen3NextGatedDeltaNet", DEFAULT, "layer", _qwen3_next, 1e-4),
    Case("gated_delta_net", HUB + "Qwen3_5GatedDeltaNet", DEFAULT, "layer", _qwen3_5, 1e-4),
    Case("gated_delta_net", HUB + "OlmoHybridGatedDeltaNet", DEFAULT, "layer", _olmo_hybrid, 1e-4),
    *fla_cases(
        *("gated_delta_net", "GatedDeltaNet"),
        {
            "default": (DEFAULT, {}),
            "sigmoid gate": (
                "sigmoid gate, num_v_heads=2 num_heads, conv_bias",
                {"num_v_heads": 4, "output_gate_activation": "sigmoid", "conv_bias": True},
            ),
            "neither gate nor convolution": (
                "no gate, no convolution, allow_neg_eigval",
                {"use_gate": False, "use_short_conv": False, "allow_neg_eigval": True},
            ),
        },
        **{"head_dim": 4, "num_heads": 2},
    ),
]

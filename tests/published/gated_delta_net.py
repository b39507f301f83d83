"""Gated DeltaNet and the layers of transformers and flash-linear-attention made of it."""

import importlib
import inspect
from functools import partial
from unittest.mock import patch

import torch

from linrnn.mixers import GatedDeltaNet
from published.case import Case, compare_mapped, fill, golden, mapped_against_numbers, waves


def _shared(weights, norm, out):
    """What is laid out in the same way in all; the weight of their norm is in W_o."""
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


RATES = {
    "A_log": "decay.A_log",
    "dt_bias": "decay.dt_bias",
    "a_proj.weight": "decay.proj.weight",
    "b_proj.weight": "beta_proj.weight",
}
LOW_RANK = {
    "f_proj.0.weight": "decay.proj.down.weight",
    "f_proj.1.weight": "decay.proj.up.weight",
    "g_proj.0.weight": "out.gate_proj.down.weight",
    "g_proj.1.weight": "out.gate_proj.up.weight",
    "g_proj.1.bias": "out.gate_proj.up.bias",
}


def of_fla(weights, names=RATES):
    """Of a delta layer of flash-linear-attention, whose other parts have these names of ours.

    The weight of their norm is in W_o.
    """
    out, scale = weights["o_proj.weight"], weights["o_norm.weight"]
    ours = {
        "qkv.heads.proj.weight": torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"]),
        "out.out_proj.weight": out * scale.repeat(out.shape[1] // len(scale)),
    }
    for kind in ("weight", "bias"):
        convs = [f"{name}_conv1d.{kind}" for name in "qkv"]
        if convs[0] in weights:
            ours[f"qkv.conv1d.{kind}"] = torch.cat([weights[name] for name in convs])
    if "conv1d.weight" in weights:  # of OLMo Hybrid, whose convolution is one
        ours["qkv.conv1d.weight"] = weights["conv1d.weight"]
    if "qkv.conv1d.weight" in ours:
        ours["qkv.conv1d.weight"] = ours["qkv.conv1d.weight"][:, 0]
    if "g_proj.weight" in weights:
        ours["out.gate_proj.weight"] = weights["g_proj.weight"]
    return ours | {name: weights[theirs] for theirs, name in names.items() if theirs in weights}


def fla_cases(system, cls, layer, mapped, configurations):
    """Layers with the options of each configuration, ``key: (words, options)``, on golden numbers.

    Args:
        system: the name of the mixer, and of the file of golden numbers.
        cls: theirs.
        layer: ours, a class.
        mapped: from parameters of theirs, by name, to those of ours.
        configurations: what each key of the file says of theirs, and the same of ours.
    """

    def measure(key):
        ours = layer(8, d_key=4, **configurations[key][1], dtype=torch.float64)
        return mapped_against_numbers(ours, waves(1, 9, 8), mapped, golden(system)["numbers"][key])

    return [
        Case(
            *(system, f"flash-linear-attention 0.6.0, {cls}", words, "layer"),
            *(partial(measure, key), 1e-9),
        )
        for key, (words, _) in configurations.items()
    ]


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
    return _of_transformers("olmo_hybrid", "OlmoHybrid", of_fla, layer)


HUB = "transformers 5.23, "
DEFAULT = "default but for the sizes"
CASES = [
    Case("gated_delta_net", HUB + "Qwen3NextGatedDeltaNet", DEFAULT, "layer", _qwen3_next, 1e-4),
    Case("gated_delta_net", HUB + "Qwen3_5GatedDeltaNet", DEFAULT, "layer", _qwen3_5, 1e-4),
    Case("gated_delta_net", HUB + "OlmoHybridGatedDeltaNet", DEFAULT, "layer", _olmo_hybrid, 1e-4),
    *fla_cases(
        *("gated_delta_net", "GatedDeltaNet", GatedDeltaNet, of_fla),
        {
            "default": (DEFAULT, {"n_heads": 2}),
            "sigmoid gate": (
                "sigmoid gate, num_v_heads=2 num_heads, conv_bias",
                {"n_heads": 4, "key_heads": 2, "gate": "sigmoid", "conv_bias": True},
            ),
            "neither gate nor convolution": (
                "no gate, no convolution, allow_neg_eigval",
                {"n_heads": 2, "gate": "none", "d_conv": None, "beta_max": 2.0},
            ),
        },
    ),
]

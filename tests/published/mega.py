"""Mega's whole block but its feed-forward part, as transformers had it until version 4."""

import torch

from linrnn.mixers import Mega
from published.case import Case, golden, mapped_against_numbers, waves


def _mapped(weights):
    """Their rows of the map are u, z, r and c; a norm of scale has one weight for all channels."""
    bias = weights["mx_proj.bias"]
    ours = _positions(weights) | {
        "alpha": weights["ema_gate.damping_factor"][..., 0],
        "delta": weights["ema_gate.decay_factor"][..., 0],
        "beta": weights["ema_gate.ema_expansion_matrix"][..., 0],
        "eta": weights["ema_gate.kernel_projection_matrix"],
        "omega": weights["ema_gate.residual_weight"],
        "kappa": weights["qk_weight"],
        "mu": weights["qk_bias"],
        "value_proj.weight": weights["v_proj.weight"],
        "value_proj.bias": weights["v_proj.bias"],
        "average_proj.weight": weights["mx_proj.weight"],
        "average_proj.bias": torch.cat([bias[:-8], bias[-8:] + weights["h_proj.bias"]]),
        "hidden_proj.weight": weights["h_proj.weight"],
    }
    return ours | _norm(weights)


def _positions(weights):
    if "rel_pos_bias.rel_pos_bias" in weights:  # half of it is of later steps
        table = weights["rel_pos_bias.rel_pos_bias"]
        return {"distances": table[: (len(table) + 1) // 2].flip(0)}
    # theirs turns channels i and i + d_key / 2
    pairs = torch.cat([weights["rel_pos_bias.alpha"], weights["rel_pos_bias.b_param"]])
    return {"b": pairs.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)}


def _norm(weights):
    if "norm.norm.scalar" in weights:
        return {"in_norm.weight": weights["norm.norm.scalar"].repeat(8)}
    return {f"in_norm.{kind}": weights[f"norm.norm.{kind}"] for kind in ("weight", "bias")}


def _transformers(configuration, **options):
    sizes = {"d_ema": 4, "d_key": 6, "d_inner": 12, "norm_eps": 1e-5}
    layer = Mega(8, **sizes, **options, dtype=torch.float64)
    numbers = golden("mega")["numbers"][configuration]
    return mapped_against_numbers(layer, waves(1, 9, 8), _mapped, numbers)


def _default():
    return _transformers("default", norm="rms")


def _laplace():
    return _transformers("laplace", norm="layer", attention="laplace")


def _relu_squared():
    return _transformers("relu2", norm="layer", attention="relu_squared", chunk=3)


def _simple():
    return _transformers("simple", norm="rms", table=16)


def _simple_laplace():
    return _transformers("simple, laplace", norm="layer", attention="laplace", table=16)


# their step of Laplace has its mean and spread to six digits
HUB = "transformers 4.40.2, MegaMovingAverageGatedAttention"
CASES = [
    Case("mega", HUB, "causal", "layer", _default, 1e-9),
    Case("mega", HUB, "causal, laplace, layernorm", "layer", _laplace, 1e-4),
    Case("mega", HUB, "causal, relu2, layernorm, chunks of 3", "layer", _relu_squared, 1e-9),
    Case("mega", HUB, "causal, simple bias", "layer", _simple, 1e-9),
    Case("mega", HUB, "causal, simple bias, laplace, layernorm", "layer", _simple_laplace, 1e-4),
]

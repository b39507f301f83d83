"""HGRN and the model of flash-linear-attention, whose lower bounds its layers share.

Theirs keeps real numbers, without a turn: ours with a theta of 0 and imaginary parts of 0, which
the norm counts as well.
"""

import torch

from linrnn import SequenceModel
from linrnn.interop._fla_layers import mapped
from published.case import Case, golden, mapped_against_numbers, waves

WIDTH, DEPTH = 8, 3
MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def stack(mixer, options):
    """The body of their models: blocks with RMS norms and SwiGLU, and a last norm."""
    around = {"block": "swiglu", "d_ffn": 12, "norm": "rms", "norm_eps": 1e-6, "final_norm": True}
    ends = {"identity_ends": "both", "pool": "none", "dtype": torch.float64}
    sizes = {"d_model": WIDTH, "n_layers": DEPTH}
    return SequenceModel(
        WIDTH, WIDTH, mixer=mixer, mixer_options=options, **sizes, **around, **ends
    )


def mapped_stack(weights, mixer):
    """Our weights of theirs; ``mixer`` maps those of a layer."""
    ours = {"shared.0.gamma": weights["lower_bounds"], "final_norm.weight": weights["norm.weight"]}
    for i in range(DEPTH):
        mine, theirs = f"blocks.{i}.", f"layers.{i}."
        ours[f"{mine}norm.weight"] = weights[f"{theirs}attn_norm.weight"]
        ours[f"{mine}swiglu_norm.weight"] = weights[f"{theirs}mlp_norm.weight"]
        for name, other in MLP.items():
            ours[f"{mine}swiglu.{name}.weight"] = weights[f"{theirs}mlp.{other}.weight"]
        start = f"{theirs}attn."
        part = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
        ours |= {f"{mine}mixer.{n}": w for n, w in mixer(part).items()}
    return ours


def model_against_numbers(system, options, mixer):
    """The model that the golden file of a system has numbers of."""
    model, numbers = stack(system, options), golden(system)["numbers"]["model"]
    ends = {n: w for n, w in model.state_dict().items() if n.startswith(("encoder.", "head."))}
    return mapped_against_numbers(
        model, waves(1, 9, WIDTH), lambda w: {**mapped_stack(w, mixer), **ends}, numbers
    )


def _mixer(weights):
    return mapped("HGRNAttention", weights, {"hidden_size": WIDTH})[1]


def _model():
    options = {"gate": "silu", "norm": "rms", "norm_eps": 0.5e-6}
    return model_against_numbers("hgrn", options, _mixer)


FLA = "flash-linear-attention 0.6.0, HGRNModel"
CASES = [Case("hgrn", FLA, "default but for the sizes (use_lower_bound)", "model", _model, 1e-9)]

"""TransNormerLLM in the form of MiniMax-01, lightning attention."""

import torch

from linrnn.mixers import TransNormerLLM
from published.case import Case, compare_mapped, fill, waves


def _mapped(weights, n_heads):
    """Their rows are q, k and v of one head after another; the weight of their norm is in W_o."""
    q, k, v = weights["qkv_proj.weight"].unflatten(0, (n_heads, 3, -1)).unbind(1)
    projections = [part.flatten(0, 1) for part in (q, k, v)]
    return {
        "heads.proj.weight": torch.cat([*projections, weights["output_gate.weight"]]),
        "out_proj.weight": weights["out_proj.weight"] * weights["norm.weight"],
    }


def _minimax(n_heads, layer, n_layers):
    from transformers.models.minimax import modeling_minimax as module

    sizes = {"hidden_size": 12, "num_attention_heads": n_heads, "head_dim": 4, "block_size": 8}
    config = module.MiniMaxConfig(**sizes, num_hidden_layers=n_layers)
    theirs = module.MiniMaxLightningAttention(config, layer).double()
    fill(list(theirs.parameters()))
    place = {"layer": layer, "n_layers": n_layers}
    form = {"decay": "minimax", "lrpe": "never", "v_activation": "silu", "gate": "sigmoid"}
    ours = TransNormerLLM(12, n_heads=n_heads, d_head=4, **form, **place, dtype=torch.float64)
    return compare_mapped(
        *(ours, theirs, waves(2, 29, 12)),
        lambda weights: _mapped(weights, n_heads),
        lambda x: theirs(x, None, None)[0],
    )


def _middle():
    return _minimax(3, 1, 4)


def _single():
    return _minimax(2, 0, 1)


HUB = "transformers 5.23, MiniMaxLightningAttention"
CASES = [
    Case("transnormer_llm", HUB, "default but for the sizes, layer 2 of 4", "layer", _middle, 1e-6),
    Case("transnormer_llm", HUB, "default but for the sizes, one layer", "layer", _single, 1e-6),
]

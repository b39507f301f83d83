"""AGaLiTe and the code of its authors, in JAX."""

import torch

from linrnn.mixers import AGaLiTe
from published.case import fill, golden_cases


def layer():
    sizes = {"n_heads": 2, "d_head": 3, "eta": 2, "r": 3}
    ours = AGaLiTe(6, **sizes, waves="released", eps=1e-5, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default but for the sizes": layer}
CASES = golden_cases("agalite", "subho406/agalite@101acbe, AttentionORLiTLayer", LAYERS)

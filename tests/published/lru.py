"""LRU and minimal-LRU, in JAX."""

import torch

from linrnn.mixers import LRU
from published.case import fill, golden_cases


def layer():
    ours = LRU(6, d_state=5, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default but for the sizes": layer}
CASES = golden_cases("lru", "NicolasZucchet/minimal-LRU@bbd71b1, lru.model.LRU", LAYERS)

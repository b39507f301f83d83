"""cosFormer and the code of its authors, whose weights reach as far as the sequence is long."""

import torch

from linrnn.mixers import CosFormer
from published.case import fill, golden_cases


def layer():
    ours = CosFormer(6, n_heads=2, max_length=11, dtype=torch.float64)  # the length of `x_of`
    fill(list(ours.parameters()))
    return ours


LAYERS = {"causal=True, default but for the sizes": layer}
CASES = golden_cases("cosformer", "OpenNLPLab/cosFormer@8e12da1, CosformerAttention", LAYERS)

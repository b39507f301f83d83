"""LMU and the package pytorch-lmu."""

import torch

from linrnn.mixers import LMU
from published.case import fill, golden_cases


def layer():
    ours = LMU(6, order=5, theta=9.0, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default": layer}
CASES = golden_cases("lmu", "hrshtv/pytorch-lmu@95a0b93, LMU", LAYERS)

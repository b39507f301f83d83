"""Recurrent Delta Net and the layer of its authors."""

import torch

from linrnn.mixers import RecurrentDeltaNet
from published.case import fill, golden_cases


def layer():
    ours = RecurrentDeltaNet(6, n_heads=2, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default but for the sizes, without its norm and residual": layer}
SOURCE = "IDSIA/recurrent-fwp@781e378, CudaFastWeightRecUpdateTanhLayer"
CASES = golden_cases("recurrent_delta_net", SOURCE, LAYERS)

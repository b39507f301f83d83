"""PLRNN and a step of the code of its authors, to whose h the input is added."""

import torch

from linrnn.mixers import PLRNN
from published.case import Case, fill, golden_cases


def layer():
    ours = PLRNN(6, dtype=torch.float64)
    fill(list(ours.parameters()), 0.3)
    return ours


LAYERS = {"latent_model='PLRNN', the input added to h": layer}
SOURCE = "DurstewitzLab/dendPLRNN@368ed04, PLRNN_Step"
BASIS = "a sum of several thresholds instead of max(0, z) is not an option here"
BASES = SOURCE.replace("PLRNN_Step", "PLRNN_Basis_Step")
CASES = [
    *golden_cases("plrnn", SOURCE, LAYERS),
    Case("plrnn", BASES, "latent_model='dendr-PLRNN'", "layer", None, note=BASIS),
]

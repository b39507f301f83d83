"""Reservoir and the package reservoirpy."""

from functools import partial

import torch

from linrnn.mixers import Reservoir
from published.case import fill, golden_cases


def layer(**options):
    ours = Reservoir(6, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default": layer, "lr=0.3": partial(layer, leak=0.3)}
NOTES = dict.fromkeys(LAYERS, "theirs has no gradients")
CASES = golden_cases("reservoir", "reservoirpy 0.4.2, Reservoir", LAYERS, notes=NOTES)

"""GateLoop and the package gateloop-transformer."""

from functools import partial

import torch

from linrnn.mixers import GateLoop
from published.case import fill, golden_cases


def layer(**options):
    ours = GateLoop(6, transition="polar", transition_of="head", **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default": layer,
    "heads=2, frac_gradient_state_transition=1": partial(layer, d_head=3),
    "sub_ln=True, frac_gradient_state_transition=1": partial(layer, norm="layer"),
}
NOTES = {"default": "theirs multiplies gradients of the transitions by 0.9"}
SOURCE = "gateloop-transformer 0.2.5, GateLoopedAttention"
CASES = golden_cases("gateloop", SOURCE, LAYERS, notes=NOTES)

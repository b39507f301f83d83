"""GSS and the package gated-state-spaces-pytorch, with the norm and the residual that it has."""

import torch

from linrnn.mixers import GSS
from published.case import Normed, fill, golden_cases


def layer():
    ours = Normed(GSS(6, d_inner=8, d_ssm=4, d_state=5, norm="layer", dtype=torch.float64))
    fill(list(ours.parameters()))
    with torch.no_grad():
        ours.mixer.in_proj.bias.zero_(), ours.mixer.up_proj.bias.zero_()
        ours.norm.weight.add_(1), ours.mixer.norm_weight.add_(1)
    return ours


LAYERS = {"default but for the sizes": layer}
CASES = golden_cases("gss", "gated-state-spaces-pytorch 0.1.0, GSS", LAYERS)

"""DPFP and the layer of its authors."""

import torch

from linrnn.mixers import DPFP
from published.case import fill, golden_cases


def layer():
    sizes = {"n_heads": 2, "d_key": 3, "d_value": 3}
    # its scores are divided by the root of the channels before eps is added to them
    ours = DPFP(6, **sizes, normalize="attention", eps=1e-5 * 3**0.5, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default but for the sizes, without its norm and residual": layer}
CASES = golden_cases("dpfp", "IDSIA/lmtool-fwp@0159201, DPFPMultiHeadAttn", LAYERS)

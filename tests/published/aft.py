"""AFT and the code of labml_nn; aft-pytorch, which is older, is not causal."""

import torch

from linrnn.mixers import AFT
from published.case import Case, fill, golden_cases


def layer():
    options = {"kind": "local", "window": 4, "rank": 11, "max_length": 11, "bias": True}
    ours = AFT(6, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default but for the sizes, a mask of later steps": layer}
SOURCE = "labmlai/annotated_deep_learning_paper_implementations@e6b3c8a, AFTLocal"
LATER = "every step sees all others; these layers are causal"
CASES = [
    *golden_cases("aft", SOURCE, LAYERS),
    Case("aft", "aft-pytorch 0.2.2, AFTFull", "default", "layer", None, note=LATER),
]

"""The self-referential weight matrix and the layer of its authors."""

from functools import partial

import torch

from linrnn.mixers import SRWM
from published.case import fill, golden_cases


def layer(**options):
    ours = SRWM(6, n_heads=2, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default but for the sizes, without its norm and residual": layer,
    "use_input_softmax=True, without its norm and residual": partial(layer, input_softmax=True),
}
CASES = golden_cases("srwm", "IDSIA/modern-srwm@01e6cfd, SRWMlayer", LAYERS)

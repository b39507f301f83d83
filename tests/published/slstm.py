"""sLSTM and the package of its authors."""

import torch

from linrnn.mixers import SLSTM
from published.case import fill, golden_cases


def layer(**options):
    ours = SLSTM(8, n_heads=2, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default but for the sizes, backend='vanilla'": layer,
    "conv1d_kernel_size=0": lambda: layer(d_conv=0),
}
CASES = golden_cases("slstm", "xlstm 2.0.6, sLSTMLayer", LAYERS)

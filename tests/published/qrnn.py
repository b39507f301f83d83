"""QRNN and the code of its authors."""

from functools import partial

import torch

from linrnn.mixers import QRNN
from published.case import fill, golden_cases


def layer(**options):
    ours = QRNN(6, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default": partial(layer, window=1),
    "window=2": layer,
    "hidden_size=6, output_gate=False": partial(layer, window=1, pooling="f"),
}
SOURCE = "salesforce/pytorch-qrnn@1634991, QRNNLayer"
CASES = golden_cases("qrnn", SOURCE, LAYERS)

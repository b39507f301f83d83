"""FastGRNN and FastRNN, and the cells of EdgeML."""

from functools import partial

import torch

from linrnn.mixers import FastGRNN
from published.case import fill, golden_cases


def layer(**options):
    ours = FastGRNN(6, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "FastGRNNCell, default": layer,
    "FastGRNNCell, wRank=2, uRank=3": partial(layer, w_rank=2, u_rank=3),
    "FastGRNNCell, quantSigm, quantTanh": partial(layer, nonlinearity="piecewise"),
    "FastRNNCell, default": partial(layer, gated=False),
}
CASES = golden_cases("fast_grnn", "microsoft/EdgeML@81025fc, edgeml_pytorch.graph.rnn", LAYERS)

"""Delta RNN and the layer of its authors."""

import torch

from linrnn.mixers import DeltaRNN
from published.case import fill, golden_cases


def layer():
    ours = DeltaRNN(6, n_heads=2, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


NAME = "skip_attn_normalization=True, without its norm and residual"
LAYERS = {NAME: layer}
NOTES = {NAME: "1e-6 is added here to the sums that keys and queries are divided by"}
SOURCE = "IDSIA/recurrent-fwp@781e378, CudaFastRNNv2Layer"
CASES = golden_cases("delta_rnn", SOURCE, LAYERS, 1e-5, NOTES)

"""WaveRNN and the code of its authors, its readout at every step."""

from functools import partial

import torch

from linrnn.mixers import WaveRNN
from published.case import fill, golden_cases


def layer(**options):
    ours = WaveRNN(3, n_units=7, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default": partial(layer, n_channels=1, act="tanh"),
    "n_ch=3, act='relu'": partial(layer, act="relu"),
}
CASES = golden_cases("wave_rnn", "akandykeller/Wave_RNNs@2630b88, conv_rnn_model.coRNN", LAYERS)

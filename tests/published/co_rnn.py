"""coRNN and the cell of its authors."""

import torch

from linrnn.mixers import CoRNN
from published.case import fill, golden_cases


def layer():
    ours = CoRNN(6, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default of sMNIST": layer}
CASES = golden_cases("co_rnn", "tk-rusch/coRNN@afd8174, coRNNCell", LAYERS)

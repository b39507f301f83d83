"""expRNN and the code of its authors."""

import torch

from linrnn.mixers import ExpRNN
from published.case import fill, golden_cases


def layer():
    ours = ExpRNN(6, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"mode='static', param=expm": layer}
NOTES = dict.fromkeys(LAYERS, "their exponential is one of single precision")
CASES = golden_cases("exp_rnn", "Lezcano/expRNN@830ec83, OrthogonalRNN", LAYERS, 1e-8, NOTES)

"""AntisymmetricRNN and the code of the authors of LipschitzRNN."""

import torch

from linrnn.mixers import AntisymmetricRNN
from published.case import fill, golden_cases


def layer():
    ours = AntisymmetricRNN(6, step_size=0.01, gamma=0.01, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"model='asymRNN'": layer}
CASES = golden_cases("antisymmetric_rnn", "erichson/LipschitzRNN@df6552e, RnnModels", LAYERS)

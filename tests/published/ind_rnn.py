"""IndRNN and the code of its authors, whose recurrence follows a linear layer."""

import torch

from linrnn.mixers import IndRNN
from published.case import Case, fill, golden_cases


def layer():
    ours = IndRNN(6, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default, after a linear layer": layer}
SOURCE = "Sunnydreamrain/IndRNN_pytorch@9b9cb4c, IndRNN_onlyrecurrent"
NORM = "a batch norm between the linear layer and the recurrence is no option here"
CASES = [
    *golden_cases("ind_rnn", SOURCE, LAYERS),
    Case(
        "ind_rnn",
        SOURCE.replace("IndRNN_onlyrecurrent", "stackedIndRNN_encoder"),
        "default, bn_location='bn_before'",
        "model",
        None,
        note=NORM,
    ),
]

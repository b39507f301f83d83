"""The minLSTM and the package minGRU-pytorch, which reads a whole sequence in log space."""

import torch
from minGRU_pytorch.minLSTM import minLSTM

from linrnn.mixers import MinLSTM
from published.case import Case, compare, waves


def _default():
    theirs = minLSTM(8).double()
    ours = MinLSTM(8, dtype=torch.float64)
    pairs = {"in_proj.weight": theirs.to_hidden_and_f_i_gate.weight}
    ours.load_state_dict(pairs)
    zero = torch.full((2, 8), 1e-30, dtype=torch.float64)  # ours begins at g(0), 1/2, theirs at 0
    return compare(ours, theirs, waves(2, 30, 8), pairs, zero)


SOURCE = "minGRU-pytorch 0.2, minLSTM"
CASES = [Case("minlstm", SOURCE, "default", "layer", _default, 1e-9)]

"""The minGRU and the package minGRU-pytorch, which reads a whole sequence in log space."""

import torch
from minGRU_pytorch import minGRU

from linrnn.mixers import MinGRU
from published.case import Case, compare, waves


def _default():
    theirs = minGRU(8).double()
    ours = MinGRU(8, dtype=torch.float64)
    ours.load_state_dict({"in_proj.weight": theirs.to_hidden_and_gate.weight})
    pairs = {"in_proj.weight": theirs.to_hidden_and_gate.weight}
    zero = torch.full((2, 8), 1e-30, dtype=torch.float64)  # ours begins at g(0), 1/2, theirs at 0
    return compare(ours, theirs, waves(2, 30, 8), pairs, zero)


SOURCE = "minGRU-pytorch 0.2, minGRU"
CASES = [Case("mingru", SOURCE, "default", "layer", _default, 1e-9)]

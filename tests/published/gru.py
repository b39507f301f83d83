"""GRU and torch.nn.GRU."""

import torch

from linrnn.mixers import GRU
from published.case import Case, compare, waves


def _default():
    theirs = torch.nn.GRU(6, 6, batch_first=True, dtype=torch.float64)
    ours = GRU(6, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    return compare(ours, lambda x: theirs(x)[0], waves(2, 17, 6), dict(theirs.named_parameters()))


CASES = [Case("gru", "torch.nn.GRU", "default", "layer", _default, tolerance=1e-12)]

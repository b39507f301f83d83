"""LSTM and torch.nn.LSTM."""

import torch

from linrnn.mixers import LSTM
from published.case import Case, compare, waves


def _with(**options):
    theirs = torch.nn.LSTM(6, 6, batch_first=True, dtype=torch.float64, **options)
    ours = LSTM(6, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict(), strict=not options)
    pairs = dict(theirs.named_parameters())
    return compare(ours, lambda x: theirs(x)[0], waves(2, 17, 6), pairs)


CASES = [Case("lstm", "torch.nn.LSTM", "default", "layer", _with, tolerance=1e-12)]

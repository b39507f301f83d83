"""ReLURNN and torch.nn.RNN, whose outputs are the states."""

import torch

from linrnn.mixers import ReLURNN
from published.case import Case, compare, waves


def _default():
    theirs = torch.nn.RNN(6, 6, nonlinearity="relu", batch_first=True, dtype=torch.float64)
    ours = ReLURNN(6, dtype=torch.float64)
    pairs = {"A": theirs.weight_hh_l0, "B": theirs.weight_ih_l0, "b": theirs.bias_ih_l0}
    with torch.no_grad():
        for name, weight in pairs.items():
            ours.get_parameter(name).copy_(weight)
        theirs.bias_hh_l0.zero_()  # a second bias, which is added to the first
        ours.C.copy_(torch.eye(6))  # ours reads its state by a map, and adds its input
        ours.D.zero_()
    return compare(ours, lambda x: theirs(x)[0], waves(2, 17, 6), pairs)


CASES = [Case("relu_rnn", "torch.nn.RNN", "nonlinearity='relu'", "layer", _default, 1e-12)]

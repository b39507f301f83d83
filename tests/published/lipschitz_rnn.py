"""LipschitzRNN and the code of its authors."""

from functools import partial

import torch

from linrnn.mixers import LipschitzRNN
from published.case import Case, fill, golden_cases


def layer(beta=0.8, gamma=0.01, **options):
    both = {"beta_A": beta, "beta_W": beta, "gamma_A": gamma, "gamma_W": gamma}
    ours = LipschitzRNN(6, **both, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default of the class": partial(layer, step_size=0.01),
    "default of driver.py, model='LipschitzRNN_ODE', solver='midpoint'": partial(
        layer, beta=0.7, gamma=0.001, step_size=0.1, solver="midpoint"
    ),
}
SOURCE = "erichson/LipschitzRNN@df6552e, RnnModels"
GATE = "a gate of the same matrix, and an A that alpha scales, are no options here"
CASES = [
    *golden_cases("lipschitz_rnn", SOURCE, LAYERS),
    Case("lipschitz_rnn", SOURCE, "model='LipschitzRNN_gated'", "layer", None, note=GATE),
]

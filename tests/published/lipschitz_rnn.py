"""LipschitzRNN and the code of its authors."""

from functools import partial

import torch

from linrnn.mixers import LipschitzRNN
from published.case import fill, golden_cases


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
LAYERS |= {
    "model='LipschitzRNN_gated'": partial(layer, step_size=0.01, gated=True),
    "model='LipschitzRNN_gated', alpha=0.5": partial(layer, step_size=0.1, gated=True, alpha=0.5),
}
SOURCE = "erichson/LipschitzRNN@df6552e, RnnModels"
CASES = golden_cases("lipschitz_rnn", SOURCE, LAYERS)

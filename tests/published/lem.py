"""LEM and the cell of its authors."""

from functools import partial

import torch

from linrnn.mixers import LEM
from published.case import fill, golden_cases


def layer(**options):
    ours = LEM(6, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default, dt=1": layer, "dt=0.3": partial(layer, step_size=0.3)}
CASES = golden_cases("lem", "tk-rusch/LEM@833da6b, LEMCell", LAYERS)

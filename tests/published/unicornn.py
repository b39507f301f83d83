"""UnICORNN and the kernels of its authors, behind their linear layer."""

import torch

from linrnn.mixers import UnICORNN
from published.case import fill, golden_cases


def layer():
    ours = UnICORNN(6, step_size=0.19, alpha=30.65, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {"default of psMNIST, one layer": layer}
CASES = golden_cases("unicornn", "tk-rusch/unicornn@35b243d, UnICORNN_recurrence", LAYERS)

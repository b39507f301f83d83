"""DLR and the code of its authors, without the GELU and the linear layer that a block has here."""

from functools import partial

import torch

from linrnn.mixers import DLR
from published.case import fill, golden_cases


def layer(**options):
    ours = DLR(6, d_state=4, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default but for the sizes": layer,
    "version='Lambda_imag_W_real'": partial(layer, kind="imaginary"),
    "version='Lambda_real_W_real'": partial(layer, kind="real"),
}
CASES = golden_cases("dlr", "ag1988/dlr@580d854, standalone.dss.DSS, kernel_type='dlr'", LAYERS)

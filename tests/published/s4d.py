"""S4D and the minimal code of its authors, without the GELU and the GLU that a block has here."""

import torch

from linrnn.mixers import S4D
from published.case import fill, golden_cases


def layer():
    ours = S4D(6, d_state=8, dtype=torch.float64)
    fill(list(ours.parameters()))
    with torch.no_grad():
        ours.log_dt.sub_(1)
    return ours


LAYERS = {"default but for the sizes, without its GELU and GLU": layer}
CASES = golden_cases("s4d", "state-spaces/s4@e757cef, models.s4.s4d.S4D", LAYERS)

"""DSS and the code of its authors, without the GELU and the linear layer that a block has here."""

from functools import partial

import torch

from linrnn.mixers import DSS
from published.case import fill, golden_cases


def layer(**options):
    ours = DSS(6, d_state=4, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    with torch.no_grad():
        ours.log_dt.sub_(1)
        if ours.kernel == "softmax":
            ours.A_re.abs_().neg_()
    return ours


LAYERS = {
    "default but for the sizes": partial(layer, kernel="softmax", length=11, separate_dt=True),
    "version='exp', sep_dt_re_im=False": partial(layer, kernel="exp"),
}
NOTES = {"default but for the sizes": "theirs adds 1e-7 to a squared modulus that it divides by"}
CASES = golden_cases("dss", "ag1988/dss@777084e, standalone.dss.DSS", LAYERS, 1e-3, NOTES)

"""SRU and the package of its authors."""

from functools import partial

import torch

from linrnn.mixers import SRU
from published.case import Case, fill, golden_cases


def layer(width=6, **options):
    ours = SRU(width, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "default": layer,
    "highway_bias=-2, rescale=False": partial(layer, highway_bias=-2.0, rescale=False),
    "v1=True": partial(layer, peepholes=False),
}
SOURCE = "sru 2.6.0, SRUCell"
BUILT_IN = "part of the recurrence there; no option here"
CASES = [
    *golden_cases("sru", SOURCE, LAYERS, 1e-7),
    *(
        Case("sru", SOURCE, name, "layer", None, note=BUILT_IN)
        for name in ("layer_norm=True", "n_proj=3", "has_skip_term=False", "use_tanh=True")
    ),
]

"""Infini-attention and the package infini-transformer-pytorch."""

from functools import partial

import torch

from linrnn.mixers import InfiniTransformer
from published.case import Case, fill, golden_cases


def layer(**options):
    sizes = {"n_heads": 2, "d_head": 4, "segment": 4}
    ours = InfiniTransformer(8, **sizes, **options, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


LAYERS = {
    "from memories of zeros, without its norm": layer,
    "use_mem_delta_rule=True, from memories of zeros, without its norm": partial(
        layer, update="delta"
    ),
}
SOURCE = "infini-transformer-pytorch 0.2.1, CausalAttention"
FIRST = "its first segment has no gate; here the gate mixes in what a memory of zeros holds"
CASES = [
    *golden_cases("infini_transformer", SOURCE, LAYERS),
    Case("infini_transformer", SOURCE, "default", "layer", None, note=FIRST),
]

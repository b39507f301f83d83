"""Compressive attention and the package compressive-transformer-pytorch."""

import torch

from linrnn.mixers import CompressiveTransformer
from published.case import Case, fill, golden_cases

ABSENT = ("place.proj.weight", "place.u", "place.w")


def layer():
    sizes = {"n_heads": 2, "segment": 4, "memory": 4, "compressed": 2, "ratio": 2}
    ours = CompressiveTransformer(8, **sizes, dtype=torch.float64)
    fill(list(ours.parameters()))
    with torch.no_grad():
        for name in ABSENT:
            ours.get_parameter(name).zero_()
    return ours


NAME = "default but for the sizes, pos_emb=None"
LAYERS = {NAME: layer}
NOTES = {NAME: "its memory lets gradients through here; theirs detaches what it compresses"}
SOURCE = "compressive-transformer-pytorch 0.4.0, SelfAttention"
PLACES = (
    "its keys of distances are learned one by one; here they are maps of waves, as in the paper"
)
CASES = [
    *golden_cases("compressive_transformer", SOURCE, LAYERS, notes=NOTES),
    Case("compressive_transformer", SOURCE, "pos_emb of the model", "layer", None, note=PLACES),
]

"""GaLiTe and the code of its authors, in JAX, whose gates decay a memory by their product."""

import torch

from linrnn.mixers import GaLiTe
from published.case import fill, golden_cases


def layer():
    sizes = {"n_heads": 2, "d_head": 6, "eta": 2}
    ours = GaLiTe(6, **sizes, decay="product", eps=1e-10, dtype=torch.float64)
    fill(list(ours.parameters()))
    return ours


NAME = "update_rule='projected_sigmoid', kernel 'pp_relu', use_rotary_emb=False"
LAYERS = {NAME: layer}
NOTES = {NAME: "theirs maps queries by one more linear layer, which is an identity here"}
SOURCE = "subho406/agalite@101acbe, RLTAttentionLayer"
CASES = golden_cases("galite", SOURCE, LAYERS, notes=NOTES)

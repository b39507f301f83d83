"""Performer and the package performer-pytorch."""

import torch

from linrnn.mixers import Performer
from published.case import Case, compare, copies, fill, waves


def _layer(features, eps=1e-4, **options):
    from performer_pytorch import SelfAttention

    sizes = {"heads": 2, "dim_head": 4, "nb_features": 6}
    theirs = SelfAttention(8, causal=True, **sizes, **options).double()
    ours = Performer(8, n_heads=2, n_features=6, features=features, eps=eps, dtype=torch.float64)
    fill([p for n, p in ours.named_parameters() if n != "heads.proj.bias"])
    fill([ours.directions.weight], 1.5)
    with torch.no_grad():
        ours.heads.proj.bias.zero_()
        theirs.fast_attention.projection_matrix.copy_(ours.directions.weight[0])
    leaves = copies(ours)
    rows = leaves["heads.proj.weight"].chunk(3)
    weights = {f"to_{n}.weight": w for n, w in zip("qkv", rows, strict=True)}
    weights |= {f"to_out.{n}": leaves[f"out_proj.{n}"] for n in ("weight", "bias")}
    del leaves["heads.proj.bias"]

    def read(x):
        return torch.func.functional_call(theirs, weights, (x,))

    return compare(ours, read, waves(2, 17, 8), leaves)


SOURCE = "performer-pytorch 1.1.4, SelfAttention"
CASES = [
    Case(
        "performer",
        SOURCE,
        "causal=True, default but for the sizes",
        "layer",
        lambda: _layer("positive"),
        1e-3,
        "theirs takes the largest exponent over the whole sequence, so that later steps reach"
        " earlier ones through eps = 1e-4",
    ),
    Case(
        "performer",
        SOURCE,
        "causal=True, generalized_attention=True",
        "layer",
        lambda: _layer("relu", eps=1e-3 * 6**-0.5, generalized_attention=True),
        1e-3,
        "theirs adds 1e-6 to what it divides by",
    ),
]

"""RWKV-5 and the layer of the package rwkv, with the norm and the residual that it has."""

import pytest
import torch

from linrnn.mixers import RWKV5
from published.case import Case, Normed, compare, copies, waves
from rwkv_package import busy, load


def theirs_of(weights):
    """Arguments of their function after both norms of the input, from weights by our names."""
    linears = (weights[f"{n}.weight"].T for n in ("key", "value", "receptance", "gate", "output"))
    decay = torch.exp(-weights["time_decay"].exp())[..., None]
    norm = weights["norm_weight"], weights["norm_bias"]
    mixes = (weights[f"mu_{name}"] for name in "kvrg")
    return [*norm, *mixes, decay, weights["time_first"][..., None], *linears, *(None,) * 20]


def _layer():
    with pytest.MonkeyPatch.context() as patch:
        seq = load(patch, seven=False).RWKV.att_seq_v5_2
    ours = busy(Normed(RWKV5(8, n_heads=2)))
    leaves = copies(ours)
    norm = leaves["norm.weight"], leaves["norm.bias"]
    weights = theirs_of({n.removeprefix("mixer."): w for n, w in leaves.items()})

    def read(x):
        start = torch.zeros(8), torch.zeros(2, 4, 4)
        return torch.stack([seq(None, row, *start, *norm, *weights)[0] for row in x])

    return compare(ours, read, waves(2, 17, 8).float(), leaves)


SOURCE = "rwkv 0.8.32, RWKV.att_seq_v5_2"
CASES = [Case("rwkv5", SOURCE, "default, with its norm and residual", "layer", _layer, 1e-5)]

"""Mamba-2 and transformers' Mamba2Mixer, whose names of weights are the same."""

from linrnn.mixers import Mamba2
from published.case import Case, compare, fill, waves


def _default():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

    sizes = {"hidden_size": 8, "num_heads": 4, "head_dim": 4, "state_size": 6}
    config = Mamba2Config(**sizes, n_groups=2, chunk_size=8, num_hidden_layers=1)
    theirs = Mamba2Mixer(config, 0).eval()
    ours = Mamba2(8, d_state=6, d_head=4, n_groups=2)
    fill(list(theirs.parameters()))
    weights = theirs.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, 0]
    ours.load_state_dict(weights)
    x = waves(2, 27, 8).float()  # theirs computes in float32 whatever comes
    return compare(ours, theirs, x, dict(theirs.named_parameters()))


SOURCE = "transformers 5.23, Mamba2Mixer"
SIZES = "default but for the sizes, two groups"
CASES = [Case("mamba2", SOURCE, SIZES, "layer", _default, 3e-5)]

"""Mamba and transformers' MambaMixer, whose names of weights are the same."""

from linrnn.mixers import Mamba
from published.case import Case, compare, fill, waves


def _default():
    from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer

    theirs = MambaMixer(MambaConfig(hidden_size=6, num_hidden_layers=1), 0).double().eval()
    ours = Mamba(6).double()
    fill(list(theirs.parameters()))
    weights = theirs.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, 0]
    ours.load_state_dict(weights)
    return compare(ours, theirs, waves(2, 17, 6), dict(theirs.named_parameters()))


# theirs computes the recurrence in float32 whatever comes
SOURCE = "transformers 5.23, MambaMixer"
CASES = [Case("mamba", SOURCE, "default", "layer", _default, 1e-6)]

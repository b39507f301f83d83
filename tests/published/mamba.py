"""Mamba and the layers of transformers that are made of it, whose names of weights are the same."""

from linrnn.mixers import Mamba
from published.case import Case, compare, fill, waves


def _read(theirs, ours):
    fill(list(theirs.parameters()))
    weights = theirs.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, 0]
    ours.load_state_dict(weights)
    return compare(ours, theirs, waves(2, 17, 6), dict(theirs.named_parameters()))


def _default():
    from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer

    theirs = MambaMixer(MambaConfig(hidden_size=6, num_hidden_layers=1), 0).double().eval()
    return _read(theirs, Mamba(6).double())


def _falcon():
    from transformers.models.falcon_mamba import modeling_falcon_mamba as module

    config = module.FalconMambaConfig(hidden_size=6, num_hidden_layers=1)
    theirs = module.FalconMambaMixer(config, 0, initialize_mixer_weights=False).double().eval()
    return _read(theirs, Mamba(6, bcdt_norm="rms").double())


def _jamba():
    from transformers.models.jamba import modeling_jamba as module

    theirs = module.JambaMambaMixer(module.JambaConfig(hidden_size=6), 0).double().eval()
    options = {"dt_rank": theirs.time_step_rank, "norm_eps": 1e-6}
    return _read(theirs, Mamba(6, bcdt_norm="weighted", **options).double())


# theirs compute the recurrence and the norms in float32 whatever comes
SOURCE = "transformers 5.23, "
CASES = [
    Case("mamba", SOURCE + "MambaMixer", "default", "layer", _default, 1e-6),
    Case("mamba", SOURCE + "FalconMambaMixer", "default but for d_model", "layer", _falcon, 1e-5),
    Case("mamba", SOURCE + "JambaMambaMixer", "default but for the sizes", "layer", _jamba, 1e-5),
]

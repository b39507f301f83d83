"""Mamba-2 and the layers of transformers made of it, whose names of weights are the same."""

from linrnn.mixers import Mamba2
from published.case import Case, compare, fill, waves

SIZES = {"d_state": 6, "d_head": 4, "n_groups": 2}


def _read(theirs, ours, folded=None):
    """``folded``: a factor on each row of their in_proj, which is in the weights here."""
    theirs = theirs.eval()
    fill(list(theirs.parameters()))
    weights = theirs.state_dict()
    weights["conv1d.weight"] = weights["conv1d.weight"][:, 0]
    pairs = dict(theirs.named_parameters())
    if folded is not None:
        weights["in_proj.weight"] = weights["in_proj.weight"] * folded
        pairs["in_proj.weight"] = pairs["in_proj.weight"], lambda g: g / folded
    ours.load_state_dict(weights)
    x = waves(2, 27, ours.d_model).float()  # theirs compute in float32 whatever comes
    return compare(ours, theirs, x, pairs)


def _default():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

    sizes = {"hidden_size": 8, "num_heads": 4, "head_dim": 4, "state_size": 6}
    config = Mamba2Config(**sizes, n_groups=2, chunk_size=8, num_hidden_layers=1)
    return _read(Mamba2Mixer(config, 0), Mamba2(8, **SIZES))


def _limited():
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

    sizes = {"hidden_size": 8, "num_heads": 4, "head_dim": 4, "state_size": 6}
    limits = {"time_step_limit": (0.5, 0.9)}
    config = Mamba2Config(**sizes, n_groups=2, chunk_size=8, num_hidden_layers=1, **limits)
    theirs = Mamba2Mixer(config, 0)
    # theirs forget the limits in single steps, so only a sequence is compared
    return _read(theirs, Mamba2(8, **SIZES, dt_low=0.5, dt_high=0.9))


def _bamba():
    from transformers.models.bamba.modeling_bamba import BambaConfig, BambaMixer

    sizes = {"hidden_size": 8, "mamba_n_heads": 4, "mamba_d_head": 4, "mamba_d_state": 6}
    config = BambaConfig(**sizes, mamba_n_groups=2, mamba_chunk_size=8, num_attention_heads=2)
    return _read(BambaMixer(config, 0), Mamba2(8, **SIZES))


def _falcon_h1(**options):
    from transformers.models.falcon_h1 import modeling_falcon_h1 as module

    sizes = {"hidden_size": 24, "mamba_n_heads": 4, "mamba_d_ssm": 16, "mamba_d_state": 6}
    config = module.FalconH1Config(**sizes, mamba_n_groups=2, mamba_chunk_size=8, **options)
    theirs = module.FalconH1Mixer(config, 0)
    theirs.register_buffer("mup_vector", module.compute_mup_vector(config), persistent=False)
    normed = config.mamba_rms_norm
    behind = {"rmsnorm": normed, "norm_before_gate": normed and config.mamba_norm_before_gate}
    ours = Mamba2(24, d_inner=16, **SIZES, **behind)
    factors = config.ssm_in_multiplier * theirs.mup_vector.flatten()[:, None]
    return _read(theirs, ours, factors)


def _before_the_gate():
    scales = {"ssm_multipliers": [0.5, 1.5, 0.7, 1.2, 0.8], "ssm_in_multiplier": 1.25}
    return _falcon_h1(mamba_rms_norm=True, **scales)


SOURCE = "transformers 5.23, "
GROUPS = "default but for the sizes, two groups"
CASES = [
    Case("mamba2", SOURCE + "Mamba2Mixer", GROUPS, "layer", _default, 3e-5),
    Case("mamba2", SOURCE + "Mamba2Mixer", "limits of dt", "layer", _limited, 3e-5),
    Case("mamba2", SOURCE + "BambaMixer", GROUPS, "layer", _bamba, 3e-5),
    Case("mamba2", SOURCE + "FalconH1Mixer", GROUPS, "layer", _falcon_h1, 3e-5),
    Case(
        *("mamba2", SOURCE + "FalconH1Mixer", "norm before the gate", "layer"),
        *(_before_the_gate, 3e-5),
    ),
]

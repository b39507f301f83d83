"""Bamba as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws, logits_are_equal
from transformers import BambaConfig

from linrnn.errors import DataError
from linrnn.interop.hf import from_config

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_indices": [1]},
    **{"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 8},
}
OTHER = {"head_dim": 12, "mamba_n_groups": 2, "attention_bias": True, "tie_word_embeddings": True}
BOUNDS = {"mamba_proj_bias": True, "mamba_conv_bias": False, "time_step_limit": (0.3, 1.5)}


@pytest.mark.parametrize("more", [{}, OTHER, BOUNDS], ids=str)
def test_bamba(more, tmp_path):
    laws(BambaConfig(**SIZES | more), tmp_path)


SHORT = {"original_max_position_embeddings": 8, "rope_theta": 100.0}
LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
RULES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
    "llama3": {**LLAMA3, "factor": 4.0, **SHORT},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **SHORT},
}


def with_rule(rule):
    sizes = {"hidden_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1, "mamba_d_head": 8}
    return BambaConfig(**SIZES | sizes | {"attn_layer_indices": [0], "rope_parameters": rule})


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rotary_positions_for_longer_sequences(rule):
    logits_are_equal(with_rule(rule), atol=1e-7)  # turns are float32 there


@pytest.mark.unchecked
def test_other_rules_are_refused():
    rule = {**RULES["llama3"], "high_freq_factor": 3.0}
    with pytest.raises(DataError, match=r"high_freq_factor must be 4\.0 to be converted, got 3"):
        from_config(with_rule(rule))
    rule = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    with pytest.raises(DataError, match="rope_type must be one of default, linear, llama3, yarn"):
        from_config(with_rule(rule))

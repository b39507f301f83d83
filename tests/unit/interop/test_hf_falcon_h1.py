"""Falcon-H1 as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import FalconH1Config

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "mamba_d_ssm": 24},
    **{"mamba_n_heads": 6, "mamba_d_head": 4, "mamba_d_state": 4},
}
FACTORS = {
    **{"lm_head_multiplier": 0.5, "embedding_multiplier": 5.6, "mlp_multipliers": [0.9, 0.4]},
    **{"key_multiplier": 0.4, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2},
    **{"ssm_multipliers": [0.35, 0.5, 0.7, 1.4, 0.6], "ssm_in_multiplier": 1.25},
    **{"ssm_out_multiplier": 0.3, "tie_word_embeddings": True},
}
NORMED = {
    "head_dim": 6,
    **{"mamba_rms_norm": True, "mamba_n_groups": 2, "attention_bias": True},
    **{"mamba_proj_bias": True, "projectors_bias": True},
}
BEFORE = {**FACTORS, "mamba_rms_norm": True, "mamba_norm_before_gate": False}


@pytest.mark.parametrize("more", [{}, FACTORS, NORMED, BEFORE], ids=str)
def test_falcon_h1(more, tmp_path):
    laws(FalconH1Config(**SIZES | more), tmp_path)

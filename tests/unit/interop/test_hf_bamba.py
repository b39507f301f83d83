"""Bamba as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import BambaConfig

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_indices": [1]},
    **{"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 8},
}
OTHER = {"mamba_n_groups": 2, "attention_bias": True, "tie_word_embeddings": True}
BOUNDS = {"mamba_proj_bias": True, "mamba_conv_bias": False, "time_step_limit": (0.3, 1.5)}


@pytest.mark.parametrize("more", [{}, OTHER, BOUNDS], ids=str)
def test_bamba(more, tmp_path):
    laws(BambaConfig(**SIZES | more), tmp_path)

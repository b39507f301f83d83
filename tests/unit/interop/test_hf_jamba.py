"""Jamba as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import JambaConfig

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_period": 3},
    **{"attn_layer_offset": 1, "mamba_d_state": 4, "num_experts": 4},
}
PLAIN = {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 3}


@pytest.mark.parametrize("more", [{}, PLAIN], ids=str)
def test_jamba(more, tmp_path):
    laws(JambaConfig(**SIZES | more), tmp_path)

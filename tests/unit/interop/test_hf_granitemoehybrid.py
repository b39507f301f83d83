"""Granite 4 as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import GraniteMoeHybridConfig

SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 6, "num_hidden_layers": 3},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "shared_intermediate_size": 10},
    **{"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 8, "num_local_experts": 5},
    **{"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    **{"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 6.0},
    **{"attention_multiplier": 0.3, "num_experts_per_tok": 3},
}
DENSE = {"num_local_experts": 0, "position_embedding_type": "rope", "tie_word_embeddings": True}


@pytest.mark.parametrize("more", [{}, DENSE], ids=str)
def test_granite(more, tmp_path):
    laws(GraniteMoeHybridConfig(**SIZES | more), tmp_path)

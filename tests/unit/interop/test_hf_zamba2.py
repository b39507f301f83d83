"""Zamba2 as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import Zamba2Config

MAMBA, HYBRID = "linear_attention", "hybrid"
SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 5},
    **{"layers_block_type": [MAMBA, HYBRID, HYBRID, MAMBA, HYBRID], "num_attention_heads": 4},
    **{"mamba_d_state": 4, "n_mamba_heads": 8, "adapter_rank": 3, "num_mem_blocks": 2},
}
ROTARY = {
    **{"use_shared_attention_adapter": True, "use_mem_rope": True, "mamba_ngroups": 2},
    **{"time_step_min": 0.3, "time_step_max": 0.9, "num_mem_blocks": 1},
}
ALONE = {"layers_block_type": [HYBRID, MAMBA], "num_hidden_layers": 2, "tie_word_embeddings": False}


@pytest.mark.parametrize("more", [{}, ROTARY, ALONE], ids=str)
def test_zamba2(more, tmp_path):
    laws(Zamba2Config(**SIZES | more), tmp_path)

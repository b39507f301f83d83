"""Nemotron-H as a model of ours."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from hf_family_laws import laws
from safetensors.torch import load_file, save_file
from transformers import NemotronHConfig, NemotronHForCausalLM

from linrnn.errors import DataError
from linrnn.interop.hf import from_pretrained

MAMBA, ATTENTION = "linear_attention", "full_attention"
SIZES = {
    **{"vocab_size": 30, "hidden_size": 16, "intermediate_size": 20, "head_dim": 6},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "ssm_state_size": 8, "n_groups": 2},
    **{"mamba_num_heads": 6, "mamba_head_dim": 4, "n_routed_experts": 6},
    **{"moe_intermediate_size": 7, "moe_shared_expert_intermediate_size": 9},
    **{"layers_block_type": [MAMBA, "mlp", MAMBA, ATTENTION, "mlp"]},
}
EXPERTS = {
    **{"layers_block_type": [MAMBA, "moe", MAMBA, ATTENTION, "moe", MAMBA, "mlp"]},
    **{"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "time_step_min": 0.3},
}
LATENT = {"layers_block_type": [ATTENTION, "moe", MAMBA], "moe_latent_size": 5, "use_bias": True}


@pytest.mark.parametrize("more", [{}, EXPERTS, LATENT], ids=str)
def test_nemotron(more, tmp_path):
    laws(NemotronHConfig(**SIZES | more), tmp_path)


def test_the_words_of_published_folders(tmp_path):
    """A pattern of letters, infinity as Python writes it, layers that predict further tokens."""
    config = NemotronHConfig(**SIZES | EXPERTS)
    NemotronHForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    path, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    values = json.loads(path.read_text())
    del values["layers_block_type"]
    values |= {"hybrid_override_pattern": "MEM*EM-", "time_step_limit": [0.0, float("inf")]}
    path.write_text(json.dumps(values))
    more = {"mtp.layers.0.norm.weight": torch.ones(16)}
    save_file(load_file(weights) | more, weights, metadata={"format": "pt"})
    ours = from_pretrained(tmp_path)
    assert ours.config.block_pattern == ("moe", "bare", "moe", "relu2")
    assert ours.dtype == torch.bfloat16


@pytest.mark.unchecked
@pytest.mark.parametrize("kinds", [["mlp", MAMBA], [MAMBA, "mlp", "moe"]])
def test_a_network_behind_no_mixer_is_refused(kinds):
    model = NemotronHForCausalLM(NemotronHConfig(**SIZES | {"layers_block_type": kinds}))
    with pytest.raises(DataError, match="must follow one of Mamba-2 or attention, got 'mlp'"):
        from_pretrained(model)

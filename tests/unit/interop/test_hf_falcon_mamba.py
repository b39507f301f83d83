"""Falcon-Mamba as a model of ours."""

import pytest

pytest.importorskip("transformers")
from hf_family_laws import laws
from transformers import FalconMambaConfig

SIZES = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "state_size": 4}
OTHER = {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "expand": 3}


@pytest.mark.parametrize("more", [{}, OTHER], ids=str)
def test_falcon_mamba(more, tmp_path):
    laws(FalconMambaConfig(**SIZES | more), tmp_path)

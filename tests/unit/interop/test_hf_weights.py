"""Weights in a folder of transformers that no model can be made of."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")

from linrnn.errors import DataError  # noqa: E402
from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM, from_mamba  # noqa: E402

pytestmark = pytest.mark.unchecked


def ours(folder):
    config = LinrnnConfig(vocab_size=7, mixer="mingru", d_model=4, n_layers=1)
    LinrnnForCausalLM(config).save_pretrained(folder)
    return LinrnnForCausalLM.from_pretrained


def theirs(folder):
    config = transformers.MambaConfig(
        vocab_size=7, hidden_size=4, state_size=2, num_hidden_layers=1, tie_word_embeddings=False
    )
    transformers.MambaForCausalLM(config).save_pretrained(folder)
    return from_mamba


FAULTS = {
    "nan": (lambda x: torch.full_like(x, math.nan), "must be finite, got {name} of shape"),
    "inf": (lambda x: torch.full_like(x, -math.inf), "must be finite, got {name} of shape"),
    "int": (lambda x: x.long(), "must be real numbers, got {name} of torch.int64"),
    "bool": (lambda x: x > 0, "must be real numbers, got {name} of torch.bool"),
    "complex": (
        lambda x: x.to(torch.complex64),
        "must be real numbers, got {name} of torch.complex64",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [ours, theirs])
def test_weights_that_are_not_finite_or_not_real_are_refused(tmp_path, kind, fault):
    read = kind(tmp_path)
    read(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    damage, message = FAULTS[fault]
    name = next(name for name in weights if name.endswith("norm.weight"))
    weights[name] = damage(weights[name])
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(DataError, match=message.format(name=name.replace(".", r"\."))):
        read(tmp_path)

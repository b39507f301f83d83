"""One way in and one way out: which family a model is of, and the words for what is none."""

import json
import re
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from hf_family_laws import peer, plainly  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from linrnn import SequenceModel  # noqa: E402
from linrnn.errors import (  # noqa: E402
    ArgumentError,
    DataError,
    DTypeError,
    LinrnnError,
    UnknownNameError,
)
from linrnn.interop._hf_pretrained import _family  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    families,
    from_config,
    from_pretrained,
    to_pretrained,
)

SIZES = {"vocab_size": 20, "hidden_size": 12, "num_hidden_layers": 2}
OF_MAMBA2 = {"num_heads": 4, "head_dim": 6, "n_groups": 2, "state_size": 5, "chunk_size": 8}
OF_JAMBA = {
    **{"intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"num_experts": 3, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 3},
}


def jamba():
    return peer(transformers.JambaConfig(**SIZES, **OF_JAMBA)).float()


@pytest.mark.parametrize("kind", families())
def test_every_file_is_a_family_of_transformers(kind):
    assert callable(_family(kind).read)
    assert kind in transformers.CONFIG_MAPPING


def test_families_with_functions_of_their_own(tmp_path):
    theirs = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SIZES, **OF_MAMBA2))
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        again = to_pretrained(from_pretrained(source))
        assert type(again) is type(theirs)
        for name, weight in theirs.state_dict().items():
            assert torch.equal(again.state_dict()[name], weight)


def test_our_own_folders_are_read(tmp_path):
    ours = LinrnnForCausalLM(LinrnnConfig(vocab_size=9, mixer="lru", d_model=4, n_layers=1))
    ours.save_pretrained(tmp_path)
    ids = torch.randint(9, (1, 5))
    assert torch.equal(from_pretrained(tmp_path)(ids).logits, ours.eval()(ids).logits)


def test_what_is_read_is_a_model_of_ours():
    ours = from_pretrained(jamba())
    assert type(ours.model) is SequenceModel
    assert not ours.training
    assert ours.config.origin["model_type"] == "jamba"


def test_a_stack_of_the_same_architecture_from_scratch():
    config = from_config(transformers.JambaConfig(**SIZES, **OF_JAMBA))
    ours = LinrnnForCausalLM(config).eval()
    theirs, ids = plainly(to_pretrained(ours)), torch.randint(1, 20, (2, 9))
    torch.testing.assert_close(theirs(ids).logits, ours(ids).logits, rtol=1e-4, atol=1e-5)
    by_hand = LinrnnForCausalLM(LinrnnConfig(**{**fields(config), "mixer": ("mamba", "attention")}))
    assert type(to_pretrained(by_hand, transformers.JambaConfig(**SIZES, **OF_JAMBA))) is type(
        theirs
    )


def fields(config):
    """Arguments of `LinrnnConfig`, without their origin."""
    names = (*config.options(), "vocab_size", "tie_word_embeddings")
    return {name: getattr(config, name) for name in names if name != "tie_embeddings"}


@pytest.mark.parametrize("part", ["experts", "router", "mamba.A_log", "final"])
def test_a_file_without_one_tensor_is_refused(part, tmp_path):
    jamba().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    del weights[next(name for name in weights if part in name)]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(DataError, match="from_pretrained: "):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_experts", 4), ("mamba_d_state", 4), ("num_hidden_layers", 3), ("hidden_size", 14)],
)
def test_a_configuration_of_another_model_is_refused(key, value, tmp_path):
    jamba().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(LinrnnError, match="from_pretrained: "):
        from_pretrained(tmp_path)


@pytest.mark.unchecked
def test_errors(tmp_path):
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}
    other = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    with pytest.raises(DataError, match=r"of one of the families .*bamba, .* got 'gpt2'"):
        from_pretrained(other)
    other.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"model_type must be .*'bamba' or .* got 'gpt2'"):
        from_pretrained(tmp_path)
    with pytest.raises(DTypeError, match="must be a model of transformers, or the folder of one"):
        from_pretrained(3)
    ours = LinrnnForCausalLM(LinrnnConfig(vocab_size=9, mixer="lru", d_model=4, n_layers=1))
    with pytest.raises(ArgumentError, match="config must be a configuration of transformers for"):
        to_pretrained(ours)
    with pytest.raises(UnknownNameError, match="family of transformers"):
        to_pretrained(ours, transformers.GPT2Config())
    with pytest.raises(DTypeError, match="model must be a LinrnnForCausalLM, got SequenceModel"):
        to_pretrained(ours.model)
    with pytest.raises(DataError, match="got 'mamba2', which has special functions"):
        from_config(transformers.Mamba2Config())
    with pytest.raises(ArgumentError, match=r"to_pretrained: .* must be .* for a model of this"):
        to_pretrained(ours, transformers.JambaConfig(**SIZES, **OF_JAMBA))


def test_the_documentation_has_a_row_of_every_family():
    page = (Path(__file__).parents[3] / "docs" / "interop.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    documented = {word for row in rows for word in re.findall(r"`([^`]+)`", row)}
    assert documented >= set(families())

"""Errors of input that cannot be read: folders, configurations, tokens, masks, caches."""

import contextlib
import json
import time

import pytest
import torch

transformers = pytest.importorskip("transformers")

from linrnn.errors import (  # noqa: E402
    ArgumentError,
    DataError,
    DTypeError,
    LinrnnError,
    ShapeError,
    UnknownNameError,
)
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    LinrnnForTokenClassification,
)

pytestmark = pytest.mark.unchecked


def small(**options):
    return LinrnnForCausalLM(
        LinrnnConfig(**{"vocab_size": 7, "mixer": "mingru", "d_model": 4, "n_layers": 1} | options)
    ).eval()


@pytest.fixture
def saved(tmp_path):
    small().save_pretrained(tmp_path)
    return tmp_path


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def load(folder):
    return LinrnnForCausalLM.from_pretrained(folder)


def test_a_folder_that_is_not_there_or_holds_no_model(tmp_path):
    with pytest.raises(DataError, match=r"must exist, got no such folder"):
        load(tmp_path / "missing")
    with pytest.raises(DataError, match=r"config\.json: a model's folder must hold its config"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(DataError, match=r"model_type must be 'linrnn', got 'gpt2'"):
        load(tmp_path)


def test_a_configuration_of_gigabytes_is_not_read(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(8 << 30)  # a hole
    with pytest.raises(DataError, match=r"got: a file of 8,589,934,592 bytes, more than"):
        load(tmp_path)


def test_a_run_folder_is_told_from_a_model(tmp_path):
    (tmp_path / "config.json").write_text('{"format": 1, "sha256": "0", "config": {}}')
    with pytest.raises(DataError, match=r"linrnn\.interop\.hf\.from_run"):
        load(tmp_path)


def test_a_newer_format_is_refused(saved):
    change(saved, linrnn_format=99)
    with pytest.raises(DataError, match=r"the format must be at most 1, got 99"):
        load(saved)


def test_an_unknown_mixer_is_named(saved):
    change(saved, mixer="mingur")
    for read in (load, transformers.AutoModelForCausalLM.from_pretrained):
        with pytest.raises((DataError, UnknownNameError), match=r"'mingur'. Did you mean 'mingru'"):
            read(saved)


def test_weights_that_do_not_fit_are_refused(saved):
    change(saved, n_layers=2)
    with pytest.raises(DataError, match=r"missing keys, such as model.blocks.1"):
        load(saved)
    change(saved, n_layers=1, encoder_norm=True)
    with pytest.raises(DataError, match=r"missing keys, such as model.encoder_norm"):
        load(saved)
    change(saved, encoder_norm=False, head_bias=False)
    with pytest.raises(DataError, match=r"1 unexpected keys, such as model.head.bias"):
        load(saved)


WRONG = (None, True, "x", -1, 0, 2**31, 2**63, 10**30, 1.5, float("nan"), [], {}, [1], "\ud800")


@pytest.mark.parametrize("name", sorted(LinrnnConfig(vocab_size=2).options() | {"vocab_size": 2}))
def test_a_value_of_any_kind_is_refused_or_taken(saved, name):
    for value in WRONG:
        change(saved, **{name: value})
        start = time.process_time()
        with contextlib.suppress(LinrnnError):
            load(saved)
        assert time.process_time() - start < 5


FIELDS = {
    *LinrnnConfig(vocab_size=2).options(),
    *("vocab_size", "mixer_options", "block_options", "linrnn_format", "use_cache", "origin"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
} - {"tie_embeddings"}  # tie_word_embeddings here
OF_NO_FIELD = (1.5j, object())
ODD = (*OF_NO_FIELD, *(w for w in WRONG if w not in (2**31, 2**63, 10**30)))  # sizes take memory


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_value_of_any_kind_is_refused_or_taken_in_a_call(name):
    refused = 0
    for value in ODD:
        try:
            small(**{name: value})
        except LinrnnError:
            refused += 1
    assert refused >= len(OF_NO_FIELD)


def test_sizes_beyond_the_weights_ask_for_no_memory(saved):
    for sizes in (
        {"d_model": 10**5},
        {"vocab_size": 10**12},
        {"mixer_options": {"expansion": 1e9}},
    ):
        before = json.loads((saved / "config.json").read_text())
        change(saved, **sizes)
        with pytest.raises(
            DataError, match=r"to suit the weights, got|must fit into .* bytes, for the size of its"
        ):
            load(saved)
        change(saved, **{name: before.get(name) for name in sizes})


def test_damaged_or_pickled_weights_are_refused(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DataError, match=r"must be complete and in safetensors"):
        load(saved)
    weights.unlink()
    torch.save(small().state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(DataError, match=r"must be complete and in safetensors"):
        load(saved)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
CALLS = [
    ({"input_ids": IDS + 2}, ArgumentError, r"got 8 in row 1 at position 2. Is it the tokenizer"),
    ({"input_ids": IDS - 2}, ArgumentError, "between 0 and 6, or 7 for padding, got -1 in row 0"),
    ({"input_ids": IDS[:, :0]}, ArgumentError, r"must hold a token, got shape \(2, 0\)"),
    ({"input_ids": IDS[0]}, ShapeError, r"input_ids must have shape \(batch, time\), got \(3,\)"),
    ({"input_ids": IDS.float()}, DTypeError, "must be integers, got torch.float32"),
    ({}, DTypeError, "must be a tensor of token ids, got NoneType"),
    ({"inputs_embeds": torch.ones(1, 2, 3)}, ShapeError, r"time, d_model=4\), got \(1, 2, 3\)"),
    (
        {"inputs_embeds": torch.ones(1, 0, 4)},
        ArgumentError,
        r"must hold a token, got shape \(1, 0,",
    ),
    ({"inputs_embeds": IDS[..., None]}, DTypeError, "must be real numbers, got torch.int64"),
    ({"input_ids": IDS, "inputs_embeds": torch.ones(2, 3, 4)}, ArgumentError, "instead.*got both"),
    ({"input_ids": IDS, "output_attentions": True}, ArgumentError, "must be left out"),
    (
        {"input_ids": IDS, "attention_mask": torch.ones(2, 4)},
        ShapeError,
        r"attention_mask must have shape \(2, 3\).*got \(2, 4\)",
    ),
    (
        {"input_ids": IDS, "past_key_values": transformers.DynamicCache()},
        DTypeError,
        "past_key_values must be a LinrnnCache, got DynamicCache",
    ),
]


@pytest.mark.parametrize(("arguments", "error", "message"), CALLS)
def test_inputs_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        small()(**arguments)


def test_the_cache_of_another_model_is_refused():
    cache = small().forward(IDS).past_key_values
    for option, value in (("mixer", "minlstm"), ("n_layers", 2), ("d_model", 6)):
        rule = (
            rf"must be of this model, whose {option} is {value!r}, got those of one whose {option}"
        )
        with pytest.raises(ArgumentError, match=rule):
            small(**{option: value})(IDS, past_key_values=cache)
    with pytest.raises(ShapeError, match=r"input_ids must have shape \(batch=2, time\), got \(1,"):
        small()(IDS[:1], past_key_values=cache)
    assert cache.get_seq_length() == 3


def test_attention_cannot_pass_over_padding():
    model = small(mixer="attention")
    cache = model(IDS).past_key_values
    late = torch.tensor([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    with pytest.raises(ArgumentError, match=r"got 0 in row 0. Read each text on its own"):
        model(IDS[:, :2], attention_mask=late, past_key_values=cache)


def test_a_cache_is_cut_only_as_far_as_it_was_told_to_remember():
    model = small()
    cache = model(IDS).past_key_values
    cache.crop(0)
    with pytest.raises(ArgumentError, match=r"from 0 to 0, got -1.*keep a copy"):
        cache.crop(-1)
    cache.activate_past_recording()
    model(IDS, past_key_values=cache)
    for wrong in (-4, 1):
        with pytest.raises(ArgumentError, match=rf"from -3, what was read .* to 0, got {wrong}"):
            cache.crop(wrong)
    with pytest.raises(ArgumentError, match=r"rows must be chosen before activate_past_recording"):
        cache.reorder_cache(torch.tensor([0, 0]))
    assert cache.get_seq_length() == 6


def test_layers_of_several_rates_have_no_hidden_states_to_return():
    with pytest.raises(ArgumentError, match=r"output_hidden_states must be False.*tiers=\(2,\)"):
        small(tiers=(2,))(IDS, output_hidden_states=True)


def test_generate_says_what_it_cannot_do():
    model = small()
    cache = model(IDS).past_key_values
    with pytest.raises(ArgumentError, match=r"must be the whole text"):
        model.generate(IDS, past_key_values=cache, max_new_tokens=2, pad_token_id=7)
    with pytest.raises(ArgumentError, match=r"cache_implementation must be None.*got 'quantized'"):
        model.generate(IDS, max_new_tokens=2, cache_implementation="quantized", pad_token_id=7)
    with pytest.raises(ArgumentError, match=r"where the state does not grow, 'static'.*'static'"):
        small(mixer="attention").generate(IDS, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(ValueError, match=r"only supported for batch_size = 1"):
        model.generate(IDS, max_new_tokens=2, assistant_model=small(), pad_token_id=7)


LABELS = {
    "of another length": (ShapeError, lambda ids: ids[:, :2]),
    "of one row": (ShapeError, lambda ids: ids[0]),
    "fractions": (DTypeError, lambda ids: ids.float()),
    "truth values": (DTypeError, lambda ids: ids > 1),
    "a list": (DTypeError, lambda ids: ids.tolist()),
    "outside": (ArgumentError, lambda ids: ids + 100),
    "negative": (ArgumentError, lambda ids: ids - 50),
}


@pytest.mark.parametrize(("error", "labels"), LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("kind", [LinrnnForCausalLM, LinrnnForTokenClassification])
@pytest.mark.parametrize("name", ["labels", "shift_labels"])
def test_labels_that_are_none(kind, name, error, labels):
    if name == "shift_labels" and kind is not LinrnnForCausalLM:
        pytest.skip("takes no labels that are shifted")
    model = kind(LinrnnConfig(vocab_size=7, mixer="mingru", d_model=4, n_layers=1, num_labels=7))
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    with pytest.raises(error, match="labels must"):
        model(ids, **{name: labels(ids)})
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        loss = model.eval()(ids, **{name: ids.to(dtype)}).loss
        assert torch.equal(loss, model(ids, **{name: ids}).loss)

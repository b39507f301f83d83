"""The properties that transformers' own tests ask of every model and of its generation."""

import copy
import inspect
import pathlib
import re

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")

from hf_common import HOLDS, NOT  # noqa: E402

from linrnn.errors import DataError  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    LinrnnForSequenceClassification,
    LinrnnForTokenClassification,
    LinrnnModel,
)

CLASSES = (
    LinrnnModel,
    LinrnnForCausalLM,
    LinrnnForSequenceClassification,
    LinrnnForTokenClassification,
)
AUTO = dict(
    zip(
        CLASSES,
        (
            transformers.AutoModel,
            transformers.AutoModelForCausalLM,
            transformers.AutoModelForSequenceClassification,
            transformers.AutoModelForTokenClassification,
        ),
        strict=True,
    )
)
MIXERS = ("mingru", "mamba", "attention")
SIZE, WIDTH, LAYERS = 11, 8, 2
GREEDY = {"do_sample": False, "max_new_tokens": 4}


def configured(mixer="mingru", **options):
    sizes = {"vocab_size": SIZE, "d_model": WIDTH, "n_layers": LAYERS, "num_labels": 3}
    return LinrnnConfig(mixer=mixer, **{**sizes, "block": "mlp", **options})


def made(cls, mixer="mingru", **options):
    torch.manual_seed(0)
    return cls(configured(mixer, **options)).eval()


def tokens(*shape):
    return torch.randint(SIZE, shape)


def labelled(cls, ids):
    if cls is LinrnnForCausalLM:
        return {"labels": ids}
    if cls is LinrnnForSequenceClassification:
        return {"labels": ids[:, 0] % 3}
    return {"labels": ids % 3} if cls is LinrnnForTokenClassification else {}


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def gradients(model, ids, **options):
    """Gradients of every parameter, for the loss of a model or the sum of its outputs."""
    model.zero_grad()
    out = model(ids, **labelled(type(model), ids), **options)
    (out.loss if "loss" in out else out[0].square().sum()).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- of models -----------------------------------------------------------------------------------


def saved(cls, mixer, folder):
    model, ids = made(cls, mixer), tokens(2, 6)
    model.save_pretrained(folder)
    for read in (cls, AUTO[cls]):
        again = read.from_pretrained(folder)
        assert type(again) is cls
        assert torch.equal(again(ids)[0], model(ids)[0])
    assert type(AUTO[cls].from_config(configured(mixer))) is cls


def no_checkpoint(cls, mixer, folder):
    model, ids = made(cls, mixer), tokens(2, 6)
    again = cls.from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(again.eval()(ids)[0], model(ids)[0])


def mismatched(cls, mixer, folder):
    model = made(cls, mixer)
    model.save_pretrained(folder)
    if cls not in CLASSES[2:]:
        return
    with pytest.raises(DataError):
        cls.from_pretrained(folder, num_labels=5)
    again = cls.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    assert again.score.out_features == 5
    assert 0 < again.score.weight.abs().max() <= WIDTH**-0.5  # as torch.nn.Linear draws it
    assert torch.equal(again.model.encoder.weight, model.model.encoder.weight)


def missing_head(cls, mixer, folder):
    """From the folder of any class the stack is read, and what it has no head for is drawn."""
    ids = tokens(2, 6)
    for other in CLASSES:
        model = made(other, mixer, tie_word_embeddings=True)
        model.save_pretrained(folder / other.__name__)
        again, info = cls.from_pretrained(folder / other.__name__, output_loading_info=True)
        assert all(name.startswith(("score.", "model.head.")) for name in info["missing_keys"])
        assert again(ids)[0].isfinite().all()
        hidden = again(ids, output_hidden_states=True).hidden_states[-1]
        close(hidden, model(ids, output_hidden_states=True).hidden_states[-1])
        cls.from_pretrained(folder / other.__name__)


def determinism(cls, mixer, folder):
    model, ids = made(cls, mixer, dropout=0.5), tokens(2, 6)
    assert torch.equal(model(ids)[0], model(ids)[0])


def batching(cls, mixer, folder):
    model, ids = made(cls, mixer), tokens(3, 6)
    out = model(ids, output_hidden_states=True)
    for i in range(3):
        alone = model(ids[i : i + 1], output_hidden_states=True)
        close(out[0][i], alone[0][0])
        close(out.hidden_states[1][i], alone.hidden_states[1][0])


def signature(cls, mixer, folder):
    assert list(inspect.signature(cls.forward).parameters)[1] == cls.main_input_name == "input_ids"


def training(cls, mixer, folder):
    model, ids = made(cls, mixer).train(), tokens(2, 6)
    found = gradients(model, ids)
    assert found.keys() == dict(model.named_parameters()).keys()
    optimiser = torch.optim.SGD(model.parameters(), 0.05)
    before = model.eval()(ids, **labelled(cls, ids))
    optimiser.step()
    after = model(ids, **labelled(cls, ids))
    if "loss" in before:
        assert after.loss < before.loss
    assert before.get("past_key_values", 0) is not None
    assert model.train()(ids).get("past_key_values") is None


def checkpointing(cls, mixer, folder):
    model, ids = made(cls, mixer).train(), tokens(2, 6)
    expected = gradients(model, ids)
    for options in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        model.activation_checkpointing_enable(options)
        for name, found in gradients(model, ids, output_hidden_states=True).items():
            close(found, expected[name])
    blocks, count = model.model.blocks, []
    handles = [block.register_forward_pre_hook(lambda *_: count.append(1)) for block in blocks]
    for every, calls in ((1, 2 * LAYERS), (2, LAYERS + 1)):  # computed again, each or every other
        model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
        count.clear()
        gradients(model, ids)
        # a gradient that asks for another inside of it has its block computed again for each
        assert len(count) == calls if mixer != "attention" else len(count) >= calls
    model.eval()
    count.clear()
    gradients(model, ids)
    assert len(count) == LAYERS
    for handle in handles:
        handle.remove()


def checkpointing_switch(cls, mixer, folder):
    model = made(cls, mixer)
    assert not model.is_activation_checkpointing
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    model.activation_checkpointing_disable()
    assert not model.is_activation_checkpointing
    assert cls(configured(mixer, gradient_checkpointing=True)).is_activation_checkpointing


def adapters(cls, mixer, folder):
    """LoRA's matrices are trained, alone, with checkpointing too; merged they give the same."""
    peft = pytest.importorskip("peft")
    kinds = ("FEATURE_EXTRACTION", "CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS")
    options = {"task_type": kinds[CLASSES.index(cls)], "target_modules": "all-linear", "r": 2}
    if cls is LinrnnForTokenClassification:  # peft trains it whole, and would adapt it too
        options["exclude_modules"] = ["score"]
    model, ids = made(cls, mixer), tokens(2, 6)
    before = copy.deepcopy(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    close(adapted(ids)[0], before(ids)[0])
    layers = [m for m in adapted.modules() if hasattr(m, "lora_B")]
    assert len(layers) >= 2 * LAYERS
    with torch.no_grad():
        for layer in layers:
            layer.lora_B["default"].weight.normal_()
    for enable in (False, True):
        if enable:
            model.activation_checkpointing_enable()
        adapted.train().zero_grad()
        out = adapted(ids, **labelled(cls, ids))
        (out["loss"] if "loss" in out else out[0].square().sum()).backward()
        trained = {n for n, p in adapted.named_parameters() if p.requires_grad}
        assert all("lora_" in n or "modules_to_save" in n for n in trained)
        assert all(adapted.get_parameter(n).grad.any() for n in trained if "lora_" in n)
    model.activation_checkpointing_disable()
    adapted.eval()
    expected = adapted(ids)[0]
    assert not torch.allclose(expected, before(ids)[0])
    adapted.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(before, folder).eval()
    close(again(ids)[0], expected)
    if cls is LinrnnForCausalLM:
        greedy = adapted.generate(input_ids=ids, **GREEDY)
        assert torch.equal(adapted.generate(input_ids=ids, use_cache=False, **GREEDY), greedy)
    close(adapted.merge_and_unload()(ids)[0], expected)


def items_in_batch(cls, mixer, folder):
    """The loss of two halves, each told of how many labels there are, is that of the whole."""
    if cls is LinrnnModel:
        return
    kinds = ["single_label_classification"]
    if cls is LinrnnForSequenceClassification:
        kinds += ["regression", "multi_label_classification"]
    for kind in kinds:
        model, ids = made(cls, mixer, problem_type=kind), tokens(4, 6)
        labels = labelled(cls, ids)["labels"].clone()
        if labels.ndim == 2:
            labels[0, 2:] = -100
        if kind != kinds[0]:
            labels = torch.rand(4, 3)
        shifted = labels[:, 1:] if cls is LinrnnForCausalLM else labels
        count = (shifted != -100).sum()
        halves = [
            model(ids[rows], labels=labels[rows], num_items_in_batch=count).loss
            for rows in (slice(0, 1), slice(1, 4))
        ]
        close(sum(halves), model(ids, labels=labels).loss)


def hidden_states(cls, mixer, folder):
    model = made(cls, mixer)
    ids = tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    hidden = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(hidden) == LAYERS + 1
    assert all(h.shape == (2, 6, WIDTH) for h in hidden)
    alone = model(ids[1:, 2:], output_hidden_states=True).hidden_states
    for h, expected in zip(hidden, alone, strict=True):
        close(h[1, 2:], expected[0])
    close(hidden[0][0], model.get_input_embeddings()(ids)[0])
    assert model(ids).hidden_states is None
    model.config.output_hidden_states = True
    out = model(ids)
    out.hidden_states[1].retain_grad()
    out[0].square().sum().backward()
    assert out.hidden_states[0] is not None
    assert all(h.grad_fn is not None for h in out.hidden_states)


def resized(cls, mixer, folder):
    for tied in (False, True):
        model, ids = made(cls, mixer, tie_word_embeddings=tied), tokens(2, 6)
        before = model(ids)[0]
        model.resize_token_embeddings(SIZE + 4)
        assert model.config.vocab_size == model.get_input_embeddings().num_embeddings == SIZE + 4
        after = model(torch.full((1, 2), SIZE + 3))
        assert after[0].isfinite().all()
        close(model(ids)[0][..., : before.shape[-1]], before)
        if cls is LinrnnForCausalLM:
            assert after.logits.shape[-1] == SIZE + 4
            generated = model.generate(ids, **GREEDY)
            assert torch.equal(generated, model.generate(ids, use_cache=False, **GREEDY))
        model.resize_token_embeddings(SIZE - 1)
        assert model.get_input_embeddings().weight.shape == (SIZE - 1, WIDTH)


def embeddings(cls, mixer, folder):
    model = made(cls, mixer)
    assert isinstance(model.get_input_embeddings(), torch.nn.Embedding)
    new = torch.nn.Embedding(SIZE, WIDTH)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings() is new
    heads = isinstance(model.get_output_embeddings(), torch.nn.Linear)
    assert heads == (cls is LinrnnForCausalLM)


def tied(cls, mixer, folder):
    if cls is not LinrnnForCausalLM:
        return
    for wanted in (True, False):
        model, ids = made(cls, mixer, tie_word_embeddings=wanted), tokens(2, 6)
        model.save_pretrained(folder / str(wanted))
        again, info = cls.from_pretrained(folder / str(wanted), output_loading_info=True)
        assert not info["missing_keys"]
        assert (again.model.head.weight is again.model.encoder.weight) is wanted
        assert torch.equal(again(ids).logits, model(ids).logits)


def tuples(cls, mixer, folder):
    model, ids = made(cls, mixer), tokens(2, 6)
    for options in ({}, {"output_hidden_states": True}, labelled(cls, ids)):
        whole, parts = model(ids, **options), model(ids, return_dict=False, **options)
        assert isinstance(parts, tuple)
        assert len(parts) == len(whole.to_tuple())
        for a, b in zip(whole.to_tuple(), parts, strict=True):
            if isinstance(a, torch.Tensor):
                assert torch.equal(a, b)


def embedded(cls, mixer, folder):
    model, ids = made(cls, mixer, encoder_norm=True, encoder_scale=2.0), tokens(2, 6)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    given = model.get_input_embeddings()(ids)
    by_ids = model(ids, attention_mask=mask)[0]
    close(model(inputs_embeds=given, attention_mask=mask)[0], by_ids)
    changed = given.clone()
    changed[0, :3] = 9.0  # padding
    close(model(inputs_embeds=changed, attention_mask=mask)[0], by_ids)


def problem_types(cls, mixer, folder):
    if cls is not LinrnnForSequenceClassification:
        return
    ids = tokens(4, 6)
    losses = {
        "regression": (1, torch.rand(4), lambda y, t: F.mse_loss(y[:, 0], t)),
        "single_label_classification": (3, torch.tensor([0, 2, 1, 1]), F.cross_entropy),
        "multi_label_classification": (3, torch.rand(4, 3), F.binary_cross_entropy_with_logits),
    }
    for kind, (count, labels, loss) in losses.items():
        model = made(cls, mixer, num_labels=count)  # found from the labels
        out = model(ids, labels=labels)
        assert model.config.problem_type == kind
        close(out.loss, loss(out.logits, labels))


def disk(cls, mixer, folder):
    pytest.importorskip("accelerate")
    model, ids = made(cls, mixer, conv_width=2), tokens(2, 6)
    model.save_pretrained(folder / "model")
    parts = {f"model.{name}" for name, _ in model.model.named_children()} - {"model.blocks"}
    places = dict.fromkeys([*parts, "model.blocks.0", "score", "dropout"], "cpu")
    places |= {"model.blocks.1": "disk"}
    here = cls.from_pretrained(folder / "model", device_map="cpu")
    assert torch.equal(here(ids)[0], model(ids)[0])
    away = cls.from_pretrained(
        folder / "model", device_map=places, offload_folder=str(folder / "weights")
    )
    assert any(p.is_meta for p in away.parameters())
    close(away(ids)[0], model(ids)[0])
    if cls is LinrnnForCausalLM:
        assert torch.equal(away.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


def compiled(cls, mixer, folder):
    model, ids = made(cls, mixer).train(), tokens(2, 6)
    expected = gradients(model, ids)
    model.zero_grad()
    torch.compile(model, backend="aot_eager")(ids, labels=ids).loss.backward()
    for name, p in model.named_parameters():
        close(p.grad, expected[name])


def configuration(cls, mixer, folder):
    config = configured(mixer, problem_type="regression", output_hidden_states=True)
    config.save_pretrained(folder)
    again = transformers.AutoConfig.from_pretrained(folder)
    elsewhere = {"auto_map": again.auto_map, "_name_or_path": again.name_or_path}
    assert again.to_dict() == config.to_dict() | elsewhere
    assert (config.hidden_size, config.num_hidden_layers) == (WIDTH, LAYERS)
    named = configured(num_labels=2, id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    named.save_pretrained(folder)
    assert transformers.AutoConfig.from_pretrained(folder).id2label == {0: "no", 1: "yes"}


# --- of generation -------------------------------------------------------------------------------

DETAILED = {
    **{"return_dict_in_generate": True, "output_scores": True, "output_logits": True},
    "output_hidden_states": True,
}


def greedy(model, ids):
    expected = ids
    for _ in range(4):  # one pass over all for each token
        expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], 1)
    for use_cache in (True, False):
        out = model.generate(ids, use_cache=use_cache, **GREEDY, **DETAILED)
        assert torch.equal(out.sequences, expected)
        assert len(out.scores) == len(out.logits) == len(out.hidden_states) == 4
        assert len(out.hidden_states[0]) == LAYERS + 1
        close(out.logits[2], model(expected[:, :-2]).logits[:, -1])
        assert (out.past_key_values is not None) == use_cache


def sampled(model, ids):
    kinds = (
        {"top_k": 4, "top_p": 0.8, "temperature": 0.7, "min_p": 0.01},
        {"num_return_sequences": 3, "typical_p": 0.9, "epsilon_cutoff": 1e-3},
        {"num_beams": 2, "num_return_sequences": 2},
    )
    for options in kinds:
        runs = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            kwargs = {"do_sample": True, "max_new_tokens": 4, "use_cache": use_cache}
            runs.append(model.generate(ids, **kwargs, **options, **DETAILED).sequences)
        assert torch.equal(*runs)
        assert runs[0].shape == (2 * options.get("num_return_sequences", 1), ids.shape[1] + 4)


def beams(model, ids):
    kinds = (
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0, "early_stopping": True},
        {"num_beams": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
        {"num_beams": 2, "bad_words_ids": [[1, 0], [3]], "forced_eos_token_id": 2},
    )
    for options in kinds:
        cached, plain = (
            model.generate(ids, use_cache=use, **GREEDY, **options, **DETAILED)
            for use in (True, False)
        )
        assert torch.equal(cached.sequences, plain.sequences)
        close(cached.sequences_scores, plain.sequences_scores)


def from_nothing(model, ids):
    out = model.generate(bos_token_id=3, **GREEDY)
    assert torch.equal(out, model.generate(torch.tensor([[3]]), **GREEDY))


def assisted(model, ids):
    ids = torch.cat([ids, ids], 1)[:1]
    kwargs = {**GREEDY, "max_new_tokens": 12}
    expected = model.generate(ids, **kwargs)
    helper = made(LinrnnForCausalLM, "lru")
    for options in (
        *({"assistant_model": helper}, {"assistant_model": copy.deepcopy(model)}),
        {"prompt_lookup_num_tokens": 3},
    ):
        out = model.generate(ids, **kwargs, **options, **DETAILED)
        assert torch.equal(out.sequences, expected)
        assert len(out.hidden_states) == 12
        cache = out.past_key_values  # and what it says about the next token is right
        new = out.sequences[:, cache.get_seq_length() :]
        close(model(new, past_key_values=cache).logits[:, -1], model(expected).logits[:, -1])
    end = int(expected[0, ids.shape[1] + 3])
    ended = model.generate(ids, eos_token_id=end, **kwargs)
    looked_up = model.generate(ids, eos_token_id=end, prompt_lookup_num_tokens=3, **kwargs)
    assert torch.equal(ended, looked_up)
    torch.manual_seed(0)
    drawn = model.generate(ids, assistant_model=helper, do_sample=True, max_new_tokens=5)
    assert drawn.shape == (1, ids.shape[1] + 5)


def left_padding(model, ids):
    padded = torch.cat([torch.full((2, 5), SIZE), ids], 1)
    mask = (padded != SIZE).long()
    for options in (GREEDY, GREEDY | {"num_beams": 2}, GREEDY | {"use_cache": False}):
        expected = model.generate(ids, **options)
        out = model.generate(padded, attention_mask=mask, **options)
        assert torch.equal(out[:, 5:], expected)


def generate_embedded(model, ids):
    given = model.get_input_embeddings()(ids)
    for options in (GREEDY, GREEDY | {"num_beams": 2}, GREEDY | {"use_cache": False}):
        expected = model.generate(ids, **options)[:, ids.shape[1] :]
        assert torch.equal(model.generate(inputs_embeds=given, **options), expected)
    other = model.generate(inputs_embeds=torch.randn_like(given) * 3, **GREEDY, **DETAILED)
    first = model.generate(inputs_embeds=given, **GREEDY, **DETAILED)
    assert not torch.allclose(other.logits[0], first.logits[0])
    both = model.generate(ids, inputs_embeds=given, **GREEDY)
    assert torch.equal(both, model.generate(ids, **GREEDY))


def continued(model, ids):
    whole = model.generate(ids, **GREEDY | {"max_new_tokens": 7})
    first = model.generate(ids, **GREEDY, return_dict_in_generate=True)
    rest = GREEDY | {"max_new_tokens": 3}
    second = model.generate(first.sequences, past_key_values=first.past_key_values, **rest)
    assert torch.equal(second, whole)
    read = model.get_input_embeddings()
    first = model.generate(inputs_embeds=read(ids), **GREEDY, return_dict_in_generate=True)
    more = torch.cat([ids, first.sequences], 1)
    second = model.generate(inputs_embeds=read(more), past_key_values=first.past_key_values, **rest)
    assert torch.equal(second, whole[:, -3:])


def static(model, ids):
    expected = model.generate(ids, **GREEDY)
    kinds = ["dynamic"] if model.config.mixer == "attention" else ["static", "dynamic"]
    for kind in kinds:
        assert torch.equal(model.generate(ids, cache_implementation=kind, **GREEDY), expected)


def few_logits(model, ids):
    whole = model(ids).logits
    close(model(ids, logits_to_keep=1).logits, whole[:, -1:])
    assert "logits_to_keep" in inspect.signature(model.forward).parameters


OF_GENERATION = list(HOLDS.values())[list(HOLDS).index("greedy_generate") :]
OF_MODELS = sorted({*HOLDS.values()} - {*OF_GENERATION, "compiled"})


@pytest.mark.parametrize(
    ("cls", "mixer"),
    [
        *((LinrnnForCausalLM, mixer) for mixer in MIXERS),
        *((cls, "mingru") for cls in CLASSES if cls is not LinrnnForCausalLM),
    ],
)
@pytest.mark.parametrize("name", OF_MODELS)
def test_models_are_as_transformers_asks(name, cls, mixer, tmp_path):
    globals()[name](cls, mixer, tmp_path)


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("name", sorted({*OF_GENERATION}))
def test_generation_is_as_transformers_asks(name, mixer):
    model = made(LinrnnForCausalLM, mixer)
    model.generation_config.pad_token_id = SIZE
    globals()[name](model, tokens(2, 4))


@pytest.mark.slow
@pytest.mark.unchecked
def test_a_compiled_model_has_the_same_gradients():
    compiled(LinrnnForCausalLM, "mingru", None)


def test_the_page_has_the_list():
    page = pathlib.Path(__file__).parents[3] / "docs" / "interop.md"
    section = page.read_text().partition("## Tests of transformers")[2]
    table = section.partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert dict(rows) == dict.fromkeys(HOLDS, "holds") | NOT

"""Documents in one row: read as if each were alone, by every way transformers has to say it."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

from linrnn.errors import (  # noqa: E402
    ArgumentError,
    DTypeError,
    LinrnnError,
    ShapeError,
    UnknownNameError,
)
from linrnn.interop.hf import (  # noqa: E402
    LinrnnConfig,
    LinrnnForCausalLM,
    LinrnnForSequenceClassification,
    LinrnnForTokenClassification,
    LinrnnModel,
)

SIZE, LENGTHS = 31, (5, 1, 9, 3)
MIXERS = ("mingru", "mamba", "attention", "delta_net")
CLASSES = (
    LinrnnModel,
    LinrnnForCausalLM,
    LinrnnForSequenceClassification,
    LinrnnForTokenClassification,
)
#: what DataCollatorWithFlattening can be told, and so what says where documents begin
WAYS = {
    "positions": {},
    "positions from 2": {"position_ids_start": 2},
    "numbers": {"return_position_ids": False, "return_seq_idx": True},
    "lengths": {"return_position_ids": False, "return_flash_attn_kwargs": True},
    "all": {"return_seq_idx": True, "return_flash_attn_kwargs": True},
}


def made(cls=LinrnnForCausalLM, mixer="mingru", **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": SIZE, "d_model": 8, "n_layers": 2, "norm": "rms", "block": "mlp"}
    return cls(LinrnnConfig(mixer=mixer, **{**sizes, "conv_width": 3, **options})).eval()


@pytest.fixture
def documents():
    torch.manual_seed(1)
    return [torch.randint(SIZE, (n,)).tolist() for n in LENGTHS]


def flattened(documents, **options):
    collate = transformers.DataCollatorWithFlattening(return_tensors="pt", **options)
    return dict(collate([{"input_ids": ids} for ids in documents]))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def alone(model, documents):
    """Logits of each document, and the loss over all tokens that are predicted."""
    outs = [model(torch.tensor([ids]), labels=torch.tensor([ids])) for ids in documents]
    counts = [len(ids) - 1 for ids in documents]
    losses = [out.loss * n for out, n in zip(outs, counts, strict=True) if n]
    return torch.cat([out.logits for out in outs], 1), sum(losses) / sum(counts)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mixer", MIXERS)
def test_flattened_documents_are_read_alone(way, mixer, documents):
    model = made(mixer=mixer).train()
    logits, loss = alone(model, documents)
    expected = gradients(model, loss)
    out = model(**flattened(documents, **WAYS[way]))
    close(out.logits, logits)
    close(out.loss, loss)
    found = gradients(model, out.loss)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        close(value, expected[name])


@pytest.mark.parametrize("cls", [LinrnnModel, LinrnnForTokenClassification])
def test_other_models_read_them_alone_too(cls, documents):
    model, batch = made(cls), flattened(documents)
    if cls is LinrnnModel:
        del batch["labels"]
    else:
        batch["labels"] = batch["input_ids"] % 2
    whole = model(**batch)[0 if cls is LinrnnModel else 1]
    parts = [model(torch.tensor([ids]))[0] for ids in documents]
    close(whole, torch.cat(parts, 1))


def test_a_row_with_one_answer_holds_one_document(documents):
    model, batch = made(LinrnnForSequenceClassification), flattened(documents)
    with pytest.raises(ArgumentError):
        model(batch["input_ids"], position_ids=batch["position_ids"])
    ids = torch.tensor([documents[0]])
    positions = torch.arange(ids.shape[1])[None]
    close(model(ids, position_ids=positions).logits, model(ids).logits)


@pytest.mark.parametrize("options", [{"use_reentrant": False}, {"use_reentrant": True}])
def test_checkpointing_keeps_documents_apart(options, documents):
    model = made().train()
    batch = flattened(documents)
    expected = gradients(model, model(**batch).loss)
    model.activation_checkpointing_enable(options)
    for name, value in gradients(model, model(**batch).loss).items():
        close(value, expected[name])


def test_rows_with_padding_and_a_cache_agree_with_documents_alone(documents):
    """A random walk over masks, cuts and keywords against each document read by itself."""
    model = made(conv_width=2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        rows, time = 3, 12
        ids = torch.randint(SIZE, (rows, time), generator=generator)
        mask = torch.rand(rows, time, generator=generator) < 0.7
        number = (torch.rand(rows, time, generator=generator) < 0.3).long().cumsum(1)
        expected = torch.zeros(rows, time, SIZE)
        position = torch.zeros_like(ids)
        for row in range(rows):
            for document in number[row].unique():
                steps = (mask[row] & (number[row] == document)).nonzero()[:, 0]
                if len(steps):
                    expected[row, steps] = model(ids[row, steps][None]).logits[0]
                    position[row, steps] = torch.arange(len(steps))
        new = mask & (position == 0)
        valid = mask.long()
        for said in (
            {"seq_idx": number},
            {"position_ids": position},
            {"reset": new},
            {"seq_idx": number, "position_ids": position, "reset": new},
        ):
            close(model(ids, attention_mask=valid, **said).logits, expected)
        cut = int(torch.randint(1, time, (), generator=generator))
        first = model(ids[:, :cut], attention_mask=valid[:, :cut], reset=new[:, :cut])
        rest = {"reset": new[:, cut:], "attention_mask": valid}
        second = model(ids[:, cut:], past_key_values=first.past_key_values, **rest)
        close(torch.cat([first.logits, second.logits], 1), expected)


def test_a_reset_at_padding_is_for_the_next_token():
    model, ids = made(), torch.randint(SIZE, (1, 6))
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]])
    reset = torch.tensor([[False, False, True, False, False, False]])
    out = model(ids, attention_mask=mask, reset=reset).logits
    close(out[:, 4:], model(ids[:, 4:]).logits)
    with pytest.raises(ArgumentError):
        model(ids[:, :4], attention_mask=mask[:, :4], reset=reset[:, :4])


def test_a_position_of_0_begins_anew_after_a_cache_and_another_goes_on():
    model = made()
    ids, more = torch.randint(SIZE, (2, 4)), torch.randint(SIZE, (2, 3))
    for positions, expected in (
        (torch.arange(3)[None], model(more).logits),
        (torch.arange(4, 7)[None], model(torch.cat([ids, more], 1)).logits[:, 4:]),
    ):
        cache = model(ids).past_key_values
        close(model(more, past_key_values=cache, position_ids=positions).logits, expected)


def test_what_is_cropped_is_read_again_with_its_documents():
    model, ids = made(), torch.randint(SIZE, (1, 8))
    reset = torch.zeros(1, 8, dtype=torch.bool)
    reset[:, 5] = True
    cache = model(ids[:, :2]).past_key_values
    cache.activate_past_recording()
    model(ids[:, 2:], past_key_values=cache, reset=reset[:, 2:])
    cache.crop(-1)
    close(model(ids[:, 7:], past_key_values=cache).logits, model(ids[:, 5:]).logits[:, -1:])


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 2}])
@pytest.mark.parametrize("name", ["seq_idx", "reset", "position_ids"])
def test_generation_goes_on_after_the_last_document_of_a_prompt(name, options):
    model, ids = made(), torch.randint(SIZE, (2, 6))
    model.generation_config.pad_token_id = SIZE
    said = {
        "seq_idx": torch.tensor([[0, 0, 1, 1, 1, 2]] * 2),
        "reset": torch.tensor([[False, False, True, False, False, True]] * 2),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2, 0]] * 2),
    }
    greedy = {"do_sample": False, "max_new_tokens": 4, **options}
    out = model.generate(ids, **{name: said[name]}, **greedy)
    assert torch.equal(out[:, 6:], model.generate(ids[:, 5:], **greedy)[:, 1:])


def test_a_trainer_keeps_documents_apart(tmp_path, documents):
    """Losses of transformers' own loop, training and evaluation, are those of documents alone."""
    pytest.importorskip("accelerate")
    model = made()
    expected = alone(model, documents)[1].item()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(documents),
        per_device_eval_batch_size=len(documents),
        max_steps=2,
        learning_rate=1e-12,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": ids} for ids in documents],
        eval_dataset=[{"input_ids": ids} for ids in documents],
        data_collator=transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([expected] * 2, rel=1e-3)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)


def test_labels_that_are_shifted_already_give_the_same_loss():
    model, ids = made(), torch.randint(SIZE, (2, 6))
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    expected = model(ids, labels=ids).loss
    close(model(ids, shift_labels=shifted).loss, expected)
    close(model(ids, labels=ids, ignore_index=-7).loss, expected)


IDS = torch.arange(6).view(2, 3)
T, F = True, False
WRONG = {
    "a position that jumps": ({"position_ids": [[0, 1, 3]]}, "rise by 1"),
    "a document that begins in its middle": ({"position_ids": [[0, 1, 1]]}, "rise by 1"),
    "a position below 0": ({"position_ids": [[-1, 0, 1]]}, "rise by 1"),
    "a document in two pieces": ({"seq_idx": [[0, 1, 0]]}, "in one piece"),
    "a number below 0": ({"seq_idx": [[-1, -1, 0]]}, "in one piece"),
    "lengths that end too early": ({"cu_seq_lens_q": [0, 3, 5]}, "rise from 0 to the 6"),
    "lengths that fall": ({"cu_seq_lens_q": [0, 4, 3, 6]}, "rise from 0"),
    "a document over two rows": ({"cu_seq_lens_q": [0, 2, 6]}, "rise from 0"),
    "queries and keys that differ": (
        {"cu_seq_lens_q": [0, 3, 6], "cu_seq_lens_k": [0, 1, 3, 6]},
        "must agree",
    ),
    "positions and numbers that differ": (
        {"position_ids": [[0, 1, 0]], "seq_idx": [[0, 1, 1]]},
        "must agree",
    ),
    "a reset within a document": (
        {"position_ids": [[0, 1, 2]], "reset": [[F, T, F]]},
        "must agree",
    ),
    "a document longer than the longest": ({"max_length_q": 2}, "at least the length"),
    "lengths with padding": (
        {"cu_seq_lens_q": [0, 3, 6], "attention_mask": [[0, 1, 1], [1, 1, 1]]},
        "without padding",
    ),
    "a mask that counts documents": ({"attention_mask": [[1, 1, 2]] * 2}, "0 at padding and 1"),
    "attentions": ({"output_attentions": True}, "must be left out"),
    "other than causal": ({"is_causal": False}, "must be left out"),
    "segments": ({"token_type_ids": [[0, 1, 1]] * 2}, "must be left out"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.unchecked
def test_what_cannot_be_or_does_not_agree_is_refused(name):
    said, rule = WRONG[name]
    said = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in said.items()}
    with pytest.raises(ArgumentError, match=rule):
        made()(IDS, **said)


@pytest.mark.unchecked
def test_lengths_after_a_cache_are_refused():
    model = made()
    cache = model(IDS).past_key_values
    with pytest.raises(ArgumentError, match="before anything was read"):
        model(IDS, past_key_values=cache, cu_seq_lens_q=torch.tensor([0, 3, 6]))


@pytest.mark.parametrize("name", ["position_ids", "seq_idx", "reset", "cu_seq_lens_q"])
@pytest.mark.parametrize("value", ["x", [[0, 1, 2]], torch.zeros(2, 4), torch.zeros(2, 3), 3])
@pytest.mark.unchecked
def test_other_types_and_shapes_are_refused(name, value):
    with pytest.raises((DTypeError, ShapeError), match=f"{name} must"):
        made()(IDS, **{name: value})


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.unchecked
def test_a_keyword_that_means_nothing_is_refused_by_name(cls):
    model = made(cls)
    with pytest.raises(UnknownNameError, match=rf"keyword of {cls.__name__}.forward .*'nonsense'"):
        model(IDS, nonsense=1)
    with pytest.raises(UnknownNameError, match="Did you mean 'position_ids'"):
        model(IDS, position_id=IDS)
    with pytest.raises((LinrnnError, ValueError), match="nonsense"):
        made().generate(IDS, nonsense=1, max_new_tokens=1)


@pytest.mark.parametrize("cls", CLASSES)
def test_what_transformers_sends_to_every_model_is_taken(cls):
    model = made(cls)
    segments = torch.zeros_like(IDS)
    silent = {"output_attentions": False, "is_causal": True, "token_type_ids": segments}
    close(model(IDS, **silent)[0], model(IDS)[0])
    assert model(IDS, output_attentions=None, token_type_ids=None)[0].isfinite().all()


@pytest.mark.unchecked
def test_an_option_of_a_configuration_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'d_modle'.*Did you mean 'd_model'"):
        LinrnnConfig(vocab_size=5, d_modle=4)
    model = made()
    model.save_pretrained(tmp_path)
    with pytest.raises(LinrnnError, match="d_modle"):
        LinrnnForCausalLM.from_pretrained(tmp_path, d_modle=4)
    options = {"num_labels": 3, "hidden_size": 4, "gradient_checkpointing": True}
    assert LinrnnConfig(vocab_size=5, **options, temperature=2.0).hidden_size == 4

"""Our language models as models of transformers: files, generation, caches, padding."""

import copy

import pytest
import torch
import torch.nn.functional as F

transformers = pytest.importorskip("transformers")

from linrnn import mixers  # noqa: E402
from linrnn.interop.hf import (  # noqa: E402
    LinrnnCache,
    LinrnnConfig,
    LinrnnForCausalLM,
    to_tokenizer,
)
from linrnn.state import leaves, n_floats  # noqa: E402
from linrnn.tokenizers import CharTokenizer  # noqa: E402

CLOSE = 1e-5  # float32, outputs near 1


def lively(mixer="mingru", **options):
    """A model whose every part matters: some mixers begin with an output of zero."""
    sizes = {"vocab_size": 13, "d_model": 8, "n_layers": 2}
    config = LinrnnConfig(mixer=mixer, **{**sizes, **options})
    model = LinrnnForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def tokens(*shape):
    return torch.randint(13, shape)


@pytest.mark.sampled
@pytest.mark.parametrize("mixer", mixers.names())
def test_saved_and_loaded_it_gives_the_same(mixer, tmp_path):
    model, ids = lively(mixer, block="mlp", conv_width=2), tokens(2, 7)
    model.save_pretrained(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} >= {"config.json", "model.safetensors"}
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is LinrnnForCausalLM
    assert not again.training
    assert torch.equal(again(ids).logits, model(ids).logits)


@pytest.mark.sampled
@pytest.mark.parametrize("mixer", mixers.names())
def test_left_padding_changes_nothing_and_a_cache_continues(mixer):
    model, ids = lively(mixer), tokens(3, 9)
    starts = (0, 4, 8)
    mask = torch.arange(9) >= torch.tensor(starts)[:, None]
    padded = ids.where(mask, 13)
    alone = [model(ids[i : i + 1, begin:]).logits[0] for i, begin in enumerate(starts)]
    whole = model(padded, attention_mask=mask.long())
    for row, begin, expected in zip(whole.logits, starts, alone, strict=True):
        torch.testing.assert_close(row[begin:], expected, rtol=1e-4, atol=1e-5)
        assert not row[:begin].any()  # nothing is said where nothing was read
    # in pieces, of which the first holds nothing but padding of two rows
    cache, pieces = None, []
    for begin, end in ((0, 4), (4, 6), (6, 7), (7, 9)):
        out = model(padded[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache)
        cache = out.past_key_values
        pieces.append(out.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.logits, rtol=1e-4, atol=1e-5)
    assert cache.get_seq_length() == 9
    with torch.no_grad():  # one more step, of every row at once
        more = model(ids[:, :1], past_key_values=cache).logits[:, 0]
    for i, begin in enumerate(starts):
        expected = model(torch.cat([ids[i, begin:], ids[i, :1]])[None]).logits[0, -1]
        torch.testing.assert_close(more[i], expected, rtol=1e-4, atol=1e-5)


def test_padding_anywhere_is_passed_over():
    model, ids = lively("lru"), tokens(2, 8)
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1, 1], [0, 1, 1, 1, 1, 0, 0, 0]])
    expected = [model(row[keep == 1][None]) for row, keep in zip(ids, mask, strict=True)]
    whole = model(ids, attention_mask=mask)
    halves = model(ids[:, :4], attention_mask=mask[:, :4])
    halves = model(ids[:, 4:], attention_mask=mask[:, 4:], past_key_values=halves.past_key_values)
    for i in range(2):
        torch.testing.assert_close(whole.logits[i, mask[i] == 1], expected[i].logits[0])
        last = halves.logits[i][mask[i, 4:] == 1]
        torch.testing.assert_close(last, expected[i].logits[0, -len(last) :])
    after = model(ids[:, :1], past_key_values=halves.past_key_values).logits
    for i in range(2):
        alone = model(ids[i : i + 1, :1], past_key_values=expected[i].past_key_values).logits
        torch.testing.assert_close(after[i], alone[0])


def test_without_a_mask_the_padding_token_says_what_is_padding():
    model, ids = lively(), tokens(2, 5)
    ids[0, :2] = 13
    mask = (ids != 13).long()
    assert torch.equal(model(ids).logits, model(ids, attention_mask=mask).logits)


GENERATION = {
    "greedy": {"do_sample": False},
    "beam": {"do_sample": False, "num_beams": 3},
    "several beams": {"do_sample": False, "num_beams": 4, "num_return_sequences": 2},
}


@pytest.mark.parametrize("options", GENERATION.values(), ids=GENERATION)
@pytest.mark.parametrize("mixer", ["mingru", "rwkv4", "attention"])
def test_generation_with_the_cache_is_that_without(mixer, options):
    model, ids = lively(mixer, block="channel_mix"), tokens(2, 4)
    mask = torch.ones_like(ids)
    kwargs = {"attention_mask": mask, "max_new_tokens": 6, **options}
    cached = model.generate(ids, **kwargs)
    assert torch.equal(cached, model.generate(ids, **kwargs, use_cache=False))
    assert cached.shape[1] == 10


TEXTS = {**GENERATION, "sampled": {"do_sample": True, "top_k": 1}, "lookup": {"do_sample": False}}
TEXTS["lookup"]["prompt_lookup_num_tokens"] = 2


@pytest.mark.parametrize("options", TEXTS.values(), ids=TEXTS)
def test_every_way_of_writing_takes_the_tokenizer_of_stop_strings(options):
    """Loops of ``generate`` hand on their own keywords with those of the model."""
    tokenizer = to_tokenizer(CharTokenizer("abcdefghijklm"))
    model, ids = lively(vocab_size=13), tokens(1, 4)
    kwargs = {**options, "max_new_tokens": 8, "pad_token_id": 13}
    plain = model.generate(ids, **kwargs)[0, 4:]
    stop = tokenizer.decode(plain[3:5])
    ended = model.generate(ids, **kwargs, stop_strings=[stop], tokenizer=tokenizer)[0, 4:]
    if "num_beams" not in options:  # a beam that ends may be another one
        end = next(n for n in range(1, 9) if stop in tokenizer.decode(plain[:n]))
        assert ended.tolist() == plain[:end].tolist()


def test_a_copied_cache_goes_on_with_gradients():
    model, ids = lively("mamba,attention"), tokens(2, 5)
    whole, cache = model(ids), model(ids[:, :3]).past_key_values
    for copied in (copy.deepcopy(cache), copy.deepcopy({"a": cache})["a"], cache):
        rest = model(ids[:, 3:], past_key_values=copied)
        torch.testing.assert_close(rest.logits, whole.logits[:, 3:], rtol=0, atol=CLOSE)
        slopes = [
            torch.autograd.grad(y[:, -1].sum(), model.model.encoder.weight, retain_graph=True)
            for y in (rest.logits, whole.logits)
        ]
        torch.testing.assert_close(*slopes, rtol=0, atol=10 * CLOSE)


def test_sampling_depends_on_the_seed_alone():
    model, ids = lively(), tokens(1, 3)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(model.generate(ids, do_sample=True, max_new_tokens=20).tolist())
    assert draws[0] == draws[1] != draws[2]
    torch.manual_seed(0)
    narrow = model.generate(ids, do_sample=True, top_k=1, max_new_tokens=5)
    assert torch.equal(narrow, model.generate(ids, do_sample=False, max_new_tokens=5))


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prefill_chunk_size": 3}])
def test_a_padded_batch_generates_what_each_prompt_does_alone(options):
    model = lively("rwkv4", block="channel_mix")
    prompts = [tokens(7), tokens(1), tokens(4)]
    width = max(map(len, prompts))
    ids = torch.stack([F.pad(p, (width - len(p), 0), value=13) for p in prompts])
    kwargs = {"do_sample": False, "max_new_tokens": 5, "pad_token_id": 13}
    together = model.generate(ids, attention_mask=(ids != 13).long(), **kwargs, **options)
    for row, prompt in zip(together, prompts, strict=True):
        alone = model.generate(prompt[None], **kwargs, num_beams=options.get("num_beams", 1))
        assert torch.equal(row[width:], alone[0, len(prompt) :])


def test_rows_that_have_ended_are_padded():
    model, ids = lively(), tokens(3, 4)
    plain = model.generate(ids, do_sample=False, max_new_tokens=8)
    end = int(plain[0, 5])
    ended = model.generate(
        ids, do_sample=False, max_new_tokens=8, eos_token_id=end, pad_token_id=13
    )
    assert ended[0, 5] == end
    assert (ended[0, 6:] == 13).all()
    others = [i for i in (1, 2) if end not in plain[i, 4:].tolist()]
    for i in others:
        assert torch.equal(ended[i], plain[i, : ended.shape[1]])


def test_generation_goes_on_from_what_it_returned():
    model, ids = lively("mamba"), tokens(2, 5)
    kwargs = {"do_sample": False, "return_dict_in_generate": True}
    first = model.generate(ids, max_new_tokens=4, **kwargs)
    kept = copy.deepcopy(first.past_key_values)
    assert isinstance(kept, LinrnnCache)
    for cache in (first.past_key_values, kept):  # the first use changes the one, not the other
        second = model.generate(
            first.sequences, past_key_values=cache, max_new_tokens=3, do_sample=False
        )
        whole = model.generate(ids, max_new_tokens=7, do_sample=False)
        assert torch.equal(second, whole)


def test_rows_of_a_cache_are_repeated_and_chosen():
    model, ids = lively(), tokens(2, 5)
    cache = model(ids).past_key_values
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 4
    cache.batch_select_indices(torch.tensor([3, 0]))
    y = model(ids[[1, 0], :1], past_key_values=cache).logits[:, 0]
    expected = model(torch.cat([ids, ids[:, :1]], 1)).logits[[1, 0], -1]
    torch.testing.assert_close(y, expected)
    cache.reset()
    assert (cache.get_seq_length(), len(cache), cache.batch_size) == (0, 0, -1)


def test_the_state_does_not_grow():
    model = lively("rwkv4")
    cache = model(tokens(1, 3)).past_key_values
    size = n_floats(cache.state)
    cache = model(tokens(1, 50), past_key_values=cache).past_key_values
    assert n_floats(cache.state) == size


def test_loss_is_the_mean_surprise_of_the_next_token():
    model, ids = lively(), tokens(2, 6)
    out = model(ids, labels=ids)
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)
    padded = torch.cat([torch.full((2, 2), 13), ids], 1)
    both = model(padded, labels=padded)  # padding is neither read nor predicted
    logits, target = both.logits[:, 1:-1].flatten(0, 1), padded[:, 2:].flatten()
    torch.testing.assert_close(both.loss, F.cross_entropy(logits, target))
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_few_logits_are_the_last_ones():
    model, ids = lively(), tokens(2, 6)
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    places = torch.tensor([0, 3])
    torch.testing.assert_close(model(ids, logits_to_keep=places).logits, whole[:, places])


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_tied_in_memory_and_in_the_file(tied, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = lively(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    names = set(safetensors.load_file(tmp_path / "model.safetensors"))
    assert ("model.head.weight" in names) is not tied
    again = LinrnnForCausalLM.from_pretrained(tmp_path)
    assert (again.model.head.weight is again.model.encoder.weight) is tied
    ids = tokens(1, 5)
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_larger_vocabulary():
    model, ids = lively(), tokens(1, 5)
    before = model(ids).logits
    model.resize_token_embeddings(20)
    assert (model.config.vocab_size, model.model.d_input, model.model.d_output) == (20, 20, 20)
    torch.testing.assert_close(model(ids).logits[..., :13], before)
    assert model(torch.tensor([[19]])).logits.shape == (1, 1, 20)


def test_half_precision_keeps_a_state_in_float32(tmp_path):
    model, ids = lively("mingru"), tokens(1, 5)
    model.save_pretrained(tmp_path)
    half = LinrnnForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    out = half(ids)
    assert out.logits.dtype == torch.bfloat16
    assert {h.dtype for h in leaves(out.past_key_values.state)} == {torch.float32}
    torch.testing.assert_close(out.logits.float(), model(ids).logits, rtol=0.1, atol=0.1)


def test_construction_draws_the_weights_of_the_mixer():
    config = LinrnnConfig(vocab_size=13, mixer="rwkv4", d_model=8, n_layers=1)
    torch.manual_seed(0)
    model = LinrnnForCausalLM(config)
    torch.manual_seed(0)
    expected = config.build().state_dict()
    assert all(torch.equal(v, expected[n]) for n, v in model.model.state_dict().items())

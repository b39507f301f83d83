"""Text from language models: sampling, streaming, batches, states."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linrnn import SequenceModel
from linrnn.errors import ArgumentError, ArgumentTypeError, DataError, NonFiniteError
from linrnn.generation import (
    Sampling,
    TokenStream,
    generate,
    generate_batch,
    generate_text,
)
from linrnn.streaming import Session
from linrnn.tokenizers import ByteTokenizer, CharTokenizer

CLOSE = 2e-5


def model(size=256, mixer="lru", **options):
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_layers": 2, "pool": "none", "norm": "layer", **options}
    made = SequenceModel(size, size, mixer=mixer, encoder="tokens", **sizes).eval()
    with torch.no_grad():
        made.head.weight *= 5  # opinions to draw by
    return made


class Parrot(SequenceModel):
    """Says a fixed text, one byte after the other, whatever it reads."""

    def __init__(self, says: bytes):
        super().__init__(256, 256, d_model=256, n_layers=1, pool="none", encoder="tokens")
        self.says = says
        with torch.no_grad():
            self.head.weight.copy_(50 * torch.eye(256))
            self.head.bias.zero_()
        self.eval()

    def init_state(self, batch_size, **factory):
        return {"read": torch.zeros(batch_size, 1)}

    def features(self, x, state=None, *, reset=None, lengths=None):
        place = (state["read"].long() + torch.arange(x.shape[1])) % len(self.says)
        says = torch.tensor(list(self.says))[place]
        return F.one_hot(says, 256).float(), {"read": state["read"] + x.shape[1]}

    def step(self, x_t, state):
        z, state = self.features(x_t[:, None], state)
        return self.head(z[:, 0]), state


def test_greedy_takes_the_likeliest_after_everything_before():
    stack, ids = model(), [1, 2, 3]
    for token in generate(stack, ids, 20, temperature=0):
        with torch.no_grad():
            assert token == int(stack(torch.tensor([ids]))[0][0, -1].argmax())
        ids.append(token)


def test_a_seed_repeats_and_others_differ():
    first, again, other = (list(generate(model(), [1], 50, seed=s)) for s in (1, 1, 2))
    assert first == again != other
    assert list(generate(model(), [1], 50)) != list(generate(model(), [1], 50))


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"seed": 2**62 + 1},
            r"seed must be an integer from -2\^62 to 2\^62, got 4611686018427387905",
        ),
        (
            {"seed": -(2**63)},
            r"seed must be an integer from -2\^62 to 2\^62, got -9223372036854775808",
        ),
        ({"seed": True}, r"seed must be an integer from -2\^62 to 2\^62, got True"),
        ({"temperature": 1e308}, r"temperature must be at least 0 and below 2\^63, got 1e\+308"),
    ],
)
def test_a_message_names_the_bound_that_was_passed(options, text):
    with pytest.raises(ArgumentError, match=text):
        generate(model(), [1], 1, **options)


NUMBERS = {
    "max_new_tokens": (4, np.int64, np.int8, np.uint64),
    "seed": (3, np.int64, np.int32, np.uint8),
    "top_k": (2, np.int64, np.uint16),
    "temperature": (0.5, np.float32, np.float64, np.float16, np.longdouble),
    "top_p": (0.5, np.float32, np.float64, np.float16),
}


@pytest.mark.unchecked  # they are annotated as Python's numbers
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_numbers(name):
    value, *kinds = NUMBERS[name]
    net, tokenizer = model(), ByteTokenizer()
    calls = {
        "one": lambda **given: list(generate(net, [1, 2], **given)),
        "batch": lambda **given: list(generate_batch(net, [[1], [2, 3]], **given)),
        "text": lambda **given: "".join(generate_text(net, tokenizer, "to", **given)),
    }
    usual = {"max_new_tokens": 5, "seed": 1}
    for call in calls.values():
        expected = call(**usual | {name: value})
        assert all(call(**usual | {name: kind(value)}) == expected for kind in kinds)
    with pytest.raises(ArgumentError, match=f"{name} must be"):
        calls["one"](**usual | {name: np.bool_(True)})


@pytest.mark.unchecked
def test_stop_tokens_of_numpy_are_tokens():
    net = model()
    expected = list(generate(net, [1, 2], 9, seed=0))
    got = list(generate(net, [1, 2], 9, seed=0, stop=[np.int64(expected[3])]))
    assert got == expected[: expected.index(expected[3])]


def test_the_largest_seeds_are_seeds():
    for seed in (2**62, -(2**62)):
        assert len(list(generate(model(), [1], 3, seed=seed))) == 3


def test_tokens_come_as_they_are_made_and_for_ever():
    made = generate(model(), [1], seed=0)
    assert len(list(itertools.islice(made, 5))) == 5
    assert list(generate(model(), [1], 0)) == []


def test_a_stop_token_ends_the_text_before_it():
    stack = model()
    tokens = list(generate(stack, [1], 60, seed=0))
    end = tokens[20]
    stream = TokenStream(stack)
    assert list(generate(stream, [1], 60, seed=0, stop=[end])) == tokens[: tokens.index(end)]
    assert stream.last == end  # and the stream has read it
    assert (
        list(generate(stack, [1], 60, seed=0, stop=torch.tensor([end])))
        == tokens[:20][: tokens.index(end)]
    )
    absent = [i for i in range(256) if i not in tokens]
    assert list(generate(stack, [1], 60, seed=0, stop=absent)) == tokens


def test_rows_of_a_batch_end_by_themselves():
    stack, prompts = model(), [[1], [2, 3], [4]]
    rows = [list(row) for row in zip(*generate_batch(stack, prompts, 40, seed=5), strict=True)]
    end = rows[0][10]
    lengths = [row.index(end) if end in row else 40 for row in rows]
    stopped = list(generate_batch(stack, prompts, 40, seed=5, stop=[end]))
    assert len(stopped) == max(lengths)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        assert [step[i] for step in stopped] == row[:length] + [None] * (max(lengths) - length)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "stop",
    [[256], [-1], 3, ["a"], [1.5], "end", [True], {False}, torch.ones(2, dtype=torch.bool)],
)
def test_stop_tokens_are_ids_of_the_vocabulary(stop):
    for call in (
        generate,
        lambda *args, **options: generate_batch(args[0], [args[1]], 3, **options),
    ):
        with pytest.raises(ArgumentError, match="stop must be a list of token ids from 0 to 255"):
            call(model(), [1], stop=stop)


@pytest.mark.unchecked
def test_a_text_as_a_prompt_names_the_function_that_takes_it():
    for call in (lambda: generate(model(), "hello"), lambda: generate_batch(model(), ["hello"], 3)):
        with pytest.raises(ArgumentTypeError, match="got the text 'hello'"):
            call()


def test_draws_have_the_models_probabilities():
    logits, generator = torch.tensor([2.0, 1.0, 0.0, -30.0]), torch.Generator().manual_seed(0)

    def shares(**options):
        drawn = [Sampling(**options).draw(logits, generator) for _ in range(400)]
        return torch.bincount(torch.tensor(drawn), minlength=4) / 400

    def close(got, expected):  # 4 standard deviations of 400 draws
        torch.testing.assert_close(got, torch.as_tensor(expected), rtol=0, atol=0.1)

    close(shares(), logits.softmax(0))
    close(shares(temperature=2.0), (logits / 2).softmax(0))
    close(shares(top_k=2), [0.7311, 0.2689, 0, 0])
    close(shares(top_p=0.7), [0.7311, 0.2689, 0, 0])  # the first has 0.665: not yet enough
    close(shares(top_p=0.6), [1.0, 0, 0, 0])
    close(shares(top_k=1), [1.0, 0, 0, 0])
    close(shares(temperature=1e-30), [1.0, 0, 0, 0])
    close(shares(top_k=99), logits.softmax(0))


def test_a_long_prompt_is_read_in_chunks_with_the_same_result():
    ids = torch.randint(256, (300,))
    whole, parts = TokenStream(model()), TokenStream(model(), chunk=7)
    whole.read(ids)
    for part in ids.split(41):
        parts.read(part)
    torch.testing.assert_close(parts.expected(), whole.expected(), rtol=0, atol=CLOSE)
    with torch.no_grad():
        expected = model()(ids[None])[0][0, -1]
    torch.testing.assert_close(whole.expected(), expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("chunk", [1, 5, 4096])
def test_surprise_is_minus_log_probability(chunk):
    ids = torch.randint(256, (50,))
    stream = TokenStream(model(), chunk=chunk)
    bits = torch.cat([stream.surprise(ids[:20]), stream.surprise([]), stream.surprise(ids[20:])])
    with torch.no_grad():
        logp = model()(ids[None])[0][0].log_softmax(-1)
    expected = -logp[:-1].gather(1, ids[1:, None])[:, 0] / math.log(2)
    assert bits[0] == 8  # nothing was read before
    torch.testing.assert_close(bits[1:], expected, rtol=0, atol=1e-4)
    assert stream.steps == 50


@pytest.mark.parametrize("size", [256, 5000])
def test_surprise_of_many_tokens_is_that_of_a_few_at_a_time(size):
    ids = torch.randint(size, (1500,))
    whole, parts = TokenStream(model(size)), TokenStream(model(size))
    expected = torch.cat([parts.surprise(some) for some in ids.split(400)])
    torch.testing.assert_close(whole.surprise(ids), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("mixer", ["lru", "attention"])
def test_a_saved_state_continues_with_and_without_more_prompt(tmp_path, mixer):
    prompt, more = [5, 6, 7], [8, 9]
    whole = list(generate(model(mixer=mixer), prompt, 10, seed=3))
    stream = TokenStream(model(mixer=mixer))
    stream.read(prompt)
    stream.save(tmp_path / "s")
    again = TokenStream(model(mixer=mixer))
    again.load(tmp_path / "s")
    assert list(generate(again, [], 10, seed=3)) == whole
    again.load(tmp_path / "s")
    got = list(generate(again, more, 10, temperature=0))
    assert got == list(generate(model(mixer=mixer), prompt + more, 10, temperature=0))
    assert again.steps == 15


def test_generation_goes_on_where_it_stopped():
    stream = TokenStream(model())
    parts = [*generate(stream, [1], 5, temperature=0), *generate(stream, [], 5, temperature=0)]
    assert parts == list(generate(model(), [1], 10, temperature=0))


def test_a_session_can_go_on_from_the_state_of_a_text(tmp_path):
    stream = TokenStream(model())
    stream.read([1, 2, 3])
    stream.save(tmp_path / "s")
    session, whole = Session(model()), Session(model())
    session.load(tmp_path / "s")
    expected = whole.feed([1, 2, 3, 4])[-1]
    torch.testing.assert_close(session.feed(4), expected, rtol=0, atol=CLOSE)
    assert session.steps == 4


@pytest.mark.parametrize("mixer", ["lru", "mamba", "rwkv4"])
def test_a_batch_gives_each_prompt_what_it_gets_alone(mixer):
    prompts = [[1], [2, 3, 4], list(range(40))]
    rows = zip(*generate_batch(model(mixer=mixer), prompts, 12, seed=5), strict=True)
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        assert list(row) == list(generate(model(mixer=mixer), prompt, 12, seed=5 + i))
    assert list(generate_batch(model(), [], 3)) == []


def test_text_comes_in_whole_characters():
    parrot = Parrot("né".encode())
    pieces = list(generate_text(parrot, ByteTokenizer(), "x", 6))
    assert "".join(pieces) == "nén\xe9"
    assert "\ufffd" not in "".join(pieces)
    cut = "".join(generate_text(Parrot("né".encode()), ByteTokenizer(), "x", 2))
    assert cut == "n\ufffd"


def test_text_ends_before_a_stop_string_and_never_shows_a_part_of_it():
    says = b"one STone STOP two"
    pieces = list(generate_text(Parrot(says), ByteTokenizer(), "x", 50, stop=["STOP", "zzz"]))
    assert "".join(pieces) == "one STone "
    shown = list(itertools.accumulate(pieces))
    assert "one ST" not in shown  # held back until it could be no stop string
    assert "".join(generate_text(Parrot(says), ByteTokenizer(), "x", 6, stop=["STOP"])) == "one ST"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature must be at least 0 and below 2\^63, got -1"),
        ({"temperature": math.inf}, r"temperature must be at least 0 and below 2\^63, got inf"),
        ({"temperature": math.nan}, r"temperature must be at least 0 and below 2\^63, got nan"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
        ({"top_k": -1}, "top_k must be an integer of at least 0, got -1"),
        ({"max_new_tokens": -1}, "max_new_tokens must be an integer of at least 0, got -1"),
    ],
)
def test_options_out_of_range_are_named_at_once(options, message):
    with pytest.raises(ArgumentError, match=message):
        generate(model(), [1], **options)


def test_prompts_that_cannot_be_read_are_named():
    with pytest.raises(ArgumentError, match="between 0 and 255, got 256 at position 2"):
        generate(model(), [1, 2, 256], 1)
    with pytest.raises(ArgumentError, match=r"prompts\[1\] must hold a token, got none.*newline"):
        generate_batch(model(), [[1], []], 1)
    with pytest.raises(ArgumentError, match=r"prompt must hold a token, got none.*newline"):
        generate(model(), [], 1)
    with pytest.raises(DataError, match=r"prompt: text must hold .* got 'z'"):
        generate_text(model(2), CharTokenizer("ab"), "az", 1)
    with pytest.raises(ArgumentError, match="must have the model's 256 tokens, got 2"):
        generate_text(model(), CharTokenizer("ab"), "a", 1)
    with pytest.raises(ArgumentError, match="stop must be a list of strings with text"):
        generate_text(model(), ByteTokenizer(), "a", 1, stop=[""])


def test_chunks_hold_a_token_at_least():
    with pytest.raises(ArgumentError, match="chunk must be"):
        TokenStream(model(), chunk=0)


def test_models_that_are_no_language_models_are_refused():
    with pytest.raises(ArgumentError, match="must be a language model"):
        TokenStream(SequenceModel(1, 1, d_model=4, n_layers=1).eval())
    with pytest.raises(ArgumentError, match="must be a language model"):
        TokenStream(model(pool="mean"))
    with pytest.raises(ArgumentError, match="state of fixed size"):
        generate_batch(model(mixer="attention"), [[1]], 1)


def test_outputs_that_are_no_numbers_are_an_error_and_not_a_token():
    broken = model()
    with torch.no_grad():
        broken.head.bias.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="must be numbers, got NaN"):
        next(generate(broken, [1], 1))

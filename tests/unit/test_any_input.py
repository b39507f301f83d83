"""Whatever a layer or model is called with: it answers, or raises one of the library's errors."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import linrnn
from linrnn import mixers
from linrnn.errors import LinrnnError

pytestmark = pytest.mark.unchecked

BATCH, TIME, WIDTH, WORDS = 2, 5, 3, 7
MIXERS = ("lru", "gru", "lstm", "mamba", "attention", "minlstm")


def numbers():
    """Inputs in words; of a layer of 3 channels one of them fits."""
    x = torch.randn(BATCH, TIME, WIDTH)
    for dtype in (torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64):
        yield f"{dtype}", x.to(dtype)
    for axes in ((), (3,), (5, 3), (2, 5, 4), (2, 5, 2), (2, 3, 5), (2, 2, 5, 3), (3, 0, 5)):
        yield f"shape {axes}", torch.randn(axes)
    for axes in ((0, 5, 3), (2, 0, 3), (0, 0, 3), (2, 5, 0)):
        yield f"empty {axes}", torch.randn(axes)
    yield "elsewhere", x.to("meta")
    yield "sparse", x.to_sparse()
    yield "expanded", x[:1].expand(BATCH, TIME, WIDTH)
    yield "transposed", x.mT.contiguous().mT
    yield "a gradient", x.clone().requires_grad_()
    for value in (float("nan"), float("inf"), 1e38):
        yield f"{value}", torch.full_like(x, value)
    yield "packed", pack_sequence([x[0], x[1, :2]])
    for other in (x.numpy(), x.tolist(), None, "x", 3, (x,), {"x": x}):
        yield f"{type(other).__name__}", other


def words():
    x = torch.randint(WORDS, (BATCH, TIME))
    yield from numbers()
    for dtype in (torch.uint8, torch.int32, torch.float32):
        yield f"words {dtype}", x.to(dtype)
    for value in (-1, WORDS, 2**40):
        yield f"word {value}", torch.full_like(x, value)
    yield "a word", x[0, 0]
    yield "a row of words", x[0]


def states(state, other):
    """States of the call, of others, and things that are none."""
    yield from (("none", None), ("its own", state), ("another model's", other))
    for value in ("state", 3, (), {}, [None], torch.zeros(()), np.zeros(3)):
        yield f"{value!r:.20}", value


def answers(what, call):
    """Call; anything but an answer or an error of the library fails."""
    try:
        call()
    except LinrnnError:
        pass
    except Exception as error:
        error.add_note(f"instead of an answer or an error of the library to: {what}")
        raise


def model(mixer, **options):
    options = {"d_model": 4, "n_layers": 1, "norm": "layer", "pool": "none"} | options
    return linrnn.SequenceModel(WIDTH, 2, mixer=mixer, **options).eval()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_mixer(mixer, grad):
    layer = mixers.load(mixer)(WIDTH)
    with torch.set_grad_enabled(grad):
        for what, x in numbers():
            answers(what, lambda x=x: layer(x))
            answers(f"step, {what}", lambda x=x: layer.step(x, layer.init_state(BATCH)))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_an_rnn(mixer, grad):
    rnn = linrnn.RNN(mixer, WIDTH, 4, batch_first=True)
    own = rnn(torch.randn(BATCH, TIME, WIDTH))[1]
    others = [linrnn.RNN(name, WIDTH, 5)(torch.randn(TIME, BATCH, WIDTH))[1] for name in MIXERS]
    with torch.set_grad_enabled(grad):
        for what, x in numbers():
            answers(what, lambda x=x: rnn(x))
            answers(f"with a state, {what}", lambda x=x: rnn(x, own))
        for time in (TIME, 1):  # of which the second is recorded
            x = torch.randn(BATCH, time, WIDTH)
            for other in others:
                for what, hx in states(own, other):
                    answers(f"hx {what}", lambda x=x, hx=hx: rnn(x, hx))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model(mixer, grad):
    net, other = model(mixer), model(mixer, d_model=5, n_layers=2)
    state = net.init_state(BATCH)
    with torch.set_grad_enabled(grad):
        for what, x in numbers():
            answers(what, lambda x=x: net(x))
            answers(f"step, {what}", lambda x=x: net.step(x, state))
        x = torch.randn(BATCH, TIME, WIDTH)
        for what, start in states(state, other.init_state(BATCH)):
            answers(f"state {what}", lambda start=start: net(x, start))
            answers(f"step, state {what}", lambda start=start: net.step(x[:, 0], start))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_model_of_words(mixer, grad):
    net = linrnn.SequenceModel(
        WORDS, WORDS, mixer=mixer, d_model=4, n_layers=1, encoder="tokens", pool="none"
    ).eval()
    state = net.init_state(BATCH)
    with torch.set_grad_enabled(grad):
        for what, x in words():
            answers(what, lambda x=x: net(x))
            row = x[:, 0] if isinstance(x, torch.Tensor) and x.ndim > 1 and x.shape[1] else x
            answers(f"step, {what}", lambda row=row: net.step(row, state))


@pytest.mark.parametrize("options", [["d_state"], "d_state", 3, {3}])
def test_options_of_a_mixer(options):
    answers("SequenceModel", lambda: model("lru", mixer_options=options))
    answers("RNN", lambda: linrnn.RNN("lru", 3, 4, mixer_options=options))


def test_a_word_outside_of_the_vocabulary_is_named():
    net = linrnn.SequenceModel(WORDS, WORDS, d_model=4, n_layers=1, encoder="tokens").eval()
    for token in (-1, WORDS):
        with pytest.raises(LinrnnError, match=rf"between 0 and {WORDS - 1}, got {token}\."):
            net(torch.tensor([[0, token]]))


@pytest.mark.parametrize("build", [lambda: model("lru"), lambda: linrnn.RNN("lru", WIDTH, 4)])
def test_an_input_on_another_device_is_named(build):
    with pytest.raises(LinrnnError, match=r"must be on cpu .* got meta. Move it with .*'cpu'"):
        build()(torch.zeros(2, 5, WIDTH, device="meta"))

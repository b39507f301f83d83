"""Token ids are the same ids in whatever type of integers they come."""

import numpy as np
import pytest
import torch

from linrnn import SequenceModel, generation, learn
from linrnn.errors import ArgumentError
from linrnn.generation import TokenStream
from linrnn.learn import LearningText
from linrnn.streaming import Session, Sessions
from linrnn.tokenizers import ByteTokenizer, CharTokenizer

# one number below, at and above what a type holds: a bound that wraps around is 0 or negative
SIZES = (127, 128, 129, 255, 256, 257, 65_536)
TYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
IDS = (0, 5, 100, 126)


def model(size):
    torch.manual_seed(0)
    return SequenceModel(
        size, size, d_model=2, n_layers=1, pool="none", encoder="tokens", mixer="mingru"
    ).eval()


def rows_of_sessions(net, ids):
    sessions = Sessions(net)
    sessions.join("a")
    fed = sessions.feed_rows(["a"], ids[None])
    if fed.errors:
        raise fed.errors[0]
    return fed.y


def named_session(net, ids):
    sessions = Sessions(net)
    sessions.join("a")
    return sessions.feed({"a": ids})["a"]


def learned(net, ids):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return LearningText(net, learn.build("tbptt"), optimizer, every=8).surprise(ids)


READERS = {
    "forward": lambda net, ids: net(torch.as_tensor(ids)[None])[0],
    "step": lambda net, ids: net.step(torch.as_tensor(ids), net.init_state(len(ids)))[0],
    "TokenStream.surprise": lambda net, ids: TokenStream(net).surprise(ids),
    "generate": lambda net, ids: torch.tensor(list(generation.generate(net, ids, 3, seed=0))),
    "generate_batch": lambda net, ids: torch.tensor(
        list(generation.generate_batch(net, [ids, ids], 3, seed=0))
    ),
    "Session.feed": lambda net, ids: Session(net).feed(ids),
    "Session.feed of a step": lambda net, ids: Session(net).feed(ids[1]),
    "Sessions.feed": named_session,
    "Sessions.feed_rows": rows_of_sessions,
    "LearningText.surprise": learned,
}


@pytest.mark.parametrize("reader", READERS)
def test_an_answer_depends_on_no_type(reader):
    for size in SIZES if reader == "Session.feed" else (128, 256):
        expected = READERS[reader](model(size), torch.tensor(IDS))
        for kind in TYPES:
            array = np.array(IDS, kind)
            for ids in (array, torch.from_numpy(array)):
                assert torch.equal(READERS[reader](model(size), ids), expected), (size, ids)


@pytest.mark.unchecked
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_outside_the_vocabulary_is_refused_in_every_type(reader, kind):
    with pytest.raises(ArgumentError, match="127"):
        READERS[reader](model(100), np.array([127, 127], kind))


@pytest.mark.parametrize("kind", ["byte", "char", "wide"])
def test_a_text_goes_on_from_what_its_tokenizer_gives(kind):
    tokenizers = {
        "byte": ByteTokenizer(),
        "char": CharTokenizer("To be or nt"),
        "wide": CharTokenizer(map(chr, range(32, 600))),  # of sixteen bits
    }
    tokenizer = tokenizers[kind]
    net = model(tokenizer.vocabulary_size)
    tokens = list(generation.generate(net, tokenizer.encode("To be"), 5, seed=0))
    text = "".join(generation.generate_text(net, tokenizer, "To be", 5, seed=0))
    assert tokenizer.decode(tokens) == text

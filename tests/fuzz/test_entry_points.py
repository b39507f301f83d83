"""Streams, generation, models and their files: each argument at its edges, run.

An answer is finite or an error of ours, within a second or two and little memory.
"""

import copy

import pytest
import torch
from entries import try_argument

import linrnn
from linrnn import RNN, SequenceModel, learn
from linrnn.generation import (
    Sampling,
    TokenStream,
    generate,
    generate_batch,
    generate_text,
    generate_texts,
)
from linrnn.learn import LearningSession
from linrnn.streaming import Session, Sessions, load_stream, save_stream
from linrnn.tokenizers import ByteTokenizer

pytestmark = pytest.mark.unchecked  # who checks types refuses most of this


def model(**options):
    torch.manual_seed(0)
    sizes = {"d_model": 4, "n_layers": 1, "pool": "none", "norm": "layer", "mixer": "mingru"}
    return SequenceModel(2, 2, **{**sizes, **options}).eval()


NET, POOLED = model(), model(pool="mean")
TIMED = model(mixer="cfc")
torch.manual_seed(0)
TEXT = SequenceModel(256, 256, d_model=4, n_layers=1, pool="none", encoder="tokens").eval()
STEP = [0.5, 0.25]


def session():
    made = Session(NET)
    made.feed(STEP)
    return made


def pool(**options):
    made = Sessions(NET, **options)
    made.join("a")
    return made


def fed(names, x, dt=None):
    y, errors = pool().feed_rows(names, x, dt)
    for error in errors.values():
        raise error
    return y


def learning(**options):
    net = copy.deepcopy(NET)
    given = {
        "model": net,
        "learner": learn.build("tbptt"),
        "loss": torch.nn.functional.mse_loss,
        "optimizer": torch.optim.SGD(net.parameters(), 0.1),
    }
    made = LearningSession(**{**given, **options})
    return made.feed([STEP, STEP], [STEP, STEP])


def text(**options):
    given = {"model": TEXT, "prompt": [1, 2], "max_new_tokens": 2, "seed": 0}
    return generate(**{**given, **options})


def batch(**options):
    given = {"model": TEXT, "prompts": [[1], [2, 3]], "max_new_tokens": 2, "seed": 0}
    return generate_batch(**{**given, **options})


def words(**options):
    given = {"model": TEXT, "tokenizer": ByteTokenizer(), "prompt": "to", "max_new_tokens": 2}
    return generate_text(**{**given, **options})


def many_words(**options):
    given = {"model": TEXT, "tokenizer": ByteTokenizer(), "prompts": ["to"], "max_new_tokens": 2}
    return generate_texts(**{**given, **options})


def streamed(**options):
    given = {"model": NET, "chunk": 4, "growing": False, "allow_nonfinite": False, "state": None}
    return Session(**{**given, **options}).feed([STEP, STEP])


def pooled(**options):
    made = Sessions(**{"model": NET, **options})
    made.join("a")
    return made.feed({"a": STEP})


ENTRIES = {
    "Session": (streamed, ["model", "state", "chunk", "growing", "allow_nonfinite"]),
    "Session.feed": (lambda **given: session().feed(**{"x": STEP, **given}), ["x", "dt"]),
    "Session.feed timed": (lambda **given: Session(TIMED).feed([STEP], **given), ["dt"]),
    "Session.feed pooled": (lambda **given: Session(POOLED).feed(**given), ["x"]),
    "Session.save": (lambda **given: session().save(**given), ["path"]),
    "Session.load": (lambda **given: session().load(**given), ["path"]),
    "Sessions": (pooled, ["model", "capacity", "chunk", "allow_nonfinite"]),
    "Sessions.join": (
        lambda **given: pool().join(**{"name": "b", **given}),
        ["name", "state", "steps"],
    ),
    "Sessions.feed": (
        lambda **given: pool().feed(**{"inputs": {"a": STEP}, **given}),
        ["inputs", "dt"],
    ),
    "Sessions.feed_rows": (
        lambda **given: fed(**{"names": ["a"], "x": [STEP], **given}),
        ["names", "x", "dt"],
    ),
    "Sessions.feed_rows one": (lambda x: fed(["a"], [x]), ["x"]),
    "Sessions.feed_rows times": (
        lambda dt: fed(["a"], [STEP], [dt]),
        ["dt"],
    ),
    "Sessions.feed one": (lambda x: pool().feed({"a": x}), ["x"]),
    "Sessions.feed times": (lambda dt: pool().feed({"a": STEP}, {"a": dt}), ["dt"]),
    "Sessions.state": (lambda **given: pool().state(**given), ["name"]),
    "Sessions.drop": (lambda **given: pool().drop(**given), ["name"]),
    "Sessions.in": (lambda name: name in pool(), ["name"]),
    "Sessions.steps": (lambda **given: pool().steps(**given), ["name"]),
    "Sessions.save_all": (lambda **given: pool().save_all(**given), ["path"]),
    "Sessions.load_all": (lambda **given: pool().load_all(**given), ["path"]),
    "Sessions.save": (lambda name: pool().save(name, "/tmp/none/x"), ["name"]),
    "Sessions.load": (lambda **given: pool().load(**{"name": "b", **given}), ["path"]),
    "LearningSession": (
        learning,
        ["model", "learner", "optimizer", "every", "clip", "seed"],
    ),
    "LearningSession.feed": (
        lambda **given: taught().feed(**{"x": [STEP], "target": [STEP], **given}),
        ["x", "target", "dt"],
    ),
    "LearningSession.load_state_dict": (
        lambda **given: taught().load_state_dict(**given),
        ["found"],
    ),
    "TokenStream": (lambda **given: TokenStream(**{"model": TEXT, **given}), ["model", "chunk"]),
    "TokenStream.read": (lambda **given: TokenStream(TEXT).read(**given), ["tokens"]),
    "TokenStream.surprise": (lambda **given: TokenStream(TEXT).surprise(**given), ["tokens"]),
    "TokenStream.save": (lambda **given: TokenStream(TEXT).save(**given), ["path"]),
    "TokenStream.load": (lambda **given: TokenStream(TEXT).load(**given), ["path"]),
    "Sampling": (lambda **given: Sampling(**given), ["temperature", "top_k", "top_p"]),
    "generate": (
        text,
        ["model", "prompt", "max_new_tokens", "temperature", "top_k", "top_p", "seed"],
    ),
    "generate_batch": (
        batch,
        ["model", "prompts", "max_new_tokens", "temperature", "top_k", "top_p", "seed"],
    ),
    "generate_text": (
        words,
        ["model", "tokenizer", "prompt", "max_new_tokens", "stop", "seed", "temperature"],
    ),
    "generate_texts": (many_words, ["model", "tokenizer", "prompts", "max_new_tokens", "stop"]),
    "load": (lambda **given: linrnn.load(**given), ["run"]),
    "save_stream": (
        lambda **given: save_stream(
            **{"path": "/tmp/none/x", "model": NET, "state": NET.init_state(1), **given}
        ),
        ["path", "model", "state", "steps", "pending"],
    ),
    "load_stream": (
        lambda **given: load_stream(**{"path": "/tmp/none/x", "model": NET, **given}),
        ["path", "model", "rows"],
    ),
    "RNN.forward": (
        lambda **given: RNN("mingru", 2, 4)(**{"input": torch.zeros(3, 2, 2), **given})[0],
        ["input", "hx"],
    ),
    "SequenceModel.forward": (
        lambda **given: POOLED(**{"x": torch.zeros(2, 3, 2), **given})[0],
        ["x", "state", "reset", "lengths", "dt"],
    ),
    "SequenceModel.step": (
        lambda **given: NET.step(**{"x_t": torch.zeros(1, 2), "state": NET.init_state(1), **given})[
            0
        ],
        ["x_t", "state", "dt"],
    ),
    "SequenceModel.init_state": (
        lambda **given: NET.init_state(**{"batch_size": 1, **given}),
        ["batch_size", "dtype"],
    ),
}


def taught():
    net = copy.deepcopy(NET)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    return LearningSession(net, learn.build("tbptt"), torch.nn.functional.mse_loss, sgd)


CASES = [(entry, name) for entry, (_, names) in ENTRIES.items() for name in names]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a text may be a path


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Import once before anything is timed."""
    torch.empty(2, 3, device="meta") @ torch.empty(3, 2, device="meta")
    for entry in ("LearningSession", "generate"):
        list(ENTRIES[entry][0]())


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_argument(entry, name):
    call, _ = ENTRIES[entry]
    whole = entry.startswith("generate_") and name == "max_new_tokens"
    try_argument(
        lambda value: call(**{name: value}),
        f"{entry}: {name}",
        # what returns all tokens at once takes as long as that many do
        without=lambda value: whole and isinstance(value, int) and value > 1000,
    )

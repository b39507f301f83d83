"""Streams, and the caches that steps are kept in, from many threads: each as if it were alone."""

import copy
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from linrnn import SequenceModel, learn, mixers
from linrnn import state as states
from linrnn.generation import TokenStream, generate
from linrnn.learn import LearningSession
from linrnn.ops import explain
from linrnn.streaming import Session, Sessions, sessions

THREADS = 8


def in_threads(work, count=THREADS):
    """``work(i)`` in a thread each, all begun at once; their results."""
    gate, every = threading.Barrier(count), sys.getswitchinterval()

    def begin(i):
        gate.wait()
        return work(i)

    sys.setswitchinterval(1e-6)  # as often as Python can
    try:
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(begin, range(count)))
    finally:
        sys.setswitchinterval(every)


def made(mixer="gru", **options):
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_layers": 1, "norm": "layer", "pool": "none"}
    return SequenceModel(2, 2, mixer=mixer, **{**sizes, **options}).eval()


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture
def slow(monkeypatch):
    """Threads are changed in the middle of what `Sessions` does, wherever that may be."""

    def later(function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            time.sleep(1e-4)
            return result

        return call

    monkeypatch.setattr(sessions, "read", later(sessions.read))
    monkeypatch.setattr(sessions, "fresh", later(sessions.fresh))
    for name in ("concat", "select"):
        monkeypatch.setattr(states, name, later(getattr(states, name)))


@pytest.mark.parametrize("capacity", [None, 64])
@pytest.mark.usefixtures("slow")
def test_streams_that_come_and_go_in_threads_are_as_alone(capacity, tmp_path):
    """Join, feed, save, load and drop at random, and each stream compared with itself alone."""
    model = made()
    pool = Sessions(model, capacity=capacity)

    def work(i):
        dice, generator = random.Random(i), torch.Generator().manual_seed(i)
        names = [(i, number) for number in range(6)]
        fed = {name: [] for name in names}
        outputs = {name: [] for name in names}
        for _ in range(8):
            for name in names:
                if name not in pool:
                    pool.join(name)
            chosen = dice.sample(names, dice.randint(1, 3))
            x = {
                name: torch.randn(dice.choice([1, 1, 3]), 2, generator=generator) for name in chosen
            }
            for name, y in pool.feed(x).items():
                fed[name].append(x[name])
                outputs[name].append(y)
            name = dice.choice(names)
            if dice.random() < 0.3:
                path = tmp_path / f"{i}.safetensors"
                pool.save(name, path)
                pool.drop(name)
                pool.load(name, path)
            elif dice.random() < 0.5:
                pool.join(name, pool.drop(name))
            assert set(names) <= set(pool)
        for name in filter(fed.get, names):
            alone = Session(model)
            close(torch.cat(outputs[name]), torch.cat([alone.feed(x) for x in fed[name]]))
            torch.testing.assert_close(pool.state(name), alone.state, rtol=1e-4, atol=1e-5)
        for name in names:
            pool.drop(name)

    in_threads(work)
    assert not list(pool)


def test_a_name_is_taken_once_however_many_ask():
    pool = Sessions(made(), capacity=4)

    def work(_):
        try:
            pool.join("one")
        except ValueError:
            return 0
        return 1

    assert sum(in_threads(work)) == 1
    assert len(pool) == 1


def test_a_stream_that_many_feed_has_read_all_of_it():
    """Every thread feeds the same, so the order does not matter."""
    model, x = made(), torch.randn(3, 2)
    session, pool, alone = Session(model), Sessions(model), Session(model)
    pool.join("a")

    def work(_):
        for _ in range(5):
            session.feed(x)
            pool.feed({"a": x})

    in_threads(work)
    for _ in range(5 * THREADS):
        alone.feed(x)
    assert session.steps == alone.steps
    torch.testing.assert_close(session.state, alone.state)
    torch.testing.assert_close(pool.state("a"), alone.state)


QUICK = ("gru", "lru", "mamba", "rwkv7", "recurrent_attention_network", "rmt", "s4", "attention")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in mixers.names()]
)
def test_a_model_that_threads_step_at_once_gives_each_what_it_gets_alone(name):
    """Steps are recorded at the first one, of all threads at the same time."""
    base = made(name, block="mlp")
    x = torch.randn(THREADS, 7, 2)
    growing = "constant_memory" in base.mixers[0].declared

    def read(model, x):
        session = Session(model, growing=growing)
        return torch.stack([*(session.feed(step) for step in x[:4]), *session.feed(x[4:])])

    expected = [read(copy.deepcopy(base), rows) for rows in x]
    for found, wanted in zip(in_threads(lambda i: read(base, x[i])), expected, strict=True):
        close(found, wanted)


def test_first_steps_of_many_streams_do_not_keep_a_step_from_being_recorded():
    """They go another way than most, and were counted as if no step would ever go that of most."""
    model, x = made("recurrent_attention_network"), torch.randn(100, 4, 2)
    sessions = [Session(model) for _ in x]
    for t in range(4):
        for session, rows in zip(sessions, x, strict=True):
            session.feed(rows[t])
    assert "recorded" in explain(model.step, x[:1, 0], sessions[0].state)


@pytest.mark.parametrize("rule", ["uoro", "tbptt"])
def test_sessions_that_learn_in_threads_learn_what_they_learn_alone(rule):
    """The noise that a learner draws is that of its own seed, whoever else draws."""
    base, x = made("gru"), torch.randn(THREADS, 12, 2)

    def learned(i):
        model = copy.deepcopy(base)
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loss = torch.nn.functional.mse_loss
        session = LearningSession(model, learn.build(rule), loss, sgd, every=4, seed=i)
        return torch.cat([session.feed(part, part) for part in x[i].split(4)])

    expected = [learned(i) for i in range(THREADS)]
    for found, wanted in zip(in_threads(learned), expected, strict=True):
        close(found, wanted)


def test_a_session_that_many_teach_has_learned_from_all_of_it():
    x = torch.randn(4, 2)

    def made_session():
        model = made("gru")
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        return LearningSession(
            model, learn.build("tbptt"), torch.nn.functional.mse_loss, sgd, every=4
        )

    session, alone = made_session(), made_session()

    def work(_):
        for _ in range(3):
            session.feed(x, x)
            assert session.state_dict()["steps"] % 4 == 0

    in_threads(work)
    for _ in range(3 * THREADS):
        alone.feed(x, x)
    assert session.steps == alone.steps
    torch.testing.assert_close(session.model.state_dict(), alone.model.state_dict())


def test_a_text_that_many_read_has_all_of_it():
    model = SequenceModel(5, 5, d_model=8, n_layers=1, pool="none", encoder="tokens").eval()
    text, alone = TokenStream(model), TokenStream(model)
    text.read([1])
    alone.read([1])

    def work(_):
        for _ in range(4):
            text.read([1, 1])
            list(generate(text, (), 1, temperature=0, seed=0))
        return None

    in_threads(work)
    assert text.steps == 1 + 3 * 4 * THREADS


def test_a_copy_of_a_stream_goes_its_own_way():
    session = Session(made())
    session.feed([0.5, 0.25])
    again = copy.deepcopy(session)
    again.feed([0.5, 0.25])
    assert (session.steps, again.steps) == (1, 2)

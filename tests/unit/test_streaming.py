"""Streams: one, or many that come and go, give what one pass over the whole gives."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from linrnn import SequenceModel, mixers
from linrnn.errors import ArgumentError, DataError, DTypeError, ShapeError
from linrnn.state import leaves, map_state
from linrnn.streaming import Session, Sessions, fingerprint, read

D, TIME = 6, 40
ROUNDINGS = 2e-5  # of outputs near 1 in float32, over TIME steps


def make(name, **options):
    torch.manual_seed(0)
    return mixers.build(name, D, options).eval()


def is_constant(name):
    return "constant_memory" not in make(name).declared


each_mixer = pytest.mark.parametrize("name", [n for n in mixers.names() if is_constant(n)])


def model(**options):
    torch.manual_seed(0)
    sizes = {"d_model": D, "n_layers": 2, "pool": "none", **options}
    return SequenceModel(1, 3, **sizes).eval()


def tokens_model(**options):
    torch.manual_seed(0)
    return SequenceModel(11, 11, d_model=D, n_layers=1, pool="none", encoder="tokens", **options)


@pytest.mark.parametrize("pool", ["none", "mean", "last"])
def test_a_session_gives_what_one_pass_gives(pool):
    stack, x = model(pool=pool), torch.randn(TIME, 1)
    session = Session(stack, chunk=7)
    ys = [session.feed(part) for part in (x[0], x[1:2], x[2:30], x[30:])]
    whole = stack(x[None])[0][0]
    got = torch.cat([ys[0][None], *ys[1:]]) if pool == "none" else ys[-1]
    torch.testing.assert_close(got, whole, rtol=0, atol=ROUNDINGS)
    assert session.steps == TIME


@pytest.mark.sampled
@each_mixer
def test_streams_that_come_and_go_give_what_each_gives_alone(name):
    mixer = make(name)
    x = {key: torch.randn(TIME, D) for key in "abc"}
    pool, got = Sessions(mixer), {key: [] for key in "abc"}

    def feed(**upto):
        part = {key: x[key][sum(map(len, got[key])) : n] for key, n in upto.items()}
        for key, y in pool.feed(part).items():
            got[key].append(y)

    pool.join("a")
    feed(a=5)
    pool.join("b")
    feed(a=6, b=1)
    feed(b=9)
    pool.join("c")
    feed(a=14, b=17, c=3)
    state = pool.drop("b")
    feed(a=20, c=9)
    pool.join("b", state)
    feed(c=TIME, b=TIME, a=TIME)
    for key in "abc":
        alone = read(mixer, x[key][None], mixer.init_state(1))[0][0]
        torch.testing.assert_close(torch.cat(got[key]), alone, rtol=0, atol=ROUNDINGS)


@pytest.mark.sampled
@each_mixer
def test_with_a_capacity_a_stream_is_not_disturbed_by_a_bit(name):
    mixer, x = make(name), torch.randn(12, D)

    def outputs(*, busy):
        pool, ys = Sessions(mixer, capacity=5), []
        pool.join("kept")
        for t, x_t in enumerate(x):
            fed = {"kept": x_t}
            if busy and t in (2, 5):
                pool.join(t)
            if busy and t == 9:
                pool.drop(2)
            if busy and t % 3:
                fed |= {other: 100 * torch.randn(D) for other in pool if other != "kept"}
            ys.append(pool.feed(fed)["kept"])
        return torch.stack(ys), pool.state("kept")

    (y, state), (y_busy, state_busy) = outputs(busy=False), outputs(busy=True)
    assert torch.equal(y, y_busy)
    for h, h_busy in zip(leaves(state), leaves(state_busy), strict=True):
        assert torch.equal(h, h_busy)


def test_the_state_of_a_stream_that_is_not_fed_is_untouched():
    pool = Sessions(model(), allow_nonfinite=True)
    pool.join("idle")
    pool.feed({"idle": torch.randn(9, 1)})
    before = pool.state("idle")
    for i in range(10):
        pool.join(i)
        pool.feed({i: torch.full((3, 1), float("nan"))})
    after = pool.state("idle")
    for h, h_after in zip(leaves(before), leaves(after), strict=True):
        assert torch.equal(h, h_after)


def test_many_streams_of_different_lengths_keep_their_names():
    stack, pool = model(pool="last"), Sessions(model(pool="last"))
    x = {i: torch.randn(1 + i % 4, 1) for i in range(50)}
    for i in x:
        pool.join(i)
    for i, y in pool.feed(x).items():
        torch.testing.assert_close(y, stack(x[i][None])[0][0], rtol=0, atol=ROUNDINGS)


def test_memory_is_that_of_the_largest_number_of_streams():
    pool = Sessions(model())
    for i in range(200):
        pool.join(i)
        if i >= 4:
            pool.drop(i - 4)
    assert len(pool) == 4
    assert all(len(h) <= 8 for h in leaves(pool._bank.state))


def test_a_saved_stream_continues_as_if_never_stopped(tmp_path):
    stack, x = model(), torch.randn(TIME, 1)
    whole = Session(stack)
    expected = [whole.feed(x[:20]), whole.feed(x[20:])]
    first = Session(stack)
    first.feed(x[:20])
    first.save(tmp_path / "a.state")
    again = Session(stack)
    again.load(tmp_path / "a.state")
    assert again.steps == 20
    assert torch.equal(again.feed(x[20:]), expected[1])
    pool = Sessions(stack)
    pool.load("from file", tmp_path / "a.state")
    torch.testing.assert_close(
        pool.feed({"from file": x[20:]})["from file"], expected[1], rtol=0, atol=ROUNDINGS
    )
    pool.save("from file", tmp_path / "b.state")
    again.load(tmp_path / "b.state")
    assert again.steps == TIME


@pytest.mark.sampled
@each_mixer
def test_every_state_survives_a_file(name, tmp_path):
    session = Session(make(name))
    session.feed(torch.randn(5, D))
    session.save(tmp_path / "s")
    other = Session(make(name))
    other.load(tmp_path / "s")
    for h, h_read in zip(leaves(session.state), leaves(other.state), strict=True):
        assert torch.equal(h, h_read)


def test_a_state_of_another_model_is_refused(tmp_path):
    Session(model()).save(tmp_path / "s")
    retrained = model()
    with torch.no_grad():
        retrained.head.bias += 1
    for other in (model(d_model=8), model(mixer="mingru"), retrained):
        session = Session(other)
        before = session.state
        with pytest.raises(ArgumentError, match=r"must be of this model, .*, got one of"):
            session.load(tmp_path / "s")
        assert session.state is before


def test_a_state_file_that_is_no_state_is_refused(tmp_path):
    session, path = Session(model()), tmp_path / "s"
    with pytest.raises(DataError, match="must exist"):
        session.load(path)
    for content in (b"", b"hello", b"\xff" * 100):
        path.write_bytes(content)
        with pytest.raises(DataError, match="must be a state that linrnn saved"):
            session.load(path)
    save_file({"0": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="must be a state that linrnn saved"):
        session.load(path)


def test_a_damaged_or_oversized_or_newer_state_is_refused(tmp_path):
    session, path = Session(model()), tmp_path / "s"
    session.save(path)
    good = bytearray(path.read_bytes())
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(DataError, match="other bytes"):
        session.load(path)
    header = {"format": 1, "model": fingerprint(session.model), "steps": 0}
    save_file({"0": torch.zeros(1, 1_000_000)}, path, {"state": json.dumps(header)})
    with pytest.raises(DataError, match=r"must hold at most .* bytes, got 4,000"):
        session.load(path)
    save_file({"0": torch.zeros(1)}, path, {"state": json.dumps(header | {"format": 2})})
    with pytest.raises(DataError, match="must be at most 1, got 2"):
        session.load(path)
    assert load_file(path).keys() == {"0"}


def test_a_state_file_with_other_parts_is_refused(tmp_path):
    stack, path = model(), tmp_path / "s"
    session = Session(stack)
    for flat in ({"0": torch.zeros(1)}, {"0": torch.zeros(1, 5, 2), "1": torch.zeros(1, 6, 2)}):
        from linrnn._files.storage import checksum

        meta = {"state": json.dumps({"format": 1, "model": fingerprint(stack), "steps": 0})}
        meta["sha256"] = checksum(flat, meta)
        save_file(flat, path, meta)
        with pytest.raises(ArgumentError, match="another model"):
            session.load(path)


def test_models_that_cannot_be_streamed_are_refused():
    with pytest.raises(ArgumentError, match=r"must read forward alone, got Bidirectional"):
        Session(model(bidirectional=True))
    with pytest.raises(ArgumentError, match=r"state of fixed size, got Attention: .*growing=True"):
        Session(make("attention"))
    with pytest.raises(ArgumentError, match="state of fixed size"):
        Sessions(SequenceModel(1, 1, mixer="attention", d_model=D, n_layers=1).eval())
    with pytest.raises(ArgumentError, match=r"evaluation mode, got training mode. Call model.eval"):
        Session(model().train())
    Session(make("attention", window=4))


def test_attention_without_a_window_can_be_asked_for(tmp_path):
    session, x = Session(make("attention"), growing=True), torch.randn(9, D)
    whole = make("attention")(x[None])[0][0]
    got = [session.feed(x[:4]), session.feed(x[4:])]
    torch.testing.assert_close(torch.cat(got), whole, rtol=0, atol=ROUNDINGS)
    session.save(tmp_path / "s")
    again = Session(make("attention"), growing=True)
    again.load(tmp_path / "s")
    assert torch.equal(again.feed(x[0]), session.feed(x[0]))


def test_memory_stays_constant():
    session = Session(model(mixer="mamba"))
    sizes = set()
    for _ in range(20):
        session.feed(torch.randn(3, 1))
        sizes.add(sum(h.untyped_storage().nbytes() for h in leaves(session.state)))
    assert len(sizes) == 1


def test_wrong_input_changes_nothing():
    session = Session(model())
    session.feed([[0.5]])
    before = map_state(torch.clone, session.state)
    for wrong, error in (
        (torch.zeros(2, 5), ShapeError),
        (torch.zeros(2), ShapeError),
        ("text", DTypeError),
        (torch.zeros(1, dtype=torch.complex64), DTypeError),
    ):
        with pytest.raises(error):
            session.feed(wrong)
    for h, h_after in zip(leaves(before), leaves(session.state), strict=True):
        assert torch.equal(h, h_after)
    assert session.steps == 1


def test_tokens_are_checked_with_their_place():
    session = Session(tokens_model().eval())
    assert session.feed(3).shape == (11,)
    assert session.feed([3, 4]).shape == (2, 11)
    assert session.feed([]).shape == (0, 11)
    with pytest.raises(ArgumentError, match=r"between 0 and 10, got 11 at position 2"):
        session.feed([1, 2, 11])
    with pytest.raises(ArgumentError, match=r"got -1 at position 0"):
        session.feed(-1)
    with pytest.raises(DTypeError, match="must be integer token ids"):
        session.feed([1.5])


def test_misused_sessions_say_so():
    pool = Sessions(model(), capacity=2)
    pool.join("a")
    with pytest.raises(ArgumentError, match="got 'a', which is a stream"):
        pool.join("a")
    with pytest.raises(ArgumentError, match=r"has joined, got 'z'"):
        pool.feed({"a": [0.1], "z": [0.1]})
    with pytest.raises(ShapeError, match="stream 'a'"):
        pool.feed({"a": [0.1, 0.2]})
    pool.join("b")
    with pytest.raises(ArgumentError, match="at most capacity=2"):
        pool.join("c")
    with pytest.raises(ArgumentError, match="of one row, got 2"):
        Sessions(model()).join("x", model().init_state(2))
    with pytest.raises(ArgumentError, match="same model"):
        Sessions(model()).join("x", model(d_model=8).init_state(1))


def test_nothing_of_the_gradient_is_kept():
    mixer = make("selective_lru", learn_initial=True)
    pool = Sessions(mixer)
    pool.join("a")
    assert not pool.feed({"a": torch.zeros(D)})["a"].requires_grad
    assert not Session(mixer).state.requires_grad


def test_streams_of_blocks_with_several_states_are_not_mixed_up(tmp_path):
    stack, x = model(mixer="mingru", block="mlp", conv_width=4), torch.randn(20, 1)
    pool = Sessions(stack)
    pool.join("a")
    pool.feed({"a": x[:10]})
    pool.save("a", tmp_path / "s")
    session = Session(stack)
    session.load(tmp_path / "s")
    whole = stack(x[None])[0][0, 10:]
    torch.testing.assert_close(session.feed(x[10:]), whole, rtol=0, atol=ROUNDINGS)
    torch.testing.assert_close(pool.feed({"a": x[10:]})["a"], whole, rtol=0, atol=ROUNDINGS)

"""Many streams fed by one array: what each gives alone, and errors of one stream alone."""

import math
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn.errors import ArgumentError, DataError, DTypeError, NonFiniteError, ShapeError
from linrnn.state import leaves
from linrnn.streaming import Session, Sessions

pytestmark = pytest.mark.unchecked

ROUNDINGS = 2e-5  # of outputs near 1 in float32
SIZES = {"d_model": 6, "n_layers": 2, "pool": "none", "norm": "layer"}
NAMES = [n for n in mixers.names() if "constant_memory" not in mixers.load(n).declared]


def model(**options):
    torch.manual_seed(0)
    return SequenceModel(2, 3, **{**SIZES, **options}).eval()


def tokens():
    torch.manual_seed(0)
    return SequenceModel(11, 11, **SIZES, encoder="tokens").eval()


def joined(stack, names, **options):
    pool = Sessions(stack, **options)
    for name in names:
        pool.join(name)
    return pool


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=ROUNDINGS)


def bits(pool, name):
    return [h.clone() for h in leaves(pool.state(name))]


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_rows_in_any_order_are_as_each_stream_alone(name):
    """In order, apart, and side by side: states are read in place, gathered, and in place again."""
    stack = model(mixer=name)
    alone = {i: Session(stack) for i in range(6)}
    pool = joined(stack, range(6))
    for order in (range(6), [4, 0, 3], [2, 3, 4], [5, 1, 2, 0], [1], range(6)):
        for size in ((2,), (3, 2)):
            x = torch.randn(len(order), *size)
            fed = pool.feed_rows(list(order), x)
            assert not fed.errors
            for i, x_row, y in zip(order, x, fed.y, strict=True):
                close(y, alone[i].feed(x_row))
    assert [pool.steps(i) for i in range(6)] == [alone[i].steps for i in range(6)]


@pytest.mark.parametrize("kind", ["tensor", "array", "lists"])
def test_an_array_may_be_of_any_kind(kind):
    x = torch.randn(3, 4, 2)
    given = {"tensor": x, "array": x.double().numpy(), "lists": x.tolist()}[kind]
    pool = joined(model(), "abc")
    whole = pool.feed_rows(list("abc"), given).y
    close(whole, model()(x)[0])
    by_name = joined(model(), "abc").feed(dict(zip("abc", x, strict=True)))
    assert torch.equal(torch.stack([*by_name.values()]), whole)


BAD = {
    "nan": (lambda x: [*x[:1], [math.nan, 0.0], *x[2:]], ArgumentError, "must be finite numbers"),
    "too large": (lambda x: [*x[:1], [1e39, 0.0], *x[2:]], ArgumentError, "must be finite numbers"),
    "diverges": (lambda x: [*x[:1], [3e38, 3e38], *x[2:]], NonFiniteError, "outputs and state"),
    "shape": (lambda x: [*x[:1], [1.0], *x[2:]], ShapeError, "channels=2"),
    "text": (lambda x: [*x[:1], "one", *x[2:]], DTypeError, "must be numbers"),
    "complex": (lambda x: [*x[:1], torch.ones(2) * 1j, *x[2:]], DTypeError, "must be real"),
    "nothing": (lambda x: [*x[:1], None, *x[2:]], DTypeError, "must be numbers"),
}


@pytest.mark.parametrize("capacity", [None, 9])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_input_fails_its_stream_alone(case, capacity):
    spoil, kind, text = BAD[case]
    stack = model()
    with torch.no_grad():
        stack.encoder.weight.mul_(4)  # of 3e38 it makes what is not finite
    pool, other = (joined(stack, "abcd", capacity=capacity) for _ in range(2))
    x = torch.randn(4, 2).tolist()
    for one in (pool, other):
        one.feed_rows(list("abcd"), x)
    before = bits(pool, "b")
    fed = pool.feed_rows(list("abcd"), spoil(x))
    assert list(fed.errors) == [1]
    assert isinstance(fed.errors[1], kind)
    assert fed.errors[1].stream == "b"
    with pytest.raises(kind, match=f"stream 'b'.*{text}"):
        raise fed.errors[1]
    assert fed.y[1].isnan().all()
    expected = other.feed_rows(list("acd"), [x[0], *x[2:]]).y
    close(fed.y[[0, 2, 3]], expected)
    assert all(map(torch.equal, bits(pool, "b"), before))
    assert [pool.steps(name) for name in "abcd"] == [2, 1, 2, 2]
    # by name it is all or none, and the error says whose fault it is
    before = bits(pool, "a")
    with pytest.raises(kind) as error:
        pool.feed(dict(zip("abcd", spoil(x), strict=True)))
    assert error.value.stream == "b"
    assert all(map(torch.equal, bits(pool, "a"), before))


def test_a_stream_that_is_unknown_or_comes_twice_fails_alone():
    pool = joined(model(), "ab")
    fed = pool.feed_rows(["a", "z", "b", [], "a"], torch.ones(5, 2))
    assert {place: error.stream for place, error in fed.errors.items()} == {1: "z", 3: [], 4: "a"}
    assert fed.y.isnan().any(1).tolist() == [False, True, False, True, True]
    assert (pool.steps("a"), pool.steps("b")) == (1, 1)
    with pytest.raises(ArgumentError, match="must each come once, got 'a' twice"):
        raise fed.errors[4]
    with pytest.raises(ArgumentError, match="has joined, got 'z'"):
        raise fed.errors[1]


def test_an_array_that_fits_no_stream_is_an_error_of_the_call():
    pool = joined(model(), "ab")
    for x, error in (
        (torch.ones(2, 3), ShapeError),
        (torch.ones(3, 2), ShapeError),
        (np.ones((2, 2), complex), DTypeError),
        ([[0.0, 0.0]], ShapeError),
        (None, DTypeError),
        (3.0, DTypeError),
    ):
        with pytest.raises(error, match=r"^Sessions\.feed_rows: x must"):
            pool.feed_rows(["a", "b"], x)
    with pytest.raises(ArgumentError, match="names must be a list"):
        pool.feed_rows("ab", torch.ones(2, 2))
    assert pool.steps("a") == 0


def test_chunks_of_different_lengths_are_filled_with_nan():
    pool, x = joined(model(), "abc"), [torch.randn(n, 2) for n in (3, 1, 2)]
    fed = pool.feed_rows(list("abc"), x)
    assert fed.y.shape == (3, 3, 3)
    for row, part in zip(fed.y, x, strict=True):
        close(row[: len(part)], model()(part[None])[0][0])
        assert row[len(part) :].isnan().all()
    assert joined(model(pool="mean"), "abc").feed_rows(list("abc"), x).y.shape == (3, 3)
    assert pool.feed_rows([], torch.ones(0, 2)).y.shape == (0, 3)


def test_tokens_are_checked_row_by_row():
    pool = joined(tokens(), "abc")
    fed = pool.feed_rows(list("abc"), torch.tensor([[1, 2], [3, 11], [-1, 4]]))
    assert fed.y.shape == (3, 2, 11)
    assert list(fed.errors) == [1, 2]
    with pytest.raises(ArgumentError, match=r"stream 'b': tokens must be .* got 11 at position 1"):
        raise fed.errors[1]
    fed = pool.feed_rows(list("abc"), [1, True, 2.0])
    assert list(fed.errors) == [1, 2]
    assert pool.feed_rows(np.array(list("abc")), np.array([1, 2, 3])).y.shape == (3, 11)
    with pytest.raises(DTypeError, match="must be integer token ids"):
        pool.feed_rows(list("abc"), torch.ones(3))


def test_times_are_an_array_or_a_list():
    torch.manual_seed(0)
    stack = SequenceModel(2, 3, mixer="s5", **SIZES).eval()
    x, dt = torch.randn(3, 4, 2), torch.rand(3, 4) + 0.5
    expected = stack(x, dt=dt)[0]
    for given in (dt, dt.numpy(), list(dt), dt.tolist()):
        close(joined(stack, "abc").feed_rows(list("abc"), x, given).y, expected)
    step = joined(stack, "abc").feed_rows(list("abc"), x[:, 0], dt[:, 0]).y
    close(step, expected[:, 0])
    fed = joined(stack, "abc").feed_rows(list("abc"), x, [dt[0], dt[1, :2], None])
    assert list(fed.errors) == [1]
    close(fed.y[2], stack(x)[0][2])
    with pytest.raises(ShapeError, match="dt must have shape"):
        joined(stack, "abc").feed_rows(list("abc"), x, dt[:2])


def test_a_file_of_all_streams_brings_them_back(tmp_path):
    pool, x = joined(model(), ["a", 7, "b"]), torch.randn(3, 5, 2)
    pool.feed_rows(["a", 7, "b"], x)
    pool.drop("a")
    pool.save_all(tmp_path / "all")
    again = joined(model(), ["c"])
    again.load_all(tmp_path / "all")
    assert set(again) == {"c", 7, "b"}
    assert again.steps(7) == 5
    for name in (7, "b"):
        assert all(map(torch.equal, bits(again, name), bits(pool, name)))
    with pytest.raises(ArgumentError, match="must be new, got 7"):
        again.load_all(tmp_path / "all")
    with pytest.raises(ArgumentError, match="of this model"):
        Sessions(model(mixer="gru")).load_all(tmp_path / "all")
    with pytest.raises(ArgumentError, match="at most capacity=1"):
        Sessions(model(), capacity=1).load_all(tmp_path / "all")
    damaged = bytearray((tmp_path / "all").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "bad").write_bytes(damaged)
    for path in ("bad", "none"):
        with pytest.raises(DataError):
            Sessions(model()).load_all(tmp_path / path)
    pool.join(("no", "text"))
    with pytest.raises(ArgumentError, match="must be texts or integers"):
        pool.save_all(tmp_path / "all")


def test_a_file_of_no_streams_is_one(tmp_path):
    Sessions(model()).save_all(tmp_path / "all")
    pool = Sessions(model())
    pool.load_all(tmp_path / "all")
    assert not list(pool)


def calls(run):
    """How many functions of Python, and of others, are called."""
    counts = Counter()
    sys.setprofile(lambda frame, event, argument: counts.update([event]))
    try:
        run()
    finally:
        sys.setprofile(None)
    return counts["call"], counts["c_call"]


@pytest.mark.parametrize("order", [1, -1])
def test_thousands_of_streams_are_fed_without_a_look_at_each(order):
    """But for one to find a stream by its name; `benchmarks/serve.py` has the times."""
    counts = []
    for n in (200, 2000):  # steps of fewer may be recorded
        names = [f"client-{i}" for i in range(n)]
        pool, x = joined(model(mixer="gru", d_model=16), names), torch.randn(n, 2)
        with torch.no_grad():
            counts.append(
                calls(lambda pool=pool, names=names, x=x: pool.feed_rows(names[::order], x))
            )
    (few_ours, few_others), (ours, others) = counts
    assert ours == few_ours
    assert others - few_others <= 2000 - 200

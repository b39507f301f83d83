"""Specifications of states: what is made of them, and what is refused."""

import pytest
import torch

from linrnn import mixers
from linrnn.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from linrnn.state_spec import (
    Part,
    check_state,
    closed,
    complex_,
    describe,
    initial,
    integer,
    of_state,
    opened,
    real,
    with_axes,
)

CPU, LIKE = torch.device("cpu"), torch.zeros(1)
TREE = {
    "h": real(d_state=3, start=0.5),
    "pair": (complex_(modes=2), [integer()]),
    "kept": real(entries=None, d_head=4),
}


def made(dtype=None, **factory):
    return initial("Layer", TREE, 2, LIKE, dtype=dtype, **factory)


def check(state, spec=TREE, rows=2, dtype=torch.float32):
    return check_state("Layer", state, spec, rows, CPU, dtype)


@pytest.mark.parametrize(
    ("dtype", "wide", "pairs"),
    [
        (None, torch.float32, torch.complex64),
        (torch.bfloat16, torch.float32, torch.complex64),
        (torch.float64, torch.float64, torch.complex128),
    ],
)
def test_the_first_state_follows_the_tree(dtype, wide, pairs):
    state = made(dtype)
    assert torch.equal(state["h"], torch.zeros(2, 3, dtype=wide))
    assert (state["pair"][0].shape, state["pair"][0].dtype) == ((2, 2), pairs)
    assert (state["pair"][1][0].shape, state["pair"][1][0].dtype) == ((2,), torch.int64)
    assert state["kept"].shape == (2, 0, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_is_the_start_and_every_other_number_itself(dtype):
    spec = {"log": real(n=4, start=-1e30), "sum": real(n=4)}
    numbers = torch.tensor([[0.0, 1e-30, -88.5, 3.25]], dtype=dtype, requires_grad=True)
    inside = opened({"log": numbers, "sum": numbers}, spec)
    assert inside["sum"] is numbers
    assert inside["log"].tolist() == [[pytest.approx(-1e30), *numbers[0, 1:].tolist()]]
    outside = closed({"log": numbers}, {"log": spec["log"]})["log"]
    assert outside.tolist() == [[torch.finfo(dtype).tiny, *numbers[0, 1:].tolist()]]
    for h in (inside["log"], outside):  # what is learned may begin as zeros
        assert torch.autograd.grad(h.sum(), numbers)[0].tolist() == [[1.0] * 4]


def test_what_was_saved_before_zero_was_the_start_reads_on():
    """A start of its own number: 1/2 of minGRU, the logarithm of nothing of RWKV."""
    torch.manual_seed(0)
    for name, part, start in (("mingru", None, 0.5), ("rwkv4", "log_norm", -1e30)):
        layer, x = mixers.load(name)(4), torch.randn(2, 5, 4)
        state = layer.init_state(2)
        (state if part is None else state[part]).fill_(start)
        assert torch.equal(layer(x, state)[0], layer(x)[0])


def test_what_fits_is_not_copied_and_what_is_too_narrow_is_cast():
    state = made()
    state["kept"] = torch.randn(2, 7, 4)  # as many entries as were read
    same = check(state)
    assert all(same[name] is state[name] for name in ("h", "kept"))
    assert isinstance(same["pair"], tuple)
    assert isinstance(same["pair"][1], list)
    assert check({**state, "h": state["h"].bfloat16()})["h"].dtype == torch.float32
    assert check(state, dtype=torch.float64)["pair"][0].dtype == torch.complex128


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"h": torch.zeros(3, 3)},
            ShapeError,
            r"must have shape \(batch=2, d_state=3\)",
        ),
        ({"h": torch.zeros(2)}, ShapeError, r"got \(2,\)"),
        ({"kept": torch.zeros(2, 1, 5)}, ShapeError, r"\(batch=2, entries, d_head=4\)"),
        ({"h": torch.zeros(2, 3) * 1j}, DTypeError, "must be torch.float32, got torch.complex64"),
        ({"h": "h"}, DTypeError, r"a tensor of shape \(batch=2, d_state=3\), got str"),
        ({"h": torch.zeros(2, 3, device="meta")}, DeviceError, "must be on cpu like x, got meta"),
        ({"pair": (torch.zeros(2, 2) * 1j,)}, DTypeError, "must be a tuple of 2, got a tuple of 1"),
        ({"more": torch.zeros(2)}, DTypeError, r"must be a dict with \['h', 'kept', 'pair'\]"),
        ({"h": torch.zeros(2, 3).to_sparse()}, DTypeError, "dense tensor"),
        (
            {"h": torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])},
            DTypeError,
            "dense tensor, got a nested one",
        ),
    ],
)
def test_what_does_not_fit_is_named(change, error, text):
    with pytest.raises(error, match=text):
        check({**made(), **change})


@pytest.mark.unchecked
def test_a_state_cannot_be_made_of_nonsense():
    with pytest.raises(ArgumentError, match="batch_size must be an integer of at least 0, got -1"):
        initial("Layer", TREE, -1, LIKE)
    with pytest.raises(DTypeError, match="dtype must be a real floating-point one"):
        made(torch.int64)
    with pytest.raises(ArgumentError, match="device must be one PyTorch knows"):
        made(device="moon")


def test_a_specification_of_a_state_fits_it():
    state = made()
    state["kept"] = torch.zeros(2, 0, 4)
    found = of_state(state)
    check(state, found)
    assert found["kept"] == Part("real", {"axis_1": None, "axis_2": 4})
    assert found["pair"][1][0].kind == "integer"


def test_axes_in_front_and_words():
    assert with_axes(TREE, layers=3)["kept"].axes == {"layers": 3, "entries": None, "d_head": 4}
    assert describe(TREE) == [
        "state['h']: (batch, d_state) real",
        "state['pair'][0]: (batch, modes) complex",
        "state['pair'][1][0]: (batch) integer",
        "state['kept']: (batch, entries, d_head) real",
    ]

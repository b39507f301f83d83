import pytest
import torch

from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.state import (
    batch_size,
    concat,
    detach,
    flatten,
    leaves,
    load,
    map_state,
    n_floats,
    put,
    read_header,
    save,
    select,
    to,
    unflatten,
)

STATE = {
    "layers": [torch.randn(2, 3, dtype=torch.complex64), (torch.randn(2, 1), torch.randn(2))],
    "pool": {},
}


def test_flatten_and_unflatten_are_inverse():
    back = unflatten(flatten(STATE), STATE)
    assert all(torch.equal(x, y) for x, y in zip(leaves(back), leaves(STATE), strict=True))
    assert not any(h.is_complex() for h in flatten(STATE).values())


def test_unflatten_refuses_another_models_state():
    with pytest.raises(
        ArgumentError, match=r"must hold the tensors \['0', '1', '2'\], got \['0'\]"
    ):
        unflatten({"0": torch.zeros(1)}, STATE)


def test_sizes_count_real_numbers_of_one_row():
    assert n_floats(STATE) == 2 * 3 + 1 + 1


def test_map_and_detach_keep_the_tree():
    h = torch.ones(2, requires_grad=True) * 2
    assert not detach({"h": h})["h"].requires_grad
    assert map_state(lambda x: x[:1], STATE)["layers"][0].shape == (1, 3)


def test_concat_and_select_are_inverse():
    both = concat([STATE, map_state(lambda h: h[:1], STATE)])
    assert batch_size(both) == 3
    for h, part in zip(leaves(select(both, [0, 1])), leaves(STATE), strict=True):
        assert torch.equal(h, part)
    for h, part in zip(leaves(select(both, -1)), leaves(select(STATE, 0)), strict=True):
        assert torch.equal(h, part)
    assert batch_size(select(both, slice(1, None))) == 2


def test_select_and_concat_refuse_what_is_not_there():
    with pytest.raises(ArgumentError, match="between 0 and 1, got 2 to 2"):
        select(STATE, 2)
    with pytest.raises(ArgumentError, match="at least one state"):
        concat([])
    with pytest.raises(ArgumentError, match="of the same model"):
        concat([STATE, {"pool": {}}])


def test_put_changes_those_rows_alone():
    state = map_state(torch.clone, STATE)
    put(state, [1], map_state(torch.zeros_like, select(STATE, 0)))
    for h, before in zip(leaves(state), leaves(STATE), strict=True):
        assert torch.equal(h[0], before[0])
        assert not h[1].any()


MASK = torch.tensor([True, False])


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (MASK, r"torch.bool. Use mask.nonzero\(\)\[:, 0\].$"),
        (MASK.tolist(), r"torch.bool. Use mask.nonzero\(\)\[:, 0\].$"),
        (True, "torch.bool"),
        (MASK.float(), "torch.float32.$"),
    ],
)
def test_a_mask_is_no_list_of_rows(rows, text):
    state = map_state(torch.clone, STATE)
    with pytest.raises(DTypeError, match=f"^select: rows must be integers, got {text}"):
        select(state, rows)
    with pytest.raises(DTypeError, match=f"^put: rows must be integers, got {text}"):
        put(state, rows, STATE)


def test_put_counts_from_the_end_as_select_does():
    state = map_state(torch.clone, STATE)
    put(state, [-1], select(STATE, 0))
    for h, before in zip(leaves(state), leaves(STATE), strict=True):
        assert torch.equal(h, before[[0, 0]])


@pytest.mark.parametrize(
    ("rows", "part", "error", "text"),
    [
        ([2], select(STATE, 0), ArgumentError, "^put: rows must be between 0 and 1, got 2 to 2.$"),
        ([0], STATE, ShapeError, r"must have tensors of .*complex64 \(1, 3\), .* \(2, 3\)"),
        ([0], {"h": torch.zeros(1, 3)}, ShapeError, r"got torch.float32 \(1, 3\).$"),
        ([0], to(select(STATE, 0), dtype=torch.float64), ShapeError, "got torch.complex128"),
    ],
)
def test_put_writes_nothing_where_a_part_does_not_fit(rows, part, error, text):
    state = map_state(torch.clone, STATE)
    with pytest.raises(error, match=text):
        put(state, rows, part)
    assert all(torch.equal(h, k) for h, k in zip(leaves(state), leaves(STATE), strict=True))


def test_to_keeps_complex_complex_and_integers_integers():
    state = to(
        {"h": torch.zeros(1, dtype=torch.cfloat), "n": torch.zeros(1).long()}, dtype=torch.float64
    )
    assert [h.dtype for h in leaves(state)] == [torch.complex128, torch.int64]
    assert to(state, "meta")["n"].device.type == "meta"


def test_save_and_load_are_inverse(tmp_path):
    save(STATE, tmp_path / "s", {"of": "a test"})
    assert read_header(tmp_path / "s") == {"format": 1, "of": "a test"}
    for h, back in zip(leaves(STATE), leaves(load(tmp_path / "s", STATE)), strict=True):
        assert torch.equal(h, back)
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]


@pytest.mark.parametrize("name", ["a", "mm", "state"])
def test_a_loaded_complex_state_lies_where_pytorch_can_compute(tmp_path, name):
    """A file holds pairs of float64 at multiples of 8 bytes; of complex128 PyTorch expects 16."""
    h = torch.randn(2, 3, dtype=torch.complex128)
    for n in range(4):  # lengths of the header move what is behind it
        save({"h": h}, tmp_path / "s", {name: "x" * 4 * n})
        back = load(tmp_path / "s", {"h": h})["h"]
        assert back.data_ptr() % back.element_size() == 0
        torch.testing.assert_close(torch.addcmul(h, back, back), h + h * h)


def test_the_order_of_keys_makes_no_difference(tmp_path):
    a, b = torch.ones(1, 2), torch.zeros(1, 2)
    one, other = {"a": a, "b": [b]}, {"b": [b], "a": a}
    assert [h is k for h, k in zip(leaves(one), leaves(other), strict=True)] == [True, True]
    assert torch.equal(unflatten(flatten(other), one)["a"], a)
    assert torch.equal(concat([one, other])["a"], torch.ones(2, 2))
    save(other, tmp_path / "s")
    assert torch.equal(load(tmp_path / "s", one)["a"], a)
    state = {"b": [torch.ones(1, 2)], "a": torch.ones(1, 2)}
    put(state, [0], one)
    assert torch.equal(state["b"][0], b)

import pytest
import torch

from linrnn.errors import ArgumentError
from linrnn.state import detach, flatten, leaves, map_state, n_floats, unflatten

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

"""The page "Functions of a step" has every function, with the numbers of PyTorch at the edges."""

import importlib
import math

import pytest
import torch

from linrnn.cells import functions


@pytest.fixture
def page(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "docs")
    return importlib.import_module("_pages.cell_functions")


#: Where PyTorch's gradient is another: NaN at an infinity, of a length that is not above 0.
OTHERS = {
    "torch.logaddexp(x, x)": [-math.inf, math.inf],
    "torch.polar(x, x).real": [-1.0, 0.0],
}


def test_every_function_has_its_row_and_its_calls(page):
    listed = [path for paths, _ in page.names() for path in paths]
    assert len(listed) == len({*listed})
    assert {page._short(path) for path in functions()} == {*listed}
    called = {call for _, calls in page.names() for call in calls}
    assert called >= {call for calls in page.CALLS.values() for call in calls}
    assert len(page.mixing()) == len(page.MIXING)


def test_the_numbers_are_those_of_pytorch(page):
    seen = 0
    for paths, calls in page.names():
        for call in calls if paths[0] not in page.mixing() else ():
            (value, slope), (its_value, its_slope) = (
                page.edges(call),
                page.edges(call, by_cell=False),
            )
            torch.testing.assert_close(
                value, its_value, rtol=1e-14, atol=1e-15, equal_nan=True, msg=call
            )
            same = torch.isclose(slope, its_slope, rtol=1e-14, atol=1e-15, equal_nan=True)
            others = [x for x, is_same in zip(page.EDGES, same, strict=True) if not is_same]
            assert others == OTHERS.get(call, []), call
            seen += 1
    assert seen > 90


def test_a_call_that_is_wrong_is_noticed(page, monkeypatch):
    """The row compares what a cell computes with what PyTorch does, and not with itself."""
    from linrnn.engine.functions import FUNCTIONS

    monkeypatch.setitem(FUNCTIONS, "tanh", FUNCTIONS["sigmoid"])
    (value, _), (its_value, _) = page.edges("x.tanh()"), page.edges("x.tanh()", by_cell=False)
    assert not torch.allclose(value[1:4], its_value[1:4])

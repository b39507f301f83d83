"""The laws of ops over every cell of the library and of the literature; nothing lists the first."""

import gc
import importlib
from collections.abc import Mapping

import literature
import pytest
import torch

import package_modules
from linrnn import mixers
from linrnn.cells import Cell
from linrnn.ops import cell_scan
from linrnn.testing import BrokenPropertyError, check_cell
from linrnn.testing._every_op import (
    BACKEND_LAWS,
    any_size_in_one_graph,
    backends,
    derivatives,
    matches_its_steps,
)
from linrnn.testing._mixer_runs import build
from linrnn.testing._options import option_sets


def _cells(values):
    for value in values:
        if isinstance(value, Cell):
            yield value
        elif isinstance(value, Mapping):
            yield from _cells(value.values())


OURS = {
    x.name: x
    for module in package_modules.MODULES
    for x in _cells(list(vars(importlib.import_module(module)).values()))
}
THEIRS = {f"{name} of the literature": x for name, x in literature.CELLS.items() if x.inputs}
CELLS = OURS | THEIRS
IN_GRAPHS = any_size_in_one_graph.__name__
#: Of every kind one: what differs between the others their steps show. All laws of all are slow.
OF_EVERY_KIND = ("wkv", "turning_wkv", "rg_lru", "gru", "lstm", "tanh", "hgrn", "modrelu_complex")
STEPS = matches_its_steps.__name__
#: The checker of shapes sees the steps of every kind; of the others it would see the same calls.
RUNS = [
    pytest.param(*(law, name, form), marks=() if name in OF_EVERY_KIND else pytest.mark.unchecked)
    for law in BACKEND_LAWS
    for name in (CELLS if law == STEPS else OF_EVERY_KIND)
    for form in backends(CELLS[name])[: None if name in OF_EVERY_KIND else 1]
    if law != IN_GRAPHS
]


def test_the_cells_of_the_library_are_found():
    assert {*OF_EVERY_KIND, "relu"} <= set(OURS)


@pytest.mark.parametrize(("law", "name", "form"), RUNS)
def test_cell_keeps_law(law, name, form):
    """`test_every_law_of_a_cell` has each call in two dtypes, and here it has one of them."""
    in_turns = {"one_dtype": True} if law == STEPS else {}
    BACKEND_LAWS[law](CELLS[name], form, **in_turns)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_derivatives(name):
    derivatives(OURS[name])


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["rg_lru", "tanh"])
def test_one_graph_serves_every_size(name):
    any_size_in_one_graph(OURS[name], backends(OURS[name])[0], kinds=1)


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("name", CELLS)
def test_every_law_of_a_cell(name):
    check_cell(CELLS[name])


CHECKED = {*OURS}  # names


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("name", mixers.names())
def test_cells_that_a_mixer_makes_are_their_steps(name):
    """Those made in functions, which no module has: whatever is alive; of one name one."""
    for options in option_sets(mixers.load(name)):
        build(mixers.load(name), **options)  # which makes them
    gc.unfreeze()  # and what was there before the first test
    alive = [x for x in gc.get_objects() if issubclass(type(x), Cell)]  # not what a proxy is of
    made = {x.name: x for x in alive if x.function.__module__.startswith("linrnn.")}
    new = sorted({*made} - CHECKED)
    CHECKED.update(new)
    for cell in new:
        for form in backends(made[cell]):
            matches_its_steps(made[cell], form)
        derivatives(made[cell])


def test_a_wrong_way_to_compute_all_steps_is_caught():
    def leak(h, x):
        return 0.5 * torch.tanh(h) + x, torch.tanh(h) + x

    def late(h, x, **layout):
        return x, h + x[:, -1]

    wrong = Cell(leak, state="h", parallel=late, name="leak that is not its steps")
    y, _ = cell_scan(wrong, x=torch.ones(1, 2, 1), form="scan")
    assert torch.equal(y, torch.ones(1, 2, 1))
    with pytest.raises(
        BrokenPropertyError, match=r"leak that .* scan torch.float64 .*: y: differs by"
    ):
        matches_its_steps(wrong, "scan")

"""The functions of `linrnn.state`: each argument at its edges, and states of odd trees."""

import functools

import pytest
import torch
from entries import try_argument, try_call, values

from linrnn import state as states
from linrnn.errors import show

pytestmark = pytest.mark.unchecked  # who checks types refuses most of this

CONSTANTS = {"FORMAT"}
STATE = {
    "modes": [torch.ones(2, 3, dtype=torch.complex64), (torch.ones(2, 1), torch.ones(2))],
    "place": torch.tensor([1, 2]),
    "empty": {},
}
FLAT = states.flatten(STATE)
ROW = states.select(STATE, 0)

# a call of each function with all arguments right, and the names of those that are tried
ENTRIES = {
    "bad_part": {"state": STATE},
    "batch_size": {"state": STATE},
    "check_flat": {"path": "x", "flat": FLAT, "like": FLAT},
    "concat": {"states": [STATE, ROW]},
    "detach": {"state": STATE},
    "flatten": {"state": STATE},
    "leaves": {"state": STATE},
    "load": {"path": "file", "like": STATE, "limit": None, "allow_nonfinite": False},
    "map_state": {"function": torch.clone, "state": STATE},
    "n_floats": {"state": STATE},
    "ordered": {"state": STATE},
    "put": {"state": STATE, "rows": [0], "part": ROW},
    "read_header": {"path": "file"},
    "rebuilt": {"like": STATE, "tensors": states.leaves(STATE)},
    "save": {"state": STATE, "path": "new", "header": {}, "allow_nonfinite": False},
    "select": {"state": STATE, "rows": [0]},
    "to": {"state": STATE, "device": None, "dtype": None},
    "unflatten": {"flat": FLAT, "like": STATE},
}
CASES = [(entry, name) for entry, given in ENTRIES.items() for name in given]
# a function is called for its result, whatever it is, and its errors are its own
CASES.remove(("map_state", "function"))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    states.save(STATE, "file")


def call(entry, **given):
    """One call, on a copy of what it may change."""
    arguments = {**ENTRIES[entry], **given}
    if entry == "put" and "state" not in given:
        arguments["state"] = states.map_state(torch.clone, STATE)
    answer = getattr(states, entry)(**arguments)
    return answer if entry == "load" else None  # the others pass NaN on


def test_every_function_is_tried():
    assert set(ENTRIES) == set(states.__all__) - CONSTANTS


@pytest.mark.parametrize(("entry", "name"), CASES)
def test_argument(entry, name):
    try_argument(lambda value: call(entry, **{name: value}), f"{entry}: {name}")


def trees():
    """Trees that are no states, with one thing in them that no state has."""
    for value in values():
        yield from ({"h": value}, [torch.ones(2, 1), value], (value,), {"h": {"h": [value]}})
    for key in (None, 3, 0.5, (1,)):
        yield {key: torch.ones(2, 1), "h": torch.ones(2, 1)}
    yield {"h": torch.ones(2, 1), "g": torch.ones(3, 1)}


@pytest.mark.parametrize(
    ("entry", "name"), [case for case in CASES if case[1] in ("state", "like", "part")]
)
def test_tree(entry, name):
    wrong = []
    for tree in trees():
        try:
            try_call(functools.partial(call, entry, **{name: tree}), f"{name}={show(tree)}")
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} trees: " + "\n".join(wrong)

"""Every mixer of the catalogue: one pass, pieces and steps agree; bad arguments are refused."""

import functools
import inspect
from dataclasses import dataclass
from itertools import pairwise

import fuzzing
import pytest
import torch
from fuzzing import BUDGETS, share
from hypothesis import strategies as st
from strategies import SPECIAL, Numbers, numbers, placed, resets
from test_fuzz_arguments import ODD
from torch import Tensor

from linrnn import mixers
from linrnn.errors import LinrnnError
from linrnn.state import concat, leaves, map_state, select
from linrnn.testing import check_close
from linrnn.testing._mixer_laws import FORM_ROUNDINGS

pytestmark = pytest.mark.unchecked

WIDTH = 4
FORMS = [(name, form) for name in mixers.names() for form in mixers.load(name).forms]
NAMES = mixers.names()


@functools.cache
def mixer(name, form, dtype):
    """A layer with the same parameters at every call."""
    torch.manual_seed(0)
    options = {"form": form} if len(mixers.load(name).forms) > 1 else {}
    return mixers.build(name, WIDTH, options, dtype=dtype).eval()


@dataclass(frozen=True)
class Read:
    """A sequence, the state it begins from, and where it is cut."""

    dtype: torch.dtype
    x: Tensor
    before: Tensor | None  # what was read to make the state
    reset: Tensor | None
    pieces: tuple[int, ...]
    special: Numbers


@st.composite
def reads(draw):
    dtype = draw(st.sampled_from((torch.float64, torch.float64, torch.float32)))
    batch, time = draw(st.sampled_from((0, 1, 2, 3))), draw(st.sampled_from((0, 1, 2, 3, 5, 9)))
    x = draw(numbers(0.0, -0.0, 1e-40, 30.0, -30.0)).make((batch, time, WIDTH), dtype).to(dtype)
    x = placed(x, draw(st.integers(0, 3)), draw(st.integers(0, 5)))
    before = None
    if draw(st.booleans()):
        steps = draw(st.integers(0, 4))
        before = draw(numbers()).make((batch, steps, WIDTH), dtype).to(dtype)
    cuts = sorted(draw(st.lists(st.integers(0, time), max_size=3)))
    bounds = [0, *cuts, time]
    pieces = tuple(b - a for a, b in pairwise(bounds))
    reset = draw(resets(batch, time))
    return Read(dtype, x, before, reset, pieces, draw(numbers(*SPECIAL)))


def in_pieces(layer, x, state, reset, lengths):
    ys, at = [], 0
    for n in lengths:
        part = slice(at, at + n)
        y, state = layer(x[:, part], state, reset=None if reset is None else reset[:, part])
        ys.append(y)
        at += n
    return torch.cat(ys, 1), state


def in_steps(layer, x, state):
    state = layer.init_state(len(x)) if state is None else state
    ys = [x[:, :0]]
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        ys.append(y_t[:, None])
    return torch.cat(ys, 1), state


@torch.no_grad()
def check_reads(layer, case):
    x, reset = case.x, case.reset
    if getattr(layer, "form", None) in ("conv", "cumsum"):
        reset = None  # which they say that they cannot
    state = None if case.before is None else layer(case.before)[1]
    kept = x.clone()
    y, last = layer(x, state, reset=reset)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert torch.equal(x, kept), "the input was changed"
    agree(layer, "pieces", in_pieces(layer, x, state, reset, case.pieces), (y, last))
    if reset is None or not reset.any():
        agree(layer, "steps", in_steps(layer, x, state), (y, last))
    check_rows(layer, case, state, reset, y)


def agree(layer, what, got, expected):
    check_close(f"{what}: y", got[0], expected[0], roundings=FORM_ROUNDINGS)
    if "constant_memory" in layer.declared:  # what is out of sight may take room
        return
    for i, (h, true) in enumerate(zip(leaves(got[1]), leaves(expected[1]), strict=True)):
        check_close(f"{what}: state {i}", h, true, roundings=FORM_ROUNDINGS)


def check_rows(layer, case, state, reset, y):
    """Whatever is in the first row, the others do not notice."""
    if (
        len(case.x) < 2 or getattr(layer, "form", None) == "cumsum"
    ):  # which refuses what is too large
        return
    poisoned = case.x.clone()
    poisoned[0] = case.special.make(poisoned[0].shape, case.dtype).to(case.dtype)
    other, _ = layer(poisoned, state, reset=reset)
    check_close("the other rows", other[1:], y[1:], roundings=FORM_ROUNDINGS)


for _name, _form in FORMS:
    share(f"{_name} {_form}", 5)


@BUDGETS
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_mixer_reads_in_any_pieces(name, form, times):
    def check(case):
        check_reads(mixer(name, form, case.dtype), case)

    fuzzing.run(f"{name} {form}", times, reads(), check)


@functools.cache
def states():
    """A state of two rows of every mixer, and of one row of some."""
    x = torch.ones(2, 3, WIDTH)
    with torch.no_grad():
        found = [mixer(name, mixers.load(name).forms[0], torch.float32)(x)[1] for name in NAMES]
    return [*found, *(select(h, 0) for h in found[:3]), concat([found[0]] * 2)]


@st.composite
def misuses(draw, name):
    """How to call a layer, with one or two arguments that may not fit."""
    layer = mixer(name, mixers.load(name).forms[0], torch.float32)
    method = draw(st.sampled_from(("forward", "forward", "step", "init_state", "constructor")))
    usual = {
        "forward": {"x": torch.ones(2, 3, WIDTH), "state": None, "reset": None},
        "step": {"x_t": torch.ones(2, WIDTH), "state": layer.init_state(2)},
        "init_state": {"batch_size": 2, "device": None, "dtype": None},
        "constructor": {"d_model": WIDTH},
    }[method]
    if method == "constructor":
        # device and dtype are PyTorch's own, with its own errors
        known = set(inspect.signature(type(layer)).parameters) - {"device", "dtype"}
        option, value = draw(st.sampled_from(sorted(known))), draw(ODD)
        given = {"d_model": value} if option == "d_model" else {**usual, "options": {option: value}}
        return method, {"mixer": name, **given}
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from(sorted(usual)))
        if key == "state" and draw(st.booleans()):
            usual[key] = broken_state(draw, layer)
        elif key == "reset" and draw(st.booleans()):
            shape = draw(st.sampled_from(((2, 3), (1, 3), (2, 1), (3,), (2, 3, 1), (2, 0))))
            usual[key] = torch.zeros(shape, dtype=draw(st.sampled_from((torch.bool, torch.int64))))
        else:
            usual[key] = draw(ODD)
    return method, usual


def broken_state(draw, layer):
    """A state of another mixer, of another size, of another kind, or with a part replaced."""
    if draw(st.booleans()):
        return draw(st.sampled_from(states()))
    parts = leaves(layer.init_state(2))
    bad, odd = draw(st.integers(0, len(parts) - 1)), draw(ODD)
    count = iter(range(len(parts)))
    return map_state(lambda h: odd if next(count) == bad else h, layer.init_state(2))


def misuse_checker(name):
    layer = mixer(name, mixers.load(name).forms[0], torch.float32)

    def check(case):
        method, arguments = case
        call = mixers.build if method == "constructor" else getattr(layer, method)
        try:
            found = call(**arguments)
        except LinrnnError:
            return
        if method == "constructor":
            assert isinstance(found, mixers.Mixer)
        elif method == "init_state":
            size = arguments["batch_size"]
            assert all(len(h) == size for h in leaves(found))
        else:
            y, state = found
            x = arguments["x" if method == "forward" else "x_t"]
            assert y.shape == x.shape
            assert all(len(h) == len(x) for h in leaves(state))

    return check


for _name in NAMES:
    share(f"{_name} misused", 6)


@BUDGETS
@pytest.mark.parametrize("name", NAMES)
def test_mixer_answers_or_refuses(name, times):
    fuzzing.run(f"{name} misused", times, misuses(name), misuse_checker(name))

"""Derivatives forward: the Jacobian of a step, and sensitivities carried along."""

import pytest
import torch
from literature import CELLS, draw

from linrnn.errors import ArgumentError
from linrnn.ops import cell_scan

DIAGONAL = ["mingru", "slstm", "indrnn", "sru", "unicornn", "rg_lru", "cascade", "oscillator"]


@pytest.mark.parametrize("name", DIAGONAL)
def test_the_jacobian_is_that_of_autograd(name):
    cell = CELLS[name]
    given, state = draw(cell, time=1)
    given = {n: x[:, 0] if n in cell.inputs else x for n, x in given.items()}
    given |= dict(zip(cell.states, state, strict=True))

    def after(*states):
        now = given | dict(zip(cell.states, states, strict=True))
        found = cell(*(now[x] for x in cell.arguments))[1]
        return found if isinstance(found, tuple) else (found,)

    want = torch.autograd.functional.jacobian(after, tuple(state))
    got = cell.jacobian(*(given[x] for x in cell.arguments))
    for i, row in enumerate(want):
        for j, dense in enumerate(row):
            diagonal = dense.flatten(2).flatten(0, 1).diagonal().view(state[0].shape)
            torch.testing.assert_close(got[..., i, j], diagonal, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["loop", "newton"])
@pytest.mark.parametrize("name", [x for x in DIAGONAL if CELLS[x].constants])
def test_traces_carry_the_gradient_of_constants_forward(name, form):
    cell = CELLS[name]
    given, state = draw(cell, time=12)
    reset = torch.rand(2, 12, generator=torch.Generator().manual_seed(0)) < 0.1
    options = {"reset": reset} if cell.inputs else {"time": 30}
    constants = [given[x].requires_grad_() for x in cell.constants]
    y, _ = cell_scan(cell, **given, state=state, **options)
    y = y if isinstance(y, tuple) else (y,)
    into = [torch.randn_like(x) for x in y]
    want = torch.autograd.grad(y, constants, into)

    traced = cell.with_traces()
    still = {n: x.detach() for n, x in given.items()}
    zeros = [torch.zeros_like(state[0])] * (len(traced.states) - len(state))
    found, _ = cell_scan(traced, **still, state=(*state, *zeros), **options, form=form)
    slopes = found[len(y) :]
    for j, true in enumerate(want):
        got = sum((into[i] * slopes[i * len(want) + j]).sum((0, 1)) for i in range(len(y)))
        torch.testing.assert_close(got, true, rtol=1e-11, atol=1e-11)


@pytest.mark.unchecked
def test_what_mixes_channels_has_neither():
    rule = "must be of real channels apart, got the matrix W. Use torch.func.jacrev"
    with pytest.raises(ArgumentError, match=f"cell _cornn: with_traces {rule}"):
        CELLS["cornn"].with_traces()
    with pytest.raises(ArgumentError, match=f"cell _cornn: jacobian {rule}"):
        CELLS["cornn"].jacobian(*[torch.ones(2)] * 7)
    with pytest.raises(ArgumentError, match="got complex arguments"):
        CELLS["lru"].with_traces()

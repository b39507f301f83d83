"""A form for all cells of a layer or a model, and what Newton's method says of each."""

import pytest
import torch

from linrnn import SequenceModel, mixers
from linrnn.errors import BackendError, UnknownNameError
from linrnn.ops import cell_scan, explain, use_form
from linrnn.ops.cell.cell_scan._newton import ROUNDS
from linrnn.testing import check_close

NONLINEAR = ("ltc", "unicornn", "gru", "lstm", "tanh_rnn", "slstm", "ind_rnn", "sru")


@pytest.mark.parametrize("name", NONLINEAR)
def test_a_layer_by_newton_is_the_layer_with_its_gradients(name):
    torch.manual_seed(0)
    layer = mixers.load(name)(4, dtype=torch.float64)
    x = torch.randn(2, 40, 4, dtype=torch.float64, requires_grad=True)
    sources = [x, *(p for p in layer.parameters() if p.requires_grad)]
    found = []
    for form in (None, "newton"):
        with use_form(form) as noted:
            y, _ = layer(x)
        found.append((y, *torch.autograd.grad(y.square().mean(), sources)))
        assert [0 < n.rounds < ROUNDS for n in noted] == [True] * (form is not None)
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-13)


def test_it_reaches_every_layer_of_a_model_but_not_a_call_that_asks_itself():
    model = SequenceModel(3, 2, mixer="unicornn", d_model=8, n_layers=3, pool="none").eval()
    x = torch.randn(1, 50, 3)
    cell = mixers.UnICORNN.cells["unicornn"].even
    with torch.no_grad(), use_form("newton") as noted:
        y, state = model(x)
        assert len(noted) == 3
        u, one = torch.randn(1, 5, 4), torch.ones(4)
        given = {"u": u, "w": one, "c": one, "alpha": one, "step": one}
        assert "newton: requested by linrnn.ops.use_form" in explain(cell, **given)
        cell_scan(cell, **given, form="loop")
        assert len(noted) == 3
        with use_form(None):
            want, _ = model(x)
        one_more, _ = model.step(x[:, 0], state)
    assert one_more.isfinite().all()
    check_close("model", y, want, roundings=256)
    cell_scan(cell, **given)
    assert "newton:" not in explain(cell, **given)


def test_a_call_that_came_before_is_no_answer_to_another_form():
    cell = mixers.UnICORNN.cells["unicornn"].even
    one = torch.ones(4)
    given = {"u": torch.randn(1, 30, 4), "w": one, "c": one, "alpha": one, "step": one}
    for _ in range(3):
        cell_scan(cell, **given)
    with use_form("newton") as noted:
        for _ in range(3):
            cell_scan(cell, **given)
    assert len(noted) == 3


@pytest.mark.unchecked
def test_what_cannot_be_is_an_error():
    with pytest.raises(UnknownNameError, match="form"), use_form("newtn"):
        pass
    text = r"form 'scan' must be one that can .*, requested by linrnn.ops.use_form, that cannot"
    with pytest.raises(BackendError, match=text), use_form("scan"):
        mixers.GRU(4)(torch.randn(1, 9, 4))

"""Traces of layers whose parameters multiply the input: from the pass of the batch itself."""

import pytest
import torch
from test_traces import batch, close, gradients, make  # noqa: F401  a fixture is found by its name

from linrnn import learn
from linrnn.learn import _traces
from linrnn.learn._owners import owners
from linrnn.mixers import MinGRU, build

PRODUCTS = ("mingru", "minlstm", "gilr", "qrnn", "aft")


class Twice(MinGRU):
    """One whose weights also move the state past the product."""

    def _project_in(self, x):
        return super()._project_in(x) + self.in_proj.weight.sum(1).view(2, -1)


class Shared(MinGRU):
    """One that multiplies two inputs by the same weights."""

    def _project_in(self, x):
        return super()._project_in(x) + super()._project_in(torch.tanh(3 * x))


def of_class(cls):
    model = make("mingru")
    layer = cls(4, dtype=torch.float64)
    layer.load_state_dict(model.mixers[0].state_dict())
    model.blocks[0].mixer = layer
    return model


def test_layers_are_told_apart_by_what_moves_their_state():
    assert all(owners(build(name, 4)).linear for name in PRODUCTS)
    assert not any(owners(build(name, 4)).linear for name in ("lru", "s5", "hgrn", "ind_rnn"))
    assert owners(Shared(4)).linear
    assert not owners(Twice(4)).linear


@pytest.mark.parametrize("mixer", [*PRODUCTS, Shared])
@pytest.mark.parametrize("window", [1, 5])
def test_the_traces_are_those_of_each_row_alone(mixer, window, batch, monkeypatch):  # noqa: F811
    model = of_class(mixer) if isinstance(mixer, type) else make(mixer, n_layers=2)
    asked = []

    def from_products(*args, real=_traces._from_products):
        asked.append(True)
        return real(*args)

    monkeypatch.setattr(_traces, "_from_products", from_products)
    ours = learn.build("chunked_rtrl", {"window": window})
    found, _ = gradients(model, "", batch, learner=ours)
    assert len(asked) == len(model.mixers) * -(-13 // window)
    monkeypatch.setattr(_traces, "_tells", lambda *_: False)
    theirs = learn.build("chunked_rtrl", {"window": window})
    expected, _ = gradients(model, "", batch, learner=theirs)
    close(found, expected)
    close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("cls", [Twice, Shared])
def test_weights_that_are_used_twice_learn_as_by_back_propagation(cls, batch):  # noqa: F811
    model = of_class(cls)
    whole, _ = gradients(model, "bptt", batch)
    close(gradients(model, "chunked_rtrl", batch, window=3)[0], whole, "mixer")


def test_a_window_in_which_nothing_is_asked_and_frozen_weights_have_traces(batch):  # noqa: F811
    """There is no pass to ask: a pooled model learns in the last window alone."""
    model = make("mingru", pool="last")
    last = batch._replace(target=batch.target[:, -1])
    whole, _ = gradients(model, "bptt", last)
    close(gradients(model, "chunked_rtrl", last, window=4)[0], whole, "mixer")
    model.mixers[0].requires_grad_(False)
    rule = learn.build("chunked_rtrl", {"window": 4})
    gradients(model, "", last, learner=rule)
    other = learn.build("chunked_rtrl", {"window": 4})
    model.mixers[0].requires_grad_(True)
    gradients(model, "", last, learner=other)
    close(rule.state_dict(), other.state_dict())

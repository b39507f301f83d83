"""Every op as PyTorch's operator: schema, fake, autograd and tracing with dynamic shapes."""

import pytest
import torch

from linrnn.ops._op import ALL, Op
from linrnn.testing._examples import examples, ops

CALLS = [example for op in ops() for example in examples(op)]


@pytest.fixture
def called(monkeypatch):
    """The operators that are called, with their arguments."""
    calls = []
    original = Op.__call__

    def record(self, *arguments, backend=None):
        calls.append((self, arguments, backend))
        return original(self, *arguments, backend=backend)

    monkeypatch.setattr(Op, "__call__", record)
    return calls


def test_every_operator_has_examples(called):
    for call in CALLS:
        call.function(**call.arguments)
    assert {op.name for op, *_ in called} == set(ALL)


@pytest.mark.unchecked
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_operator_is_registered_properly(call, called):
    call.function(**call.arguments)
    for op, arguments, backend in called[:1]:
        inputs = [
            x.clone().requires_grad_() if i < op.gradients and x is not None else x
            for i, x in enumerate(arguments)
        ]
        torch.library.opcheck(op.operator(), (*inputs, True, backend))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_explain_says_what_runs(call, called):
    call.function(**call.arguments)
    for op, arguments, backend in called[:1]:
        kernels = op.kernels(arguments[op._lead], arguments, backend)
        name = op.explain(arguments, backend).split(":")[0]
        assert (name in op._modules) == (kernels is not None)
        assert op.explain(arguments, "tree").startswith("tree: asked for")

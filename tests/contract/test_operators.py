"""Every op as PyTorch's operator, and what is said of its calls."""

import pytest
import torch

import linrnn.ops
from linrnn.compute.op import ALL, reached
from linrnn.errors import LinrnnError, UnknownNameError
from linrnn.testing._examples import examples, ops

CALLS = [example for op in ops() for example in examples(op)]


def test_every_operator_has_examples():
    assert {reached(call.function, **call.arguments)[0].name for call in CALLS} == set(ALL)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_explain_says_what_runs(call):
    op, arguments, backend = reached(call.function, **call.arguments)
    kernels = op.kernels(arguments[op._lead], arguments, backend)
    text = linrnn.ops.explain(call.function, **call.arguments)
    assert text == op.explain(arguments, backend)
    assert (text.split(":")[0] in op._modules) == (kernels is not None)
    assert op.explain(arguments, "tree").startswith("tree: asked for")


@pytest.mark.parametrize("op", ops())
def test_explain_gives_a_reason_for_every_backend(op):
    call = next(examples(op))
    text = linrnn.ops.explain(op, **call.arguments)
    assert text == linrnn.ops.explain(call.function, **call.arguments)
    for backend in ("triton", "cpu", "tree", "reference"):
        assert (
            f"{backend}:" in text or f"{backend} cannot (" in text or f"{backend} is slower" in text
        )


@pytest.mark.unchecked
def test_explain_computes_nothing_and_leaves_no_trace():
    a, b = torch.ones(2), torch.ones(1, 4, 2)
    expected = linrnn.ops.explain("linear_scan", a, b)
    assert linrnn.ops.explain(a, b) == linrnn.ops.explain(a=a, b=b) == expected
    with pytest.raises(LinrnnError):
        linrnn.ops.explain("linear_scan", a, None)
    assert linrnn.ops.linear_scan(a, b)[0].shape == b.shape
    step = linrnn.ops.explain("linear_scan", a, b[:, :1], torch.ones(1, 2))
    assert "torch.addcmul" in step


def test_explain_and_report_know_their_ops():
    for ask in (linrnn.ops.explain, linrnn.ops.backend_report):
        with pytest.raises(UnknownNameError, match="named 'gru'"):
            ask("gru")

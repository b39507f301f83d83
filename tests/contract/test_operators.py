"""Every op as PyTorch's operator, and what is said of its calls."""

import pytest
import torch

import linrnn.ops
from linrnn.compute.composed import Composed
from linrnn.compute.op import ALL, reached
from linrnn.errors import LinrnnError, UnknownNameError
from linrnn.testing._examples import examples, ops

CALLS = [example for op in ops() for example in examples(op)]


def test_every_operator_has_examples():
    assert {reached(call.function, **call.arguments)[0].name for call in CALLS} == set(ops())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_explain_says_what_runs(call):
    op, arguments, backend = reached(call.function, **call.arguments)
    kernels = op.kernels(op.leading(arguments), arguments, backend)
    text = linrnn.ops.explain(call.function, **call.arguments)
    assert text == op.explain(arguments, backend)
    if isinstance(op, Composed):
        if op.name != "cell_scan":  # which takes a cell, and its op the text of one
            assert text == linrnn.ops.explain(op.name, *arguments)
        return
    assert (text.split(":")[0] in op._modules) == (kernels is not None)
    assert op.explain(arguments, "tree").startswith("tree: requested")


@pytest.mark.parametrize("op", [op for op in ops() if not isinstance(ALL[op], Composed)])
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


def test_explain_names_what_pytorch_computes():
    z, R, S = torch.zeros(1, 3, 1, 4), torch.zeros(1, 1, 4), torch.zeros(1, 1, 1, 1)
    text = linrnn.ops.explain("fed_back_delta", z, R, S, S[..., 0], None)
    assert text == "PyTorch's operators: nothing else computes it, on any device"
    x, h, weights = torch.zeros(2, 3, 4), [torch.zeros(2, 5)], [torch.zeros(15, n) for n in (4, 5)]
    assert linrnn.ops.explain("recurrence", x, h, weights, None, "gru").startswith("native: ")
    one = linrnn.ops.explain("recurrence", x[:, :1], h, weights, None, "gru")
    assert one == "PyTorch's operators: torch.gru, from reset to reset"


def test_explain_and_report_know_their_ops():
    for ask in (linrnn.ops.explain, linrnn.ops.backend_report):
        with pytest.raises(UnknownNameError, match="named 'gru'"):
            ask("gru")

"""First and second derivatives of every op, in every mode PyTorch has, of entangled arguments."""

from functools import partial

import pytest
import torch

from linrnn import mixers
from linrnn.ops import linear_scan
from linrnn.ops.conv.causal_conv import _OP as CONV
from linrnn.testing import BrokenPropertyError, check_derivatives, check_property
from linrnn.testing._examples import examples
from linrnn.testing._options import option_sets


def test_attention_beyond_pytorchs_own_first_derivative():
    """The fused kernel knows no second derivative."""
    from linrnn.ops.attention import softmax_read

    q, k, v = (torch.randn(2, 4, 1, 8, dtype=torch.float64) for _ in range(3))
    visible = torch.ones(2, 4, 4, dtype=torch.bool).tril()
    for mask in (None, visible):
        arguments = {"q": q, "k": k, "v": v, "visible": mask}
        check_derivatives(f"mask {mask is not None}", softmax_read, arguments)


class CountsTwice(torch.autograd.Function):
    """A convolution whose gradient, under create_graph, is that of the saved tensors themselves."""

    @staticmethod
    def forward(ctx, x, past, weight):
        ctx.save_for_backward(x, past, weight)
        return CONV.definition(x, past, weight, None, None, None, False, False)

    @staticmethod
    def backward(ctx, grad):
        create, sources = torch.is_grad_enabled(), ctx.saved_tensors
        if not create:
            sources = [x.detach().requires_grad_() for x in sources]
        with torch.enable_grad():
            y = CONV.definition(*sources, None, None, None, False, False)
        return torch.autograd.grad(y, sources, grad, create_graph=create)


def test_law_sees_paths_that_are_counted_twice():
    x, past, weight = (torch.randn(s, dtype=torch.float64) for s in ((2, 6, 2), (2, 3, 2), (2, 4)))
    arguments = {"x": x, "past": past, "weight": weight}
    with pytest.raises(BrokenPropertyError, match="gradient with create_graph"):
        check_derivatives("twice", lambda **a: CountsTwice.apply(*a.values()), arguments)


def test_law_sees_a_wrong_second_derivative():
    def wrong(a, b):
        h, _ = linear_scan(a, b)
        return h * h.detach() / 2 + h * h.detach() / 2  # the right first derivative of h^2 / 2 only

    arguments = next(examples("linear_scan")).arguments
    arguments = {n: arguments[n] for n in ("a", "b")}
    with pytest.raises(BrokenPropertyError, match="Hessian"):
        check_derivatives("wrong", wrong, arguments)


SSM = [name for name in mixers.names() if mixers.load(name).family == "ssm"]
ROUGH = ("learn_theta",)
"""The gradient of a matrix exponential is as exact as the largest number it is made of."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SSM)
def test_second_derivatives_with_every_option(name):
    """The rules of discretisation differ in what they call, and the laws know the defaults."""
    make = mixers.load(name)
    for options in option_sets(make):
        if not any(options.get(option) for option in ROUGH):
            check_property("higher_derivatives", partial(make, **options))

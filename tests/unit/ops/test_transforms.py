"""`torch.func` and forward-mode differentiation of `linear_scan`."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from linrnn.errors import ArgumentError
from linrnn.mixers import LRU
from linrnn.ops import linear_scan, log_linear_scan
from linrnn.testing import check_close, loop_scan
from linrnn.testing._op_laws import layouts, make_case


def inputs_of(case):
    x = [case.a, case.b, case.initial_state]
    return [t for t in x if t is not None]


def weighted(function, case):
    """A real number from both results, as a function of the differentiable inputs."""

    def value(*inputs):
        h, final = function(*inputs, **case.layout)
        total = (h * case.into_h.conj()).sum() + (final * case.into_final.conj()).sum()
        return total.real if total.is_complex() else total

    return value


@pytest.mark.parametrize("is_complex", [False, True])
def test_func_grad_equals_autograd_in_every_layout(is_complex):
    for case in layouts(is_complex=is_complex, times=(1, 7)):
        if case.cu_seqlens is not None and len(inputs_of(case)) == 2:
            continue  # an empty packed sequence has a state that depends on nothing
        inputs = inputs_of(case)
        which = tuple(range(len(inputs)))
        got = grad(weighted(linear_scan, case), argnums=which)(*inputs)
        leaves = [x.clone().requires_grad_() for x in inputs]
        expected = torch.autograd.grad(weighted(loop_scan, case)(*leaves), leaves)
        for x, y in zip(got, expected, strict=True):
            check_close(case.name, x, y, roundings=64)


@pytest.mark.parametrize("is_complex", [False, True])
def test_jvp_equals_that_of_the_loop_in_every_layout(is_complex):
    for case in layouts(is_complex=is_complex, times=(1, 7)):
        inputs = inputs_of(case)
        tangents = [torch.randn_like(x) for x in inputs]

        def run(function, case=case):
            return lambda *args: function(*args, **case.layout)

        got = jvp(run(linear_scan), tuple(inputs), tuple(tangents))
        expected = jvp(run(loop_scan), tuple(inputs), tuple(tangents))
        for x, y in zip((*got[0], *got[1]), (*expected[0], *expected[1]), strict=True):
            check_close(case.name, x, y, roundings=64)


def test_forward_mode_without_func():
    case = make_case(time=5)
    with forward_ad.dual_level():
        h, final = linear_scan(
            forward_ad.make_dual(case.a, torch.ones_like(case.a)), case.b, case.initial_state
        )
        tangent = forward_ad.unpack_dual(h).tangent
        assert forward_ad.unpack_dual(final).tangent is not None
    _, expected = jvp(
        lambda a: loop_scan(a, case.b, case.initial_state)[0], (case.a,), (torch.ones_like(case.a),)
    )
    check_close("tangent", tangent, expected)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("mapped", list(itertools.product([None, 0, 1], repeat=3)))
def test_vmap_equals_a_loop_of_calls(mapped, resets, constant):
    if mapped == (None, None, None):
        return
    case = make_case(time=4, batch=2, channels=3, constant=constant, resets=resets)
    stacked = [
        x if d is None else torch.stack([x, x * 0.5, x + 0.1], d)
        for x, d in zip(inputs_of(case), mapped, strict=True)
    ]

    def call(a, b, h0):
        return linear_scan(a, b, h0, reset=case.reset)

    h, final = vmap(call, mapped)(*stacked)
    for i in range(3):
        one = [x if d is None else x.select(d, i) for x, d in zip(stacked, mapped, strict=True)]
        expected_h, expected_final = call(*one)
        check_close("h", h[i], expected_h)
        check_close("final", final[i], expected_final)


def test_jacobians_agree_forward_and_backward():
    case = make_case(time=3, batch=1, channels=2)

    def last(b):
        return linear_scan(case.a, b, case.initial_state)[1]

    torch.testing.assert_close(jacrev(last)(case.b), jacfwd(last)(case.b))


def test_hessian_equals_that_of_the_loop():
    case = make_case(time=3, batch=1, channels=2, constant=True)

    def energy(function):
        return lambda a: function(a, case.b, case.initial_state)[0].square().sum()

    torch.testing.assert_close(
        hessian(energy(linear_scan))(case.a), hessian(energy(loop_scan))(case.a)
    )


def test_per_sample_gradients_of_a_layer():
    """Per-sample gradients, on which differential privacy and influence functions rest."""
    torch.manual_seed(0)
    layer = LRU(3, dtype=torch.float64)
    x = torch.randn(4, 6, 3, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return functional_call(layer, parameters, (x[None],))[0].square().sum()

    got = vmap(grad(loss), (None, 0))({n: p.detach() for n, p in parameters.items()}, x)
    for i in range(4):
        expected = torch.autograd.grad(loss(parameters, x[i]), list(parameters.values()))
        for (name, g), e in zip(got.items(), expected, strict=True):
            check_close(name, g[i], e, roundings=256)


@pytest.mark.parametrize("function", [linear_scan, log_linear_scan])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("constant", [False, True])
def test_vmap_over_packed_sequences(function, reverse, constant):
    case = make_case(time=8, packed=True, constant=constant, resets=True)
    options = {"cu_seqlens": case.cu_seqlens, "reverse": reverse}
    stacked = [torch.stack([x, x * 0.5, x + 0.1]) for x in (case.b, case.initial_state)]
    stacked.append(torch.stack([case.reset, ~case.reset, case.reset]))

    def call(b, h0, reset):
        return function(case.a, b, h0, reset=reset, **options)

    h, final = vmap(call)(*stacked)
    for i in range(3):
        expected_h, expected_final = call(*(x[i] for x in stacked))
        check_close("h", h[i], expected_h)
        check_close("final", final[i], expected_final)


@pytest.mark.unchecked
def test_vmap_over_offsets_is_refused():
    case = make_case(time=8, packed=True)
    offsets = torch.stack([case.cu_seqlens, case.cu_seqlens])
    with pytest.raises(ArgumentError, match="cu_seqlens must be the same for all calls under vmap"):
        vmap(lambda cu_seqlens: linear_scan(case.a, case.b, cu_seqlens=cu_seqlens))(offsets)

"""The gated norm against its equation in NumPy, with the gradients of its definition."""

import itertools

import numpy as np
import pytest
import torch

import linrnn.ops.gated_norm as module
from linrnn.compute import native
from linrnn.errors import ArgumentError, LinrnnError, ShapeError
from linrnn.ops import explain, gated_rms_norm, use_backend

BACKENDS = ["cpu", "tree"] if native.load()[0] is not None else ["tree"]
WIDTHS = (16, 64, 80, 192)  # of a group: in registers if bfloat16, of one size or any; too long
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
OPTIONS = [
    {"groups": groups, "norm_first": norm_first, "gate": gate}
    for groups, norm_first, gate in itertools.product((1, 3), (False, True), ("silu", "sigmoid"))
]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_option = pytest.mark.parametrize("options", OPTIONS)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def arguments(channels=51, batch=2, time=35, gated=True, weighted=True):
    x, z = drawn(batch, time, channels), drawn(batch, time, channels, seed=1)
    return [x, z if gated else None, drawn(channels, seed=2) if weighted else None]


def equation(x, z, weight, groups=1, eps=1e-5, norm_first=False, gate="silu"):
    x, z, weight = (None if t is None else t.double().numpy() for t in (x, z, weight))
    opened = None if z is None else (z if gate == "silu" else 1) / (1 + np.exp(-z))
    h = x if z is None or norm_first else x * opened
    parts = h.reshape(*h.shape[:-1], groups, -1)
    y = (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + eps)).reshape(x.shape)
    y = y if weight is None else weight * y
    return y * opened if norm_first and z is not None else y


@each_option
@each_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm_is_its_equation(dtype, backend, options):
    for gated, weighted in itertools.product((False, True), repeat=2):
        tensors = [
            None if t is None else t.to(dtype) for t in arguments(gated=gated, weighted=weighted)
        ]
        with use_backend(backend):
            y = gated_rms_norm(*tensors, **options)
        expected = equation(*tensors, **options)
        assert y.dtype == dtype
        error = np.abs(y.double().numpy() - expected).max()
        assert error <= TOLERANCE[dtype] * np.abs(expected).max()


@each_option
def test_gradients_are_those_of_the_definition(options):
    for gated, weighted, dtype in itertools.product((0, 1), (0, 1), TOLERANCE):
        tensors = arguments(gated=gated, weighted=weighted)
        leaves = [[None if t is None else t.to(d) for t in tensors] for d in (dtype, torch.float64)]
        if dtype != torch.float64:  # the same numbers
            leaves[1] = [None if t is None else t.double() for t in leaves[0]]
        gradients = []
        for each, backend in zip(leaves, (BACKENDS[0], "tree"), strict=True):
            sources = [t.requires_grad_() for t in each if t is not None]
            with use_backend(backend):
                y = gated_rms_norm(*each, **options)
            into = drawn(*y.shape, seed=3).to(dtype).to(y.dtype)
            gradients.append(torch.autograd.grad(y, sources, into))
        for got, true in zip(*gradients, strict=True):
            assert got.dtype == dtype
            scale = float(true.abs().max())
            assert float((got.double() - true).abs().max()) <= 4 * TOLERANCE[dtype] * scale


@each_option
def test_derivatives_of_both_orders(options):
    leaves = [t.requires_grad_() for t in arguments(6, 1, 2)]
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda *each: gated_rms_norm(*each, **options), leaves, fast_mode=True)
    x, z, weight = (t.detach() for t in leaves)
    by_row = torch.func.vmap(lambda x, z: gated_rms_norm(x, z, weight, **options))
    torch.testing.assert_close(by_row(x, z), gated_rms_norm(x, z, weight, **options))


@each_backend
def test_any_strides_mixed_dtypes_and_several_threads(backend):
    x, z, weight = arguments(48)
    expected = torch.from_numpy(equation(x, z, weight, groups=2))
    views = (
        lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
        lambda t: torch.stack([t, -t], -1).flatten(-2)[..., ::2],
        lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    )
    into = drawn(*x.shape, seed=3)
    leaves = [t.clone().requires_grad_() for t in (x, z, weight)]
    with use_backend("tree"):
        true_grads = torch.autograd.grad(gated_rms_norm(*leaves, groups=2), leaves, into)
    with use_backend(backend):
        for view in views:
            tensors = [view(t).detach().requires_grad_() for t in (x, z, weight)]
            y = gated_rms_norm(*tensors, groups=2)
            torch.testing.assert_close(y, expected)
            grads = torch.autograd.grad(y, tensors, view(into))
            for g, true in zip(grads, true_grads, strict=True):
                torch.testing.assert_close(g, true)
        mixed = gated_rms_norm(x.float(), z.bfloat16(), weight, groups=2)
        assert mixed.dtype == torch.float32
        np.testing.assert_allclose(
            mixed, equation(x.float(), z.bfloat16(), weight, groups=2), rtol=0, atol=1e-5
        )
        threads = torch.get_num_threads()
        try:
            results = []
            for count in (1, 3):
                torch.set_num_threads(count)
                leaves = [drawn(3000, 96, seed=i).requires_grad_() for i in range(2)]
                w = drawn(96).requires_grad_()
                y = gated_rms_norm(*leaves, w)
                results.append((y, *torch.autograd.grad(y.square().sum(), [*leaves, w])))
        finally:
            torch.set_num_threads(threads)
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@each_backend
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (3, 0), (1,), (4,)])
def test_empty_and_small_shapes(backend, shape):
    x, z = drawn(*shape).requires_grad_(), drawn(*shape, seed=1)
    weight = drawn(shape[-1]).requires_grad_()
    with use_backend(backend):
        y = gated_rms_norm(x, z, weight)
        grads = torch.autograd.grad(y.sum(), [x, weight])
    assert y.shape == x.shape
    assert [g.shape for g in grads] == [x.shape, weight.shape]
    assert all(bool(g.isfinite().all()) for g in grads)


@pytest.mark.unchecked
def test_one_graph_serves_every_size():
    compiled = torch.compile(gated_rms_norm, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, time in ((2, 5), (3, 7)):
        tensors = [t.requires_grad_() for t in arguments(12, batch, time)]
        y = compiled(*tensors)
        torch.testing.assert_close(y, gated_rms_norm(*tensors))
        torch.autograd.grad(y.sum(), tensors)


def test_nothing_but_the_arguments_is_kept():
    tensors = [t.requires_grad_() for t in arguments()]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        gated_rms_norm(*tensors)
    if "cpu" in BACKENDS:
        assert {t.data_ptr() for t in saved} == {t.data_ptr() for t in tensors}


def test_explain_says_who_computes():
    x, z, weight = arguments()
    with use_backend("tree"):
        assert explain(gated_rms_norm, x, z, weight).startswith("tree: requested")
    if "cpu" in BACKENDS:
        assert explain(gated_rms_norm, x, z, weight).startswith("cpu: the fastest")
    assert module._PRODUCT.name == "gated_rms_norm"


@pytest.mark.unchecked
def test_errors_name_rule_and_value():
    x, z, weight = arguments()
    with pytest.raises(ArgumentError, match="groups must divide channels=51, got 2"):
        gated_rms_norm(x, z, weight, groups=2)
    with pytest.raises(ArgumentError, match="eps must be at least 0 and finite, got -1"):
        gated_rms_norm(x, z, weight, eps=-1)
    with pytest.raises(LinrnnError, match="no gated_rms_norm gate named 'relu'"):
        gated_rms_norm(x, z, weight, gate="relu")
    with pytest.raises(ShapeError, match=r"weight must have shape \(channels=51\)"):
        gated_rms_norm(x, z, weight[:5])
    with pytest.raises(ShapeError, match="z must have shape"):
        gated_rms_norm(x, z[:1], weight)


PARTS = list(itertools.product(("silu", "sigmoid", "none"), (False, True), (False, True)))


@pytest.mark.parametrize(("gate", "centre", "plain"), PARTS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norm_of_heads_is_its_equation_and_so_are_gradients(dtype, width, gate, centre, plain):
    channels = 3 * width
    x, z, weight = (t.to(dtype) for t in arguments(channels))
    leaves = [x, z, *((None, None) if plain else (weight, drawn(channels, seed=4).to(dtype)))]
    wide = [None if t is None else t.double().requires_grad_() for t in leaves]
    leaves = [None if t is None else t.requires_grad_() for t in leaves]
    parts = wide[0].unflatten(-1, (3, width))
    parts = parts - parts.mean(-1, keepdim=True) if centre else parts
    true = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(-2)
    true = true if plain else true * wide[2] + wide[3]
    acts = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "none": torch.clone}
    true = true * acts[gate](wide[1])
    y = module.gated_norm(*leaves, groups=3, eps=1e-5, gate=gate, centre=centre)
    sources = [[t for t in side if t is not None] for side in (leaves, wide)]
    into = drawn(*y.shape, seed=3).to(dtype)
    found = torch.autograd.grad(y, sources[0], into)
    expected = torch.autograd.grad(true, sources[1], into.double())
    for got, exact in zip((y, *found), (true, *expected), strict=True):
        error = float((got.double() - exact).detach().abs().max())
        assert error <= 4 * TOLERANCE[dtype] * float(exact.detach().abs().max())


def test_output_of_another_dtype():
    x, z, _ = (t.float() for t in arguments(48))
    y = module.gated_norm(x, z, groups=2, eps=1e-5, gate="silu", dtype=torch.bfloat16)
    assert y.dtype == torch.bfloat16
    exact = module.gated_norm(x, z, groups=2, eps=1e-5, gate="silu")
    assert torch.equal(y, exact.bfloat16())


def test_large_numbers_have_their_gradients():
    x = (1e15 * drawn(2, 20, 32).float()).requires_grad_()
    (got,) = torch.autograd.grad(module.gated_norm(x, groups=2, eps=1e-6, centre=True).sum(), x)
    exact = x.detach().double().requires_grad_()
    true = module.gated_norm(exact, groups=2, eps=1e-6, centre=True).sum()
    (expected,) = torch.autograd.grad(true, exact)
    assert float((got - expected).abs().max()) <= 1e-4 * 1e-15


def added_to(channels, batch=2, time=35):
    return [*(drawn(batch, time, channels, seed=i) for i in (5, 6, 7)), drawn(channels, seed=8)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("width", [17, *WIDTHS])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_what_is_added_behind_the_norm(dtype, width, gated):
    x, z, weight = arguments(3 * width, gated=gated)
    options = {"groups": 3, "eps": 1e-3, "centre": True, "gate": "silu"}
    tensors = [x, z, weight, drawn(3 * width, seed=4), *added_to(3 * width)]
    tensors = [None if t is None else t.to(dtype) for t in tensors]
    outcomes = []
    for exact, backend in ((dtype, BACKENDS[0]), (torch.float64, "tree")):
        each = [None if t is None else t.to(exact).requires_grad_() for t in tensors]
        with use_backend(backend):
            y = module.gated_norm(*each[:4], added=tuple(each[4:]), **options)
        into = drawn(*y.shape, seed=3).to(dtype).to(y.dtype)
        outcomes.append([y, *torch.autograd.grad(y, [t for t in each if t is not None], into)])
    x, z, weight, bias, q, k, v, share = (
        None if t is None else t.detach().double().numpy() for t in tensors
    )
    parts = x.reshape(*x.shape[:2], 3, -1)
    parts = parts - parts.mean(-1, keepdims=True)
    normed = (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-3)).reshape(x.shape)
    sums = (share * q * k).reshape(parts.shape).sum(-1).repeat(width, -1)
    expected = weight * normed + bias + sums * v
    expected = expected if z is None else expected * z / (1 + np.exp(-z))
    for y in (outcomes[0][0], outcomes[1][0]):
        error = np.abs(y.detach().double().numpy() - expected).max()
        assert error <= TOLERANCE[dtype] * np.abs(expected).max()
    for got, true in zip(*outcomes, strict=True):
        assert got.dtype == dtype
        scale = float(true.detach().abs().max())
        assert float((got.double() - true).abs().max()) <= 4 * TOLERANCE[dtype] * scale


def test_derivatives_of_both_orders_of_what_is_added():
    leaves = [t.requires_grad_() for t in (*arguments(6, 1, 2), *added_to(6, 1, 2))]

    def call(x, z, weight, *added):
        return module.gated_norm(x, z, weight, groups=2, eps=1e-3, added=added)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(call, leaves, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_is_added_has_the_same_bits_with_any_threads(dtype):
    threads, bits = torch.get_num_threads(), []
    drawn_ones = (*arguments(128, 4, 700), *added_to(128, 4, 700))
    leaves = [t.to(dtype).requires_grad_() for t in drawn_ones]
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            y = module.gated_norm(*leaves[:3], groups=2, eps=1e-3, added=tuple(leaves[3:]))
            bits.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*bits, strict=True))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_skip_is_added_to_what_is_normed(dtype, norm_first):
    tensors = [*arguments(51), drawn(2, 35, 51, seed=5), drawn(51, seed=6)]
    tensors = [t.to(dtype) for t in tensors]
    options = {"groups": 3, "gate": "silu", "norm_first": norm_first}
    outcomes = []
    for exact, backend in ((dtype, BACKENDS[0]), (torch.float64, "tree")):
        each = [t.to(exact).requires_grad_() for t in tensors]
        with use_backend(backend):
            y = module.gated_norm(*each[:3], skip=tuple(each[3:]), eps=1e-5, **options)
        into = drawn(*y.shape, seed=3).to(dtype).to(y.dtype)
        outcomes.append([y, *torch.autograd.grad(y, each, into)])
    x, z, weight, skip, share = (t.detach().double() for t in tensors)
    expected = equation(x + share * skip, z, weight, **options)
    for y in (outcomes[0][0], outcomes[1][0]):
        error = np.abs(y.detach().double().numpy() - expected).max()
        assert error <= TOLERANCE[dtype] * np.abs(expected).max()
    for got, true in zip(*outcomes, strict=True):
        assert got.dtype == dtype
        scale = float(true.detach().abs().max())
        assert float((got.double() - true).abs().max()) <= 4 * TOLERANCE[dtype] * scale


def test_derivatives_of_both_orders_with_a_skip():
    leaves = [*arguments(6, 1, 2), drawn(1, 2, 6, seed=5), drawn(6, seed=6)]
    leaves = [t.requires_grad_() for t in leaves]

    def call(x, z, weight, *skip):
        return module.gated_norm(x, z, weight, groups=2, eps=1e-3, gate="silu", skip=skip)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(call, leaves, fast_mode=True)


@each_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("gate", ["silu", "sigmoid"])
@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("width", [21, 64])
def test_rows_of_half_width_have_the_gradients_of_the_definition(
    backend, dtype, added, gate, norm_first, centre, width
):
    """Rows that are copied to be read lie beside all that is computed."""
    rows, groups = 12, 2
    named = {name: drawn(rows, groups * width, seed=i) for i, name in enumerate("xzqkv")}
    named["share"], into = drawn(groups * width, seed=5), drawn(rows, groups * width, seed=6)
    named, into = {n: t.to(dtype).double() for n, t in named.items()}, into.to(dtype).double()

    def gradients(dtype, backend):
        leaves = {n: t.to(dtype).requires_grad_() for n, t in named.items()}
        x, z, *parts = leaves.values()
        with use_backend(backend):
            y = module.gated_norm(
                x, z, groups=groups, eps=0.5, gate=gate, norm_first=norm_first, centre=centre,
                added=tuple(parts) if added else None, dtype=dtype,
            )  # fmt: skip
        used = list(leaves.values()) if added else [x, z]
        return [g.double() for g in torch.autograd.grad(y, used, into.to(dtype))]

    for ours, expected in zip(
        gradients(dtype, backend), gradients(torch.float64, "tree"), strict=True
    ):
        assert (ours - expected).norm() < 2 * TOLERANCE[dtype] * expected.norm()

"""Functions of the channels of a step, in Triton's interpreter and as machine code."""

import warnings
from pathlib import Path

import pytest
import torch
from test_cell_triton import needs_triton
from test_gpu_gates import SETUP as OFFLINE

from linrnn import mixers
from linrnn.cells import fold, spread
from linrnn.errors import ArgumentError
from linrnn.ops.cell.cell_scan.row_function import RowFunction

HERE = Path(__file__).parent
WIDTH = 5


def normed(x, z, rate, weight, bias):
    """Every kind of leaf: rows and channels, each with a number a channel or a head."""
    scale = spread(1 / torch.sqrt(fold(x * x, WIDTH) / WIDTH + 1e-5), WIDTH)
    y = x * scale * weight * torch.sigmoid(z) + spread(rate * bias, WIDTH)
    return y, fold(x, WIDTH) * rate


def looped(x, z, rate, weight, bias):
    """The same, head by head."""
    heads, ys, sums = rate.shape[-1], [], []
    for h in range(heads):
        part = slice(h * WIDTH, (h + 1) * WIDTH)
        square = x[..., part].square().mean(-1, keepdim=True)
        y = x[..., part] / (square + 1e-5).sqrt() * weight[part] * z[..., part].sigmoid()
        ys.append(y + (rate[..., h] * bias[h])[..., None])
        sums.append(x[..., part].sum(-1) * rate[..., h])
    return torch.cat(ys, -1), torch.stack(sums, -1)


def turned(a, b, c):
    """Complex arguments and results."""
    return a * b + c, torch.polar(torch.exp(c), c)


def leaves(heads=3, batch=(2, 7), dtype=torch.float64):
    """Arguments of `normed`: z is a part of a projection, rates and weights lie apart."""
    torch.manual_seed(0)
    width = heads * WIDTH

    def drawn(*shape):
        return torch.randn(shape).to(dtype)

    tensors = [drawn(*batch, width), drawn(*batch, 2 * width)[..., width:]]
    tensors += [drawn(heads, *batch).movedim(0, -1), drawn(2 * width)[::2], drawn(heads)]
    return [x.requires_grad_() for x in tensors]


def across(heads=3):
    """The same with rows that do not follow one another."""
    x, z, *others = leaves(heads)
    x = x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    return [x, z, *others]


def function():
    return RowFunction(
        normed, "normed", rows="x z rate", channels="weight bias", numbers="rate bias",
        definition=looped,
    )  # fmt: skip


def evaluated(call, tensors):
    """Results and gradients."""
    results = call(*tensors)
    into = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in results]
    return [*results, *torch.autograd.grad(results, tensors, into)]


SETUP = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent / "nn")!r}]
import torch
torch.set_num_threads(1)
from linrnn.ops import use_backend
from test_row_function import *

def worst(call, definition, tensors):
    exact = evaluated(definition, [x.detach().to(torch.promote_types(x.dtype, torch.float64))
                                   .requires_grad_() for x in tensors])
    with use_backend("triton"):
        ours = evaluated(call, tensors)
        again = evaluated(call, tensors)
    assert all(torch.equal(x, y) for x, y in zip(ours, again, strict=True))
    assert [x.shape for x in ours] == [x.shape for x in exact]
    return max(((x - y).abs().max() / (1 + y.abs().max())).item() for x, y in zip(ours, exact))
"""


@needs_triton
def test_kernels_are_the_loop_over_heads(warm):
    exact, strided, rounded, halves, many = warm(
        SETUP
        + """
def error(tensors, heads):
    f = function()
    return worst(lambda *x: f(*x, heads=heads, width=WIDTH), looped, tensors)

result = (
    error(leaves(), 3),
    error(across(), 3),
    error(leaves(dtype=torch.float32), 3),
    error(leaves(dtype=torch.bfloat16), 3),
    error(leaves(1, (700,)), 1),  # more rows than a program has at once
)
""",
        TRITON_INTERPRET="1",
    )
    assert max(exact, strided, many) < 1e-13
    assert rounded < 1e-6
    assert halves < 1e-2


@needs_triton
def test_complex_numbers_are_pairs(warm):
    error = warm(
        SETUP
        + """
f = RowFunction(turned, "turned", rows="a b", channels="c", complex="a b")
torch.manual_seed(0)
a, b = (torch.randn(3, 300, dtype=torch.complex128).requires_grad_() for _ in "ab")
c = torch.randn(300, dtype=torch.float64).requires_grad_()

def definition(a, b, c):
    return a * b + c, torch.polar(c.exp(), c)

def with_rows(*x):
    y, z = f(*x)
    return y, z

result = worst(with_rows, lambda *x: tuple(y.expand(3, 300) for y in definition(*x)), [a, b, c])
""",
        TRITON_INTERPRET="1",
    )
    assert error < 1e-13


@needs_triton
def test_nothing_and_what_is_not_finite(warm):
    """No rows have gradients of zeros; a row that is not finite changes no other one's."""
    empty, finite, of_rows = warm(
        SETUP
        + """
f = function()
with use_backend("triton"):
    nothing = evaluated(lambda *x: f(*x, heads=3, width=WIDTH), leaves(batch=(2, 0)))
    tensors = leaves()
    plain = evaluated(lambda *x: f(*x, heads=3, width=WIDTH), tensors)
    tensors[0].data[0, 3, 2] = float("nan")
    tensors[0].data[1, 0, 9] = float("inf")
    odd = evaluated(lambda *x: f(*x, heads=3, width=WIDTH), tensors)
result = (
    [x.abs().sum().item() for x in nothing],
    torch.isfinite(odd[0]).flatten(0, 1).all(1).logical_not().nonzero().flatten().tolist(),
    all(torch.equal(x[0, :3], y[0, :3]) for x, y in zip(odd[:5], plain[:5])),
)
""",
        TRITON_INTERPRET="1",
    )
    assert empty == [0] * 7
    assert finite == [3, 7]
    assert of_rows


@needs_triton
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_products_of_layers_are_their_definitions(warm, dtype):
    """Norms with gates, rates of heads, keys of low rank, token shifts: each in all its forms."""
    errors = warm(
        SETUP
        + f"""
from importlib import import_module
from test_row_function import product_calls
dtype = torch.{dtype}
result = {{}}
for name, (product, arguments) in product_calls(dtype).items():
    tensors = [x for x in arguments if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def call(*x, function=product):
        remaining = iter(x)
        filled = [next(remaining) if isinstance(y, torch.Tensor) and y.is_floating_point()
                  else torch.float64 if function is not product and y is dtype else y
                  for y in arguments]
        return function(*filled)

    result[name] = worst(call, lambda *x: call(*x, function=product.definition), tensors)
""",
        TRITON_INTERPRET="1",
    )
    assert len(errors) == len(product_calls(torch.float32))
    assert max(errors.values()) < (1e-5 if dtype == "float32" else 2e-2), errors


def product_calls(dtype):
    """Products with generated kernels, and arguments for them."""
    from linrnn.mixers import linoss, lru, mamba3
    from linrnn.mixers._families import log_decay, mlstm, ssd
    from linrnn.nn import features, heads
    from linrnn.ops import gated_norm
    from linrnn.ops.conv import token_mix
    from linrnn.ops.linear import skip
    from linrnn.ops.matrix import log_decays, low_rank_keys, scale_heads

    torch.manual_seed(0)

    def rows(*shape):
        return torch.randn(shape).to(dtype).requires_grad_()

    def channels(*shape):
        return torch.randn(shape).requires_grad_()

    batch, width, none = (2, 5), 12, [None] * 10
    x, z, q, k, v = (rows(*batch, width) for _ in range(5))
    weight, bias, share = (channels(width) for _ in range(3))
    rates, decays = ssd._rates(4, 0.1, 1.0), log_decay._decays(4, -5.0)
    norm, mix = gated_norm._PRODUCT, token_mix._PRODUCT
    past, mu = rows(2, 1, width), channels(3, width)
    reset = torch.rand(batch) < 0.3
    return {
        "norm": (norm, [x, *none[:9], 1, 1e-5, True, "silu", False, None]),
        "gate first": (norm, [x, z, weight, *none[:7], 3, 1e-5, False, "silu", False, None]),
        "centred": (
            norm,
            [x, z, weight, bias, q, k, v, share, None, None, 3, 1e-5, True, "none", True, None],
        ),
        "skip": (norm, [x, z, weight, *none[:5], q, share, 1, 1e-5, False, "sigmoid", False, None]),
        "scale_heads": (scale_heads._PRODUCT, [rows(*batch, 3, 4), channels(*batch, 3)]),
        "log_decays": (log_decays._PRODUCT, [x, bias, 1.0]),
        "low_rank_keys": (low_rank_keys._PRODUCT, [x, z, q, weight, bias, 3, -0.6, 1e-12, dtype]),
        "add_skip": (skip._PRODUCT, [x, weight, z]),
        "token_mix": (mix, [x, past, mu, None, None, dtype]),
        "token_mix, moved": (mix, [x, past, mu, rows(3, *batch, width), reset, dtype]),
        "second_powers": (features._POWERS, [rows(*batch, 3, 5), False, 0.7, 1.3]),
        "second_taylor": (features._POWERS, [rows(*batch, 3, 17), True, 0.7, 1.0]),
        "second_powers of one": (features._POWERS, [rows(*batch, 1), False, 0.7, 1.3]),
        "l2_normalise": (heads._LENGTHS, [rows(*batch, 3, 4), 1e-6]),
        "rates": (rates._product, [x, rows(*batch, 3), channels(3), channels(3), rates, 3, 4]),
        "decays": (decays._product, [x, bias, channels(3), decays, 3, 4]),
        "mlstm keys": (
            (keys := mlstm._written(4))._product,
            [rows(*batch, 3, 4), rows(*batch, 3), keys, 3, 4],
        ),
        "mlstm reads": (
            (reads := mlstm._quotient(4))._product,
            [rows(*batch, 3, 5)[..., :4], rows(*batch, 3), rows(*batch, 3), reads, 3, 4],
        ),
        **{
            f"linoss, {name}": (
                (steps := linoss._steps(name))._product,
                [channels(300) for _ in range(count)] + [steps, 1, 300],
            )
            for name, count in (("im", 2), ("imex", 2), ("damped", 3))
        },
        **{
            f"mamba3, {name}": (
                (steps := mamba3._rates(name, 1e-4))._product,
                [x, z, q, bias, steps, 1, width],
            )
            for name in ("heavy_tail", "softplus")
        },
        "mamba3 gate": (mamba3._GATE._product, [x, z, q, weight, mamba3._GATE, 1, width]),
        **{
            f"lru, {name}": (
                (eigenvalues := lru._eigenvalues(name))._product,
                [channels(300), channels(300), eigenvalues, 1, 300],
            )
            for name in lru.PARAMETRISATIONS
        },
    }  # fmt: skip


@needs_triton
@pytest.mark.parametrize(
    "mixer", ["linoss", "hgrn", "mlstm", "mamba2", "mamba3", "rwkv6", "gated_delta_net"]
)
def test_layers_are_those_of_plain_loops(warm, mixer):
    """With their kernels, in single precision, as near to double precision as without."""
    ours, plain = warm(
        SETUP
        + f"""
from linrnn import mixers
torch.manual_seed(0)
layer, x = mixers.load({mixer!r})(32), torch.randn(2, 7, 32, requires_grad=True)
reset = torch.rand(2, 7) < 0.2

def run(backend, dtype):
    with use_backend(backend):
        y = layer.to(dtype)(x.to(dtype), reset=reset)[0]
        into = torch.linspace(-1, 1, y.numel()).view(y.shape).to(dtype)
        grads = torch.autograd.grad(y, (x, *layer.parameters()), into, allow_unused=True)
    return [t.double() for t in (y, *grads) if t is not None]

def error(backend):
    found = run(backend, torch.float32)
    exact = run("reference", torch.float64)
    return max(((a - b).abs().max() / (1e-2 + b.abs().max())).item()
               for a, b in zip(found, exact, strict=True))

result = error("triton"), error("reference")
""",
        TRITON_INTERPRET="1",
    )
    assert ours <= 10 * plain + 1e-6


@needs_triton
def test_rounds_of_conjugate_gradients_are_those_of_operators(warm):
    """Some systems are solved before others, and one has no number."""
    worst, rounds, plain_rounds, none = warm(
        """
import torch
from linrnn.ops import use_backend
from linrnn.ops.matrix.ridge_solve import ridge_solve

torch.manual_seed(4)
q, k = torch.randn(2, 2, 5, 3, 6, dtype=torch.float64)
q[:, 2], q[1, 4, :, 1:] = 0, 0
g, beta, ridge = -torch.rand(2, 5, 3), torch.rand(2, 5, 3), 0.3 + torch.rand(3, 6)
leaves = [x.double().requires_grad_() for x in (q, k, beta, g, ridge, torch.zeros(2, 3, 6, 6))]
reset = torch.rand(2, 5) < 0.2

def solved(backend):
    with use_backend(backend):
        x, residual, rounds = ridge_solve(*leaves, reset, 4)
        grads = torch.autograd.grad(x.square().sum(), leaves)
    return rounds, x.detach(), *grads

(rounds, *ours), (plain_rounds, *plain) = solved("triton"), solved("reference")
worst = max(((a - b).abs() / (1 + b.abs())).max().item() for a, b in zip(ours, plain))
leaves[0].data[0, 3, 1, 0] = float("nan")
with use_backend("triton"), torch.no_grad():
    x, *_ = ridge_solve(*leaves, reset, 4)
wrong = x.isnan().any(-1).nonzero().tolist()
result = worst, rounds.tolist(), plain_rounds.tolist(), wrong
""",
        TRITON_INTERPRET="1",
    )
    assert worst < 1e-9
    assert rounds == plain_rounds
    assert {round for row in rounds for step in row for round in step} >= {0, 4}
    assert none == [[0, 3, 1]]


@needs_triton
def test_kernels_spill_nothing_and_load_wide(offline_rows):
    """The largest of them: a gradient with 24 operands."""
    for name, spills, widest in offline_rows:
        assert spills == 0, name
        assert widest >= 64, name


@pytest.fixture
def offline_rows(warm):
    return warm(
        f"""{OFFLINE}
import importlib
from linrnn.ops import use_backend
from linrnn.ops.conv import token_mix
from linrnn.ops.gated_norm import gated_norm

def leaf(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16).requires_grad_()

def code(run, *tensors):
    def call():
        with use_backend("triton"):
            return torch.stack([y.sum() for y in run(*tensors)]).sum()
    launched = offline.launched(calls.both((call, tensors)))
    return [[x.name, code.spills, code.widest]
            for x in launched for code in [offline.code(x.cubin)]]

x = [leaf(8, 16, 512) for _ in range(5)]
mix = lambda x, past, mu, moved: token_mix.token_mix(x, past, mu, moved)
norm = lambda x, z, w, b, *more: (gated_norm(
    x, z, w, b, groups=8, eps=1e-5, gate="none", centre=True, added=more),)
result = code(mix, x[0], leaf(8, 1, 512), leaf(5, 512), leaf(5, 8, 16, 512))
result += code(norm, *x[:2], leaf(512), leaf(512), *x[2:], leaf(512))
""",
        TRITON_INTERPRET="0",
    )


@pytest.mark.unchecked
def test_what_no_kernel_can_hold_is_refused():
    with pytest.raises(ArgumentError, match="sums"):
        RowFunction(lambda x: (x.sum(-1),), "sums", rows="x").empty([torch.ones(2)])


@pytest.mark.unchecked
@pytest.mark.parametrize("mixer", ["lru", "linoss", "mamba2", "gated_delta_net", "mlstm"])
def test_compilers_read_layers_as_one_graph(mixer):
    layer, x = mixers.load(mixer)(8), torch.randn(2, 5, 8)
    compiled = torch.compile(lambda x: layer(x)[0], fullgraph=True, backend="eager")
    with warnings.catch_warnings(action="error", category=UserWarning):
        y = compiled(x)
    torch.testing.assert_close(y, layer(x)[0])

"""Linear maps of 8 and 4 bits against products in float64 with the weights that they store."""

import copy
import itertools

import pytest
import torch
from torch import nn

from linrnn.compute import native
from linrnn.errors import ArgumentError
from linrnn.nn import CappedLinear
from linrnn.nn.quantized import QuantizedLinear
from linrnn.ops import quantized_linear as products
from linrnn.ops import use_backend
from linrnn.ops.quantized_linear import Form, pack, unpack, weights

FORMS = [
    (bits, group, symmetric)
    for bits, group, symmetric in itertools.product((8, 4), (None, 32, 64, 128), (True, False))
    if bits == 8 or group is not None
]
SIZES = [(1, 1), (33, 5), (64, 16), (100, 37), (257, 130)]
#: Of the largest number: three digits are 24 bits, bfloat16 has 8 and float16 has 11.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-12}
each_form = pytest.mark.parametrize(("bits", "group", "symmetric"), FORMS)


def built(inputs, outputs, bits, group, symmetric=True, dtype=torch.float32, **options):
    torch.manual_seed(inputs + outputs)
    linear = nn.Linear(inputs, outputs, dtype=dtype)
    return linear, QuantizedLinear(linear, bits, group, symmetric=symmetric, **options)


def exact(small, x):
    """By the weights that are stored, in float64."""
    matrix = weights(small.packed, small.scales, small.form, torch.float64)
    return x.double() @ matrix.T + small.bias.double()


def close(y, expected, tolerance):
    if y.numel():
        assert (y.double() - expected).abs().max() <= tolerance * max(1, expected.abs().max())


@each_form
def test_products_are_those_of_what_is_stored(bits, group, symmetric):
    for (inputs, outputs), dtype in itertools.product(SIZES, TOLERANCE):
        _, small = built(inputs, outputs, bits, group, symmetric, dtype)
        for rows in (0, 1, 2, 3, 4, 7, 16, 17, 40):
            x = torch.randn(rows, inputs).to(dtype)
            with torch.no_grad():
                y = small(x)
            assert (y.shape, y.dtype) == ((rows, outputs), dtype)
            close(y, exact(small, x), TOLERANCE[dtype])


@each_form
def test_every_way_gives_the_same(bits, group, symmetric, monkeypatch):
    _, small = built(300, 70, bits, group, symmetric)
    x = torch.randn(35, 300)
    expected = exact(small, x)
    with torch.no_grad(), use_backend("reference"):
        close(small(x), expected, 3e-6)
    close(small(x).detach(), expected, 3e-6)  # the operator
    monkeypatch.setattr(products, "_multiplies_bytes", lambda: False)  # blocks as floats
    monkeypatch.setattr(products, "_BLOCK", 300 * 32)
    with torch.no_grad():
        close(small(x), expected, 3e-6)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(bits, threads):
    _, small = built(700, 900, bits, 64)
    x, before = torch.randn(5, 700), torch.get_num_threads()
    with torch.no_grad():
        try:
            torch.set_num_threads(1)
            expected = small(x)
            torch.set_num_threads(threads)
            y = small(x)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(y, expected)


def test_rows_do_not_depend_on_one_another():
    _, small = built(100, 40, 4, 32)
    x = torch.randn(11, 100)
    with torch.no_grad():
        assert torch.equal(small(x), torch.cat([small(row) for row in x.split(1)]))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 0), (1, 2, 3)])
def test_any_axes_come_before(shape):
    _, small = built(48, 20, 8, 32)
    x = torch.randn(*shape, 48)
    with torch.no_grad():
        assert small(x).shape == (*shape, 20)
        close(small(x), exact(small, x), 3e-6)


def test_any_strides():
    _, small = built(48, 20, 4, 32)
    x = torch.randn(48, 6).T
    with torch.no_grad():
        close(small(x), exact(small, x), 3e-6)
        close(small(x[::2]), exact(small, x[::2]), 3e-6)


@pytest.mark.parametrize(("bits", "largest"), [(8, 0.006), (4, 0.1)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_what_is_stored_is_near(bits, largest, symmetric):
    for dtype in (torch.float32, torch.bfloat16):
        linear, small = built(256, 64, bits, 64, symmetric, dtype)
        difference = small.dequantize().double() - linear.weight.detach().double()
        assert torch.linalg.norm(difference) <= largest * torch.linalg.norm(linear.weight.double())


def test_a_number_for_zero_helps_where_all_are_positive():
    linear = nn.Linear(64, 32)
    nn.init.uniform_(linear.weight, 1, 2)
    error = {}
    for symmetric in (True, False):
        small = QuantizedLinear(linear, 4, 32, symmetric=symmetric)
        error[symmetric] = torch.linalg.norm(small.dequantize() - linear.weight.detach())
    assert error[False] < 0.7 * error[True]


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 2e-2), (16, 1e-4), (24, 3e-6)])
def test_bits_of_x(bits, tolerance):
    _, small = built(256, 64, 8, 64, activation_bits=bits)
    x = torch.randn(3, 256)
    with torch.no_grad():
        close(small(x), exact(small, x), tolerance)


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20])
def test_numbers_of_any_size(scale):
    _, small = built(64, 16, 8, 32)
    small.bias = None
    x = scale * torch.randn(2, 64)
    matrix = weights(small.packed, small.scales, small.form, torch.float64)
    with torch.no_grad():
        y = small(x).double() / scale
    assert (y - x.double() / scale @ matrix.T).abs().max() < (1e-5 if scale > 1e-30 else 10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_leaves_the_others(bad):
    _, small = built(64, 16, 8, 32)
    x = torch.randn(3, 64)
    x[1, 7] = bad
    with torch.no_grad():
        y = small(x)
    assert not y[1].isfinite().any()
    close(y[::2], exact(small, x[::2]), 3e-6)


def test_groups_of_zeros():
    linear = nn.Linear(64, 16)
    nn.init.zeros_(linear.weight)
    for bits, symmetric in itertools.product((8, 4), (True, False)):
        assert not QuantizedLinear(linear, bits, 32, symmetric=symmetric).dequantize().any()


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_and_numbers(bits):
    form = Form(100, 37, bits, 32)
    u = torch.randint(0, 1 << bits, (37, 100), dtype=torch.uint8)
    packed = pack(u, form)
    assert packed.shape == (3, 4, 32 * 16 * bits // 8)
    assert torch.equal(unpack(packed, form), u)


@each_form
def test_gradients_flow_to_x(bits, group, symmetric):
    _, small = built(40, 24, bits, group, symmetric, torch.float64)
    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(small, x)
    small.bias.requires_grad_(True)
    small(x).sum().backward()
    assert torch.equal(small.bias.grad, torch.full((24,), 3.0, dtype=torch.float64))


@pytest.mark.unchecked
def test_compiled_and_mapped():
    _, small = built(64, 16, 8, 32)
    x = torch.randn(4, 64)
    with torch.no_grad():
        expected = small(x)
        compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
        close(compiled(x), expected.double(), 3e-6)
        close(torch.func.vmap(small)(x), expected.double(), 3e-6)
    operator = torch.ops.linrnn.quantized_linear.default
    arguments = (x.requires_grad_(), small.packed, small.scales, small.bias, *small.form, 3)
    torch.library.opcheck(operator, arguments)


def test_state_copies_and_dtypes():
    _, small = built(64, 16, 4, 32, symmetric=False)
    _, other = built(64, 16, 4, 32, symmetric=False)
    other.packed.zero_()
    assert set(small.state_dict()) == {"packed", "scales", "bias", "like"}
    other.load_state_dict(small.state_dict())
    x = torch.randn(2, 64)
    with torch.no_grad():
        assert torch.equal(other(x), small(x))
        assert torch.equal(copy.deepcopy(small)(x), small(x))
        half = copy.deepcopy(small).bfloat16()
        assert half.weight.dtype is half(x.bfloat16()).dtype is torch.bfloat16
        back = half.float()
    assert back.weight.dtype is torch.float32
    assert back.scales.dtype is torch.bfloat16
    assert torch.equal(back.scales, small.scales)


def test_a_weight_stands_for_a_tensor():
    linear, small = built(64, 16, 8, 32)
    weight, x = small.weight, torch.randn(2, 64)
    assert (weight.shape, weight.dtype, len(weight)) == (linear.weight.shape, torch.float32, 16)
    stored = small.dequantize()
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, stored))
    assert torch.equal(weight.T, stored.T)
    assert torch.equal(weight[:2], stored[:2])


def test_a_bound_stays():
    linear = CappedLinear(64, 16, cap=0.5)
    small = QuantizedLinear(linear)
    with torch.no_grad():
        y = small(100 * torch.randn(2, 64))
    assert y.abs().max() <= 0.5
    assert "cap=0.5" in repr(small)


@pytest.mark.unchecked
def test_errors():
    linear = nn.Linear(64, 16)
    with pytest.raises(ArgumentError, match=r"QuantizedLinear: bits must be 8 or 4, got 3"):
        QuantizedLinear(linear, 3)
    with pytest.raises(ArgumentError, match=r"group_size must be 32, 64 or 128, got None"):
        QuantizedLinear(linear, 4, None)
    with pytest.raises(ArgumentError, match=r"group_size must be .* or None, got 16"):
        QuantizedLinear(linear, 8, 16)
    with pytest.raises(ArgumentError, match=r"activation_bits must be .*, got 12"):
        QuantizedLinear(linear, activation_bits=12)
    small = QuantizedLinear(linear)
    with pytest.raises(ArgumentError, match=r"weights must be trained before .* gradient"):
        small.weight.requires_grad_()
    with pytest.raises(ArgumentError, match=r"reset_parameters: weights must be trained before"):
        small.reset_parameters()
    with torch.no_grad():
        linear.weight[0, 0] = float("nan")
    with pytest.raises(ArgumentError, match=r"weights must be finite, got NaN"):
        QuantizedLinear(linear)


def test_the_kernel_is_there():
    if native.load()[0] is not None:
        assert products._loaded()

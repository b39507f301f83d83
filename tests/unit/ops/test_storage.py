"""Axes without entries, and numbers that lie at no multiple of their size, through every kernel.

`make sanitize` runs this with kernels that report what C++ leaves undefined.
"""

import struct

import pytest
import torch

from linrnn.compute import native
from linrnn.mixers import RWKV4, Mamba
from linrnn.ops import (
    block_scan,
    causal_conv,
    gated_scan,
    linear_scan,
    log_linear_scan,
    outer_scan,
    selective_scan,
    use_backend,
)
from linrnn.state import map_state

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
REAL = (F32, F64, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.skipif(
    native.load()[0] is None, reason=f"no native kernels: {native.load()[1]}"
)


def conv(x, past, weight, bias):
    return causal_conv(x, weight, bias, past, silu=True)


def packed_scan(a, b):
    offsets = torch.tensor([0, 0, b.shape[1]])
    return linear_scan(a, b, cu_seqlens=offsets)


def moved(scale, b, h):
    return block_scan(scale, b, h, rows=torch.arange(b.shape[-1]).flip(0).expand(b.shape))


SHAPES = {
    "constant": (linear_scan, lambda b, t, c, n: ((c,), (b, t, c), (b, c))),
    "varying": (linear_scan, lambda b, t, c, n: ((b, t, c), (b, t, c))),
    "packed": (packed_scan, lambda b, t, c, n: ((c,), (1, t, c))),
    "log": (log_linear_scan, lambda b, t, c, n: ((b, t, c), (b, t, c), (b, c))),
    "blocks": (block_scan, lambda b, t, c, n: ((b, t, c, n, n), (b, t, c, n), (b, c, n))),
    "matrices": (block_scan, lambda b, t, c, n: ((c, n, n), (b, t, c, n), (b, c, n))),
    "moved": (moved, lambda b, t, c, n: ((b, t, c, n), (b, t, c, n), (b, c, n))),
    "gated": (gated_scan, lambda b, t, c, n: ((b, t, 3, c), (b, c))),
    "selective": (
        selective_scan,
        lambda b, t, c, n: ((b, t, c), (b, t, c), (c, n), (b, t, n), (b, t, n), (c,), (b, c, n)),
    ),
    "conv": (conv, lambda b, t, c, n: ((b, t, c), (b, 3, c), (c, 4), (c,))),
}
"""Every operation with kernels, and the shapes of its arguments by batch, time, channels, modes."""

CASES = [
    *((name, dtype) for name in SHAPES for dtype in REAL),
    *(
        (name, dtype)
        for name in ("constant", "varying", "packed", "blocks", "moved")
        for dtype in (C64, C128)
    ),
]
SIZES = [(0, 5, 3, 2), (2, 0, 3, 2), (2, 5, 0, 2), (1, 5, 0, 2), (2, 5, 3, 0), (0, 0, 0, 0)]


def arguments(name, dtype, *sizes):
    """Small numbers below 0, which suit a decay, its logarithm and a rate."""
    shapes = SHAPES[name][1](*sizes)
    return [(torch.rand(shape, dtype=dtype) * -0.5).requires_grad_() for shape in shapes]


def misaligned(x):
    """The same numbers one byte further than their size asks for."""
    raw = x.detach().clone().reshape(-1).view(torch.uint8)
    memory = bytearray(1) + bytearray(raw.numpy().tobytes())
    copy = torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)
    assert copy.data_ptr() % 2
    return copy.requires_grad_(x.requires_grad)


def results(function, inputs, place=lambda x: x):
    """Outputs and the gradients of all inputs, from a cotangent that is put where it is wanted."""
    outputs = [y for y in function(*inputs) if y.requires_grad]
    into = [place(torch.full_like(y, 0.5)) if y.numel() else y.detach() for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs, into, materialize_grads=True)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_an_axis_without_entries(name, sizes, threads, monkeypatch):
    monkeypatch.setattr(native, "threads", lambda: threads)
    function = SHAPES[name][0]
    inputs = arguments(name, F64, *sizes)
    got = results(function, inputs)
    with use_backend("reference"):
        expected = results(function, inputs)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.fixture
def given(monkeypatch):
    """All words of the records that kernels were called with, addresses among them."""
    words, run = set(), native.run

    def note(kernel, record):
        words.update(struct.unpack(f"={len(record) // 8}q", record))
        run(kernel, record)

    monkeypatch.setattr(native, "run", note)
    return words


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_misaligned_storage_gives_the_same_bits(name, dtype, given):
    function = SHAPES[name][0]
    aligned = arguments(name, dtype, 2, 7, 5, 3)
    expected = results(function, aligned)
    assert {x.data_ptr() for x in aligned} & given, "no kernel was called"
    inputs = [misaligned(x) for x in aligned]
    for one, other in zip(results(function, inputs, misaligned), expected, strict=True):
        assert one.equal(other)
    assert not [word for word in given if word in {x.data_ptr() for x in inputs}]


@pytest.mark.parametrize("make", [Mamba, RWKV4])
@pytest.mark.parametrize("part", ["x", "state", "weights"])
@torch.no_grad()
def test_a_step_of_misaligned_storage_gives_the_same(make, part, given):
    layer = make(6).eval()
    x, state = torch.rand(2, 6), layer.step(torch.rand(2, 6), layer.init_state(2))[1]
    expected, _ = layer.step(x, state)
    assert given, "no kernel was called"
    moved = []

    def move(t):
        moved.append(misaligned(t))
        return moved[-1]

    if part == "x":
        x = move(x)
    elif part == "state":
        state = map_state(move, state)
    else:
        for parameter in layer.parameters():
            parameter.data = move(parameter)
    torch.testing.assert_close(layer.step(x, state)[0], expected)
    assert moved
    assert not given & {t.data_ptr() for t in moved}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_smallest_halves_are_numbers(dtype):
    """Kernels that flush subnormal floats read subnormal halves, which are larger, all the same."""
    tiny = torch.full((1, 2, 1), torch.finfo(dtype).tiny / 4, dtype=dtype)
    if dtype == torch.bfloat16:
        tiny = tiny * 4  # its subnormals are those of float32
    one = torch.ones_like(tiny)
    large = torch.full((1,), 1 / float(tiny[0, 0, 0]))
    _, final = selective_scan(tiny, one, -large[:, None] * 0, one, one, backend="cpu")
    assert float(final) == 2 * float(tiny[0, 0, 0])
    heads = [x[..., None] for x in (one, one, tiny)]
    _, final = outer_scan(*heads, backend="cpu")
    assert float(final) == 2 * float(tiny[0, 0, 0])

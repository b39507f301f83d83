"""The Triton kernels of the Cauchy product: in the interpreter, and compiled for a GPU."""

import importlib.util

import pytest
import torch

from linrnn.ops.conv import _cauchy_triton

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

SETUP = """
import torch
from linrnn.ops import use_backend
from linrnn.ops.conv.cauchy import cauchy

def drawn(*shape, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.complex128, generator=g)

def both(rows, channels, modes, angle, dtype, backend):
    '''The product and its gradients.'''
    v = drawn(rows, channels, modes, seed=0).to(dtype).requires_grad_()
    w = drawn(channels, modes, seed=1)
    w = torch.complex(-0.01 - w.real.abs(), 3 * w.imag).requires_grad_()
    with use_backend(backend):
        y = cauchy(v, w, angle)
        weights = torch.cos(torch.arange(2 * y.numel())).view(*y.shape, 2).to(y.real.dtype)
        return y.detach(), *torch.autograd.grad((torch.view_as_real(y) * weights).sum(), [v, w])
"""


@needs_triton
def test_sums_and_gradients_are_those_of_the_definition(warm):
    """Numbers of rows: no power of two, one node, a whole block, and one more than a block."""
    differences = warm(
        f"""{SETUP}
result = []
shapes = (1, 2, 3, 128), (3, 1, 5, 129), (2, 3, 4, 1), (1, 1, 1, 300), (4, 2, 2, 7)
for rows, channels, modes, nodes in shapes:
    angle = torch.linspace(0, torch.pi, nodes, dtype=torch.float64)
    sizes = rows, channels, modes, angle
    truth = both(*sizes, torch.complex128, "tree")
    exact = both(*sizes, torch.complex128, "triton")
    ours, theirs = (both(*sizes, torch.complex64, b) for b in ("triton", "tree"))
    for true, *found in zip(truth, exact, ours, theirs, strict=True):
        size = true.abs().max().item()
        errors = [(x - true).abs().max().item() / size for x in found]
        result.append(errors)
""",
        TRITON_INTERPRET="1",
    )
    for exact, ours, theirs in differences:
        assert exact < 1e-13
        assert ours < 4 * theirs + 2e-7


@needs_triton
def test_beside_a_pole_float32_is_as_exact(warm):
    error = warm(
        f"""{SETUP}
w = torch.complex(torch.full((1, 4), -1e-3), torch.tensor([[0.1, 1.0, 3.0, 900.0]]))
w = w.to(torch.complex128)
angle = (2 * w.imag.atan() * torch.tensor([1, 1 - 1e-6, 1 + 1e-6])[:, None]).flatten()
v = drawn(1, 1, 4, seed=0)
with use_backend("triton"):
    found = cauchy(v.to(torch.complex64), w, angle)
z = torch.exp(-1j * angle)
pair = [(x[..., None] / ((1 - z) - (1 + z) * y[..., None])).sum(-2)
        for x, y in ((v, w), (v.conj(), w.conj()))]
result = ((found - sum(pair)).abs() / sum(pair).abs()).max().item()
""",
        TRITON_INTERPRET="1",
    )
    assert error < 2e-6


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("name", ["run_forward", "run_backward"])
def test_kernels_compile_for_a_gpu(warm, name):
    stores = warm(
        f"""
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from linrnn.ops.conv import _cauchy_triton_kernels as kernels

function, result = getattr(kernels, {name!r}), []
for dtype, wide in ((tl.float32, "*fp32"), (tl.float64, "*fp64")):
    constants = {{"ROWS": 4, "NODES": 128, "DTYPE": dtype}}
    double = {{"radius_p", "real_p", "sine_p", "cosine_p", "grad_radius_p", "grad_real_p"}}
    kinds = {{
        n: "constexpr" if n in constants else "*fp64" if n in double else wide
        if n.endswith("_p") else "i32" for n in function.arg_names
    }}
    source = ASTSource(function, kinds, constants)
    target = GPUTarget("cuda", 90, 32)
    found = triton.compile(source, target=target, options={{"num_warps": 4}})
    result.append(found.asm["ptx"].count("st.global"))
""",
        TRITON_INTERPRET="0",
    )
    assert min(stores) > 0


def test_why_it_is_unavailable(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = _cauchy_triton.unavailable
    assert reason(torch.device("cpu"), torch.float32) == "it needs a CUDA tensor, got cpu"
    assert "no kernel for" in reason(torch.device("cuda"), torch.bfloat16)

"""The Triton kernels of the selective scan: in the interpreter, and compiled for a GPU."""

import importlib.util

import pytest
import torch

from linrnn.ops.selective_scan import _triton

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

SETUP = """
import sys, torch
sys.path.insert(0, {folder!r})
torch.set_num_threads(1)
from linrnn.ops.selective_scan import _triton
from linrnn.testing import _op_laws as laws
from selective_cases import compare, make, mask, ours, results
_triton.CHUNK = 8  # lengths below have whole chunks, a rest, or less than one; all parts or some
"""


@pytest.fixture
def interpreted(warm, root):
    def run(code):
        setup = SETUP.format(folder=str(root / "tests" / "unit" / "ops"))
        assert warm(f"{setup}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


@pytest.mark.parametrize("zoh", [False, True])
def test_equals_the_loop(interpreted, zoh):
    """Memory that kernels forget to write is NaN; a block of channels with and without a tail."""
    interpreted(f"""
with laws._PoisonedMemory():
    for shape, full, reset, dtype in (
        ((1, 13, 35, 5), True, True, torch.float32),
        ((2, 17, 3, 1), False, False, torch.float64),
        ((1, 3, 4, 2), True, False, torch.bfloat16),
    ):
        compare("triton", shape, full=full, zoh={zoh}, reset=reset, dtype=dtype)
""")


@pytest.mark.slow
def test_every_case_equals_the_loop(interpreted):
    interpreted("""
with laws._PoisonedMemory():
    for zoh in (False, True):
        for full in (False, True):
            for reset in (False, True):
                for dtype in (torch.float64, torch.float32, torch.float16):
                    for shape in ((2, 1, 40, 16), (2, 13, 19, 3)):
                        compare("triton", shape, full=full, zoh=zoh, reset=reset, dtype=dtype)
""")


def test_nan_stops_at_a_reset_and_two_runs_give_the_same_bits(interpreted):
    interpreted("""
case = make(1, 9, 3, 2)
first, second = (results(ours("triton", dt_softplus=True), case, torch.float32) for _ in "ab")
assert all(torch.equal(first[n], second[n]) for n in first)
reset = torch.zeros(1, 9, dtype=torch.bool)
reset[:, 6] = True
case["x"][:, 1] = torch.nan
x = case["x"].requires_grad_()
y, final = ours("triton", dt_softplus=True, reset=reset)(case)
assert y[:, 1:6].isnan().all() and y[:, 6:].isfinite().all() and final.isfinite().all()
into = torch.ones_like(y)
into[:, 6:] = torch.nan
case["x"] = torch.ones(1, 9, 3, dtype=torch.float64).requires_grad_()
y, _ = ours("triton", dt_softplus=True, reset=reset)(case)
(grad,) = torch.autograd.grad(y, case["x"], into)
assert grad[:, :6].isfinite().all()
""")


@pytest.mark.parametrize("reverse", [False, True])
def test_packed_sequences_equal_the_definition(interpreted, reverse):
    interpreted(f"""
from linrnn.ops import selective_scan
from linrnn.testing import check_close
torch.manual_seed(0)
time, channels, modes = 13, 3, 2
shapes = ((1, time, channels), (1, time, channels), (channels, modes), (1, time, modes),
          (1, time, modes), (channels,), (5, channels, modes), (1, time, channels), (channels,))
inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
inputs[2] = -inputs[2].abs()
offsets = torch.tensor([0, 0, 6, 7, 13, 13])
names = ("D", "initial_state", "z", "dt_bias")

def run(backend, cu_seqlens):
    leaves = [x.clone().requires_grad_() for x in inputs]
    options = dict(zip(names, leaves[5:]), dt_softplus=True, reset=torch.rand(1, time) < 0.2)
    if cu_seqlens is None:
        options["initial_state"] = options["initial_state"][:1]
    y, final = selective_scan(*leaves[:5], **options, cu_seqlens=cu_seqlens,
                              reverse={reverse}, backend=backend)
    loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() + final.square().sum()
    return [y, final, *torch.autograd.grad(loss, leaves)]

for cu_seqlens in (None, offsets, offsets.int()):
    with laws._PoisonedMemory():
        torch.manual_seed(1)
        expected = run("tree", cu_seqlens)
        torch.manual_seed(1)
        for i, (got, true) in enumerate(zip(run("triton", cu_seqlens), expected, strict=True)):
            check_close(f"result {{i}}", got, true, roundings=64)
""")


COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from linrnn.ops.selective_scan import _triton_kernels as kernels

SEQUENCES = {"x", "dt", "B", "C", "z", "y", "grad_x", "grad_dt", "grad_z", "grad_y"}
NUMBERS = {"batch", "time", "channels", "modes", "chunk"}

def compiled(name, storage, wide, zoh):
    function = getattr(kernels, name)
    kinds = {}
    for argument in function.arg_names:
        if argument in SEQUENCES:
            kinds[argument] = "*" + storage
        elif argument == "reset":
            kinds[argument] = "*i1"
        elif argument == "cu_seqlens":
            kinds[argument] = "*i64"
        elif argument in NUMBERS or argument.endswith(("_seq", "_step")):
            kinds[argument] = "i32"
        elif argument in ("SOFTPLUS", "ZOH", "REVERSE", "DTYPE", "BLOCK", "MODES", "UNROLL",
                          "PARTS"):
            kinds[argument] = "constexpr"
        else:
            kinds[argument] = "*" + wide
    constants = {
        "SOFTPLUS": True, "ZOH": zoh, "REVERSE": zoh, "BLOCK": 16, "MODES": 16,
        "UNROLL": 4 if name == "run_forward" else 2, "PARTS": 8,
        "DTYPE": tl.float64 if wide == "fp64" else tl.float32,
    }
    constants = {n: x for n, x in constants.items() if n in function.arg_names}
    source = ASTSource(function, kinds, constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
"""


@pytest.mark.parametrize("name", ["run_forward", "run_backward"])
def test_kernels_compile_for_a_gpu_and_stay_in_registers(warm, name):
    result = warm(
        f"""{COMPILE}
result = []
for storage, wide, zoh in (("fp32", "fp32", False), ("bf16", "fp32", True)):
    ptx = compiled({name!r}, storage, wide, zoh).asm["ptx"]
    result.append([ptx.count(word) for word in ("st.global", ".local")])
""",
        TRITON_INTERPRET="0",
    )
    for stores, spilled in result:
        assert stores > 0
        assert spilled == 0


def test_reasons_why_it_is_unavailable(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = _triton.unavailable
    assert reason(torch.device("cpu"), torch.float32) == "it needs a CUDA tensor, got cpu"
    assert "no kernel" in reason(torch.device("cuda"), torch.complex64)

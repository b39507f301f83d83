"""The Triton backend: the laws in Triton's interpreter, its plans, and that a GPU could run it."""

import functools
import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from linrnn.compute import backend
from linrnn.errors import BackendError
from linrnn.ops import linear_scan
from linrnn.ops.linear.linear_scan import _triton as _scan_triton
from linrnn.ops.linear.linear_scan import triton_plan

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)
CUDA = torch.device("cuda")

# stretches of two steps: tiles are full, have a tail or are missing already at short lengths
WALK = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
torch.set_num_threads(1)
import interpreted_scan
from linrnn.ops.linear.linear_scan import triton_plan
triton_plan.MOST_STEPS = 2
from linrnn.testing import OP_PROPERTIES, _op_laws as laws
"""
# rows so short that a tile of two stretches has few channels
TILE = f"""{WALK}
triton_plan.ROW, triton_plan.BUSY_WARPS, triton_plan.FEWEST_TENTHS = 128, 2, 0
triton_plan.gpu.processors = lambda device: 64
"""
# so many multiprocessors to fill that each tile is a program, in groups of two
CHAIN = f"""{WALK}
triton_plan.ROW, triton_plan.CHAINED, triton_plan.GROUP, triton_plan.FEWEST_TILES = 128, 2, 2, 1
triton_plan.gpu.processors = lambda device: 64
"""
REGIMES = {"walk": WALK, "tile": TILE, "chain": CHAIN}
each_regime = pytest.mark.parametrize("regime", REGIMES)
# a walk is a tile of one stretch: its test adds little; a process and the interpreter are seconds
tiles_first = pytest.mark.parametrize(
    "regime", [pytest.param("walk", marks=pytest.mark.slow), "tile", "chain"]
)

SINGLE = ((False, "float32"), (True, "complex64"))
DOUBLE = ((False, "float64"), (True, "complex128"))
HALF = ((False, "bfloat16"), (False, "float16"))


@pytest.fixture
def interpreted(warm):
    """Run code in Triton's interpreter, in one of the regimes."""

    def run(regime, code):
        assert warm(f"{REGIMES[regime]}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


def agree(dtypes, times, pick):
    """Code that compares layouts with the float64 loop: outputs and all gradients."""
    return f"""
with laws._PoisonedMemory():
    for is_complex, dtype in {dtypes}:
        for case in list(laws.layouts(is_complex=is_complex, times={times}))[{pick}]:
            laws.compare("triton", case, getattr(torch, dtype))
"""


@needs_triton
@each_regime
@pytest.mark.parametrize(
    ("dtypes", "first"),
    [(SINGLE, 0), pytest.param(DOUBLE, 1, marks=pytest.mark.slow), (HALF, 3)],
    ids=["single", "double", "half"],
)
def test_layouts_agree_with_the_loop(interpreted, regime, dtypes, first):
    """Every fifth, each in one of the regimes; the next one has all, in every regime."""
    begin = first + 5 * list(REGIMES).index(regime)
    interpreted(regime, agree(dtypes, "(1, 2, 5, 9)", f"{begin}::15"))


@needs_triton
@pytest.mark.slow
@each_regime
@pytest.mark.parametrize("dtypes", [SINGLE[:1], SINGLE[1:], DOUBLE[:1], DOUBLE[1:], HALF[:1]])
@pytest.mark.parametrize("pick", ["::2", "1::2"])
def test_every_layout_agrees_with_the_loop(interpreted, regime, dtypes, pick):
    interpreted(regime, agree(dtypes, "(7, 33)", pick))


@needs_triton
@tiles_first
@pytest.mark.parametrize("law", ["isolation", "edges", "layouts_in_memory"])
def test_law(interpreted, regime, law):
    interpreted(regime, f"OP_PROPERTIES[{law!r}]('triton')")


@needs_triton
@pytest.mark.slow
@each_regime
def test_a_cut_sequence_is_the_whole(interpreted, regime):
    interpreted(regime, "OP_PROPERTIES['splits']('triton')")


@needs_triton
@each_regime
def test_nan_stops_at_a_reset_chunks_later(interpreted, regime):
    interpreted(
        regime,
        """
from linrnn.ops import linear_scan
case = laws.make_case(time=16, batch=1, decay=(0.5, 1.0))
a, b = case.a.requires_grad_(), case.b.clone()
reset = torch.zeros(1, 16, dtype=torch.bool)
reset[:, 8] = True
b[:, 1] = torch.nan
h, _ = linear_scan(a, b.requires_grad_(), reset=reset, backend="triton")
assert h[:, 2:8].isnan().all() and h[:, 8:].isfinite().all()
into = torch.ones_like(h)
into[:, 14] = torch.nan
(grad,) = torch.autograd.grad(h, b, into)
assert grad[:, 8:14].isnan().all() and grad[:, :8].isfinite().all()
""",
    )


@needs_triton
@tiles_first
@pytest.mark.parametrize("channels", [1, pytest.param(33, marks=pytest.mark.slow), 130])
def test_any_number_of_channels(interpreted, regime, channels):
    interpreted(
        regime,
        f"""
for is_complex, dtype in {SINGLE}:
    case = laws.make_case(time=5, channels={channels}, is_complex=is_complex, resets=True)
    laws.compare("triton", case, getattr(torch, dtype))
""",
    )


@needs_triton
@tiles_first
@pytest.mark.parametrize("resets", [False, True])
def test_tiles_hand_on_what_they_read(interpreted, regime, resets):
    """Maps are combined by functions of their own with and without resets, real and complex."""
    interpreted(
        regime,
        f"""
for is_complex, dtype in {SINGLE}:
    case = laws.make_case(time=11, channels=3, is_complex=is_complex, resets={resets})
    laws.compare("triton", case, getattr(torch, dtype))
""",
    )


@needs_triton
@pytest.mark.slow
@each_regime
def test_derivatives_of_both_orders(interpreted, regime):
    interpreted(
        regime,
        """
first = laws.layouts
laws.layouts = lambda **options: list(first(**options))[5::26]
OP_PROPERTIES["gradients"]("triton")
""",
    )


@needs_triton
@tiles_first
def test_two_runs_give_the_same_bits(interpreted, regime):
    interpreted(
        regime,
        """
case = laws.make_case(time=17, constant=True, resets=True)
first, second = (laws.evaluate(laws._on("triton"), case, torch.float32) for _ in range(2))
for name, x in first.items():
    assert torch.equal(x, second[name]), name
""",
    )


@needs_triton
@pytest.mark.parametrize("regime", [pytest.param("tile", marks=pytest.mark.slow), "chain"])
@pytest.mark.parametrize(
    ("dtypes", "constant"),
    [
        (SINGLE[:1], True),
        pytest.param(SINGLE[1:], True, marks=pytest.mark.slow),
        pytest.param(SINGLE, False, marks=pytest.mark.slow),
    ],
)
def test_a_long_memory_survives_many_tiles(interpreted, regime, dtypes, constant):
    interpreted(
        regime,
        f"""
triton_plan.MOST_STEPS, triton_plan.GROUP = 8, 8
for is_complex, dtype in {dtypes}:
    case = laws.make_case(
        time=1001, batch=1, channels=24, constant={constant}, decay=(0.9999, 1.0),
        is_complex=is_complex,
    )
    laws.compare("triton", case, getattr(torch, dtype))
""",
    )


COMPILE = """
import subprocess, triton, triton.language as tl
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from linrnn.ops.linear.linear_scan import _triton_kernels as kernels

def compiled(name, storage, is_complex, constant, gates):
    function = getattr(kernels, name)
    state = "fp64" if storage == "fp64" else "fp32"
    pointers = dict.fromkeys("abgh", storage) | dict.fromkeys(
        ("initial", "entering", "final", "grad_initial"), state
    )
    pointers |= {"grad_a": "fp64" if constant else storage, "grad_b": storage}
    pointers |= {"reset": "i1", "cu_seqlens": "i64"}
    options = {
        "CONSTANT": constant, "FLIP": True, "PAIR": int(is_complex), "WIDE": tl.float64,
        "GATES": gates, "LOG": False,
        "POSITIVE": True, "START": 0.5 if gates else 0.0, "BLOCK": 32, "WARPS": 1, "STEPS": 4,
        "DTYPE": tl.float64 if state == "fp64" else tl.float32, "AHEAD": True, "CHAINED": False,
        "GROUP": 1, "handed": None, "maps": None,
    }
    kinds = {}
    for argument in function.arg_names:
        kinds[argument] = "constexpr" if argument in options else "i32"
        if argument in pointers:
            kinds[argument] = "*" + pointers[argument]
    constants = {k: v for k, v in options.items() if k in kinds}
    aligned = {(i,): [["tt.divisibility", 16]] for i, k in enumerate(kinds.values()) if "*" in k}
    source = ASTSource(function, kinds, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
"""


@needs_triton
@pytest.mark.parametrize("name", ["run_forward", "run_backward"])
def test_a_walk_compiles_for_a_gpu_without_crossing_warps(warm, name):
    result = warm(
        f"""{COMPILE}
result = []
for case in (("fp32", False, False, 0), ("fp64", True, True, 0), ("bf16", False, True, 0),
             ("bf16", False, False, 2)):
    ptx = compiled({name!r}, *case).asm["ptx"]
    result.append([ptx.count(word) for word in ("st.global", "bar.sync", ".local")])
""",
        TRITON_INTERPRET="0",
    )
    for stores, *crossings in result:
        assert stores > 0
        assert crossings == [0, 0]


def plan(shape, *, processors=132, seqs=None, dtype=torch.float32, monkeypatch):
    monkeypatch.setattr(triton_plan.gpu, "processors", lambda device: processors)
    return triton_plan.make_plan(shape, dtype, seqs or shape[0], torch.device("meta"))


def test_plan_walks_when_programs_of_one_warp_fill_the_device(monkeypatch):
    made = plan((64, 1024, 4096), monkeypatch=monkeypatch)
    assert (made.block, made.stretches, made.warps, made.chained) == (128, 1, 1, False)


@pytest.mark.parametrize("shape", [(8, 2048, 2048), (64, 1024, 256), (8, 8192, 1024)])
def test_plan_shares_tiles_among_warps_when_each_multiprocessor_has_a_program(monkeypatch, shape):
    made = plan(shape, monkeypatch=monkeypatch)
    assert shape[0] * made.blocks >= 0.9 * 132
    assert made.block * made.blocks >= shape[2]
    assert (made.warps, made.stretches * made.block, made.chained) == (8, 8 * 128, False)


@pytest.mark.parametrize(
    ("dtype", "block"),
    [(torch.float32, 128), (torch.bfloat16, 256), (torch.complex64, 64), (torch.complex128, 32)],
)
def test_a_warp_loads_128_bits_a_thread_whatever_the_dtype(monkeypatch, dtype, block):
    assert plan((64, 1024, 4096), dtype=dtype, monkeypatch=monkeypatch).block == block


@pytest.mark.parametrize("seqs", [1, 3])
@pytest.mark.parametrize("time", [129, 65536, 1_000_003])
def test_plan_hands_over_when_programs_are_few(monkeypatch, time, seqs):
    made = plan((1, time, 256), seqs=seqs, monkeypatch=monkeypatch)
    tiles = made.tiles(time, 8)
    assert made.chained
    assert (tiles - 1) * made.stretches * 8 < time <= tiles * made.stretches * 8
    assert tiles / made.group < 4096  # hand-overs from group to group, a microsecond each


def test_plan_of_few_short_sequences_hands_nothing_over(monkeypatch):
    made = plan((1, 64, 256), monkeypatch=monkeypatch)
    assert (made.warps, made.chained, made.tiles(64, 8)) == (8, False, 1)


def test_reasons_why_it_is_unavailable(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = _scan_triton.unavailable
    assert reason(torch.device("cpu"), torch.float32) == "it needs a CUDA tensor, got cpu"
    assert reason(CUDA, torch.int32) == "it has no kernel for torch.int32"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'linrnn[triton]'" in reason(CUDA, torch.float32)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("3.2.0", "triton must be 3.3 or newer, .* got 3.2.0"),
        ("3.3.1", None),
        ("3.10.0+git1", None),
    ],
)
def test_a_triton_without_tuples_is_left_alone(monkeypatch, found, said):
    """PyTorch 2.6 has such a Triton: its users would meet a compiler's error at the first scan."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    reason = _scan_triton.unavailable(CUDA, torch.float32)
    assert reason is None if said is None else re.search(said, reason)


def test_a_triton_of_another_name_is_tried(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert _scan_triton.unavailable(CUDA, torch.float32) is None


def test_explicit_choice_without_a_gpu_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    backend._choose.cache_clear()
    with pytest.raises(BackendError, match=r"'triton'.* needs a CUDA tensor, got cpu"):
        linear_scan(torch.ones(1), torch.ones(1, 2, 1), backend="triton")


@needs_triton
def test_interpreter_is_never_chosen_automatically(python):
    code = (
        "import torch\nfrom linrnn.ops import explain\n"
        "x = torch.ones(1, 2, 1)\n"
        "result = [explain(x, x), explain(x, x, backend='triton')]"
    )
    automatic, asked = python(code, TRITON_INTERPRET="1", LINRNN_BACKEND="auto")
    assert automatic.startswith(("cpu: the fastest", "tree: the fastest"))
    assert asked.startswith("triton: requested")


def test_cuda_without_triton_is_announced_as_slow(monkeypatch):
    monkeypatch.setattr(_scan_triton, "unavailable", lambda device, dtype: "it is not installed")
    table = tuple((name, f"linrnn.ops.linear.linear_scan._{name}") for name in ("triton", "tree"))
    monkeypatch.setattr(backend, "_announced", set())
    choose = functools.partial(backend.choose, "linear_scan", table, "auto", CUDA, torch.float32)
    backend._choose.cache_clear()
    with pytest.warns(UserWarning, match="slower backend 'tree': triton cannot .it is not inst"):
        found = choose()
    assert choose() == found  # and nothing is said again
    assert found == (
        "tree",
        "tree: the fastest that supports the call; triton cannot (it is not installed)",
    )
    monkeypatch.setenv("LINRNN_STRICT", "1")
    with pytest.raises(BackendError, match="LINRNN_STRICT"):
        choose()
    backend._choose.cache_clear()


def test_scanning_on_a_cpu_does_not_import_triton(python):
    code = (
        "import sys, torch\nfrom linrnn.ops import backend_report, linear_scan\n"
        "backend_report()\nlinear_scan(torch.ones(1), torch.ones(1, 2, 1))\n"
        "result = 'triton' in sys.modules"
    )
    assert python(code) is False

"""Properties of kernels for a GPU, tested without one: launches, operators, machine code.

Kernels compile for an H100 as calls launch them, and do not run. How long Python takes is for
`benchmarks/launches.py` to say.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from linrnn.compute.launch import Launch, launch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)

SETUP = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parents[3] / "benchmarks")!r}]
import torch
import _gpu_offline as offline
import _gpu_calls as calls

offline.pretend()

def counts(make):
    call = make()
    found = []
    for run in (calls.forward(call), calls.both(call)):
        found += [len(offline.launched(run)), sum(offline.operators(run).values())]
    return found

def codes(make):
    launches = offline.launched(calls.both(make()))
    return [[x.name, *offline.code(x.cubin)] for x in launches]
"""

#: Kernels forward, operators of PyTorch forward, and both with the gradient: no more than these.
MOST = {
    "linear_scan": (1, 0, 2, 0),
    "linear_scan, constant": (1, 0, 3, 0),
    "linear_scan, time split": (1, 1, 2, 2),  # an operator clears the flags
    "gated_scan, time split": (1, 1, 2, 2),
    "log_linear_scan": (1, 0, 2, 0),
    "gated_scan": (1, 0, 2, 0),
    "cell_scan, minGRU": (1, 1, 2, 2),  # operators make a state, and its gradient
    "cell_scan, minGRU by tiles": (1, 1, 2, 2),
    "cell_scan, RG-LRU by tiles": (1, 2, 2, 11),  # two states; and sum up those of constants
    "causal_conv": (1, 2, 3, 2),
    "selective_scan": (1, 0, 2, 6),
    "selective_scan, gated": (1, 0, 2, 8),
    "outer_scan": (3, 0, 9, 3),
    "outer_scan, decays by channel": (3, 0, 10, 3),
    "delta_scan": (5, 0, 14, 0),
    "layer, s4d": (5, 13, 9, 33),
    "layer, s4": (5, 67, 9, 173),
    "layer, s5": (2, 8, 5, 25),
    "layer, dss": (5, 12, 9, 35),
    "layer, gss": (3, 39, 6, 117),
    "layer, h3": (5, 24, 9, 61),
    "layer, lru": (3, 5, 7, 18),
    "layer, linoss": (2, 11, 4, 36),
    "layer, mamba2": (6, 8, 16, 22),
    "layer, gla": (4, 11, 12, 31),
    "layer, gated_delta_net": (10, 11, 25, 31),
    "layer, kda": (10, 13, 26, 37),
    "layer, rwkv6": (7, 20, 18, 61),
    "layer, rwkv7": (7, 17, 19, 54),
    "layer, hgrn": (2, 13, 4, 47),
    "layer, mlstm": (8, 20, 20, 62),
    "layer, mesa_net": (127, 22, 267, 66),  # 30 times a read of the memory and a round, twice
    "layer, slice_cde": (1, 14, 2, 23),
    "layer, momentum_delta_net": (9, 139, 18, 398),
    "layer, log_linear_mamba2": (3, 113, 7, 356),
    "layer, log_linear_gated_delta_net": (5, 113, 11, 333),
    "layer, based": (5, 8, 13, 27),
    "layer, rebased": (7, 6, 17, 29),
}


@pytest.fixture
def offline(warm):
    """Run code where launches compile and do not run."""

    def run(code):
        return warm(SETUP + code, TRITON_INTERPRET="0")

    return run


@needs_triton
def test_launches_and_operators(offline):
    """Counts them in one process, which compiles no kernel."""
    counted = offline(f"""
offline.launch_uncompiled()
result = {{name: counts(calls.CALLS[name]) for name in {list(MOST)}}}
""")
    for call, most in MOST.items():
        assert all(n <= m for n, m in zip(counted[call], most, strict=True)), (call, counted[call])
        assert counted[call][0] > 0, call


@needs_triton
def test_every_copy_counts(offline):
    """Copies by themselves, and those that a product or a padding makes before it."""
    counted = offline("""
import torch.nn.functional as F
x, y = torch.randn(4, 6, 8), torch.randn(5, 4, 8, 2)
runs = {
    "views": lambda: x.mT[:, 1:].unflatten(1, (-1, 7)).contiguous,
    "dense already": lambda: x.contiguous().reshape(4, -1),
    "clone": lambda: x.clone(),
    "contiguous": lambda: x.mT.contiguous(),
    "reshape": lambda: x.mT.reshape(4, -1),
    "flatten": lambda: x.mT.flatten(1),
    "product": lambda: x @ y[0],
    "product of what is expanded": lambda: x @ y,
    "linear": lambda: F.linear(x, y[0, 0].mT),
    "padding": lambda: F.pad(x, (1, 1)),
}
result = {name: sum(offline.operators(run).values()) for name, run in runs.items()}
""")
    assert counted == {
        "views": 0,
        "dense already": 0,
        "clone": 1,
        "contiguous": 1,
        "reshape": 1,
        "flatten": 1,
        "product": 1,
        "product of what is expanded": 2,
        "linear": 1,
        "padding": 2,
    }


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("call", MOST)
def test_all_that_is_launched_compiles(offline, call):
    counted = offline(f"result = counts(calls.CALLS[{call!r}])")
    assert all(n <= most for n, most in zip(counted, MOST[call], strict=True)), counted


@needs_triton
@pytest.mark.parametrize(
    "make",
    [
        "lambda: calls.scan((512, 4, 1024))",
        pytest.param("lambda: calls.gated((512, 4, 1024))", marks=pytest.mark.slow),
        pytest.param("lambda: calls.log_scan((512, 4, 1024))", marks=pytest.mark.slow),
        pytest.param("lambda: calls.conv((8, 64, 512))", marks=pytest.mark.slow),
        "lambda: calls.conv((8, 64, 512), torch.bfloat16)",
    ],
    ids=["linear_scan", "gated_scan", "log_linear_scan", "causal_conv", "causal_conv, bfloat16"],
)
def test_walks_load_128_bits_spill_nothing_and_wait_for_no_thread(offline, make):
    """Where channels are many, side by side and aligned."""
    for name, registers, spills, widest, _, _, loop_barriers, _ in offline(
        f"result = codes({make})"
    ):
        assert (spills, widest, loop_barriers) == (0, 128, 0), name
        assert registers <= 255, name


#: Scans of a program for each multiprocessor, whose warps share tiles, and of tiles that hand over.
TILES = {
    "varying": "calls.scan((8, 16, 2048))",
    "constant": "calls.scan((8, 16, 2048), constant=True)",
    "narrow": "calls.scan((64, 16, 128))",
    "half of a row": "calls.scan((8, 16, 1024))",
    "complex, varying": "calls.scan((8, 16, 1024), torch.complex64)",
    "complex, constant": "calls.scan((8, 16, 1024), torch.complex64, True)",
    "bfloat16": "calls.scan((8, 16, 4096), torch.bfloat16)",
    "float16, constant": "calls.scan((8, 16, 4096), torch.float16, True)",
    "minGRU": "calls.gated((8, 16, 2048))",
    "minLSTM": "calls.gated((8, 16, 2048), 3)",
    "handed over": "calls.scan((1, 256, 1024))",
    "handed over, complex": "calls.scan((1, 256, 1024), torch.complex64)",
    "with resets": "calls.scan((8, 16, 2048), marks=True)",
    "complex, with resets": "calls.scan((8, 16, 1024), torch.complex64, True, True)",
    "handed over, packed, with resets": "calls.scan((1, 256, 1024), marks=True)",
    "logarithms": "calls.log_scan((8, 16, 2048))",
    "logarithms, bfloat16": "calls.log_scan((8, 16, 4096), torch.bfloat16)",
    "logarithms, handed over": "calls.log_scan((1, 256, 1024))",
}
FAST = ("complex, constant", "bfloat16", "handed over")


@needs_triton
@pytest.mark.parametrize(
    "call", [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in TILES]
)
def test_tiles_load_128_bits_spill_nothing_and_meet_at_few_barriers(offline, call):
    """Ten barriers a tile of 64 steps; a hand-over has its own, outside of the loops that wait."""
    codes = offline(f"result = codes(lambda: {TILES[call]})")
    assert [name for name, *_ in codes][:2] == ["run_forward", "run_backward"]
    for name, registers, spills, widest, _, _, loop_barriers, _ in codes[:2]:
        assert (spills, widest) == (0, 128), name
        assert loop_barriers <= 10, name
        assert registers <= 255, name


@needs_triton
@pytest.mark.parametrize("shape", [(512, 4, 1024), (8, 16, 2048), (1, 4096, 256)])
@pytest.mark.parametrize(("scan", "back"), [("scan", 5), ("log_scan", 6)])
def test_scans_move_every_number_once(offline, shape, scan, back):
    """Three tensors forward and five backward; a hand-over adds a tenth and no other pass.

    Backward, a scan of logarithms reads what is added, too.
    """
    forward, backward = offline(f"""
from linrnn.compute.launch import Launch
offline.launch_uncompiled()
moved, launch = [], Launch.__call__

def measured(self, *tensors):
    moved.append(sum(x.nbytes for x in tensors if x is not None))
    launch(self, *tensors)

Launch.__call__ = measured
call = calls.{scan}({shape})
calls.both(call)()
result = moved[-2:]
""")
    size = 4 * shape[0] * shape[1] * shape[2]
    state = 4 * shape[0] * shape[2]
    handed = 0.3 * size * (1 + (scan == "log_scan"))  # a logarithm is two numbers there
    assert 3 * size <= forward <= 3 * size + handed + 3 * state
    assert back * size <= backward <= (back + 0.3) * size + 3 * state


@needs_triton
def test_cells_have_rows_of_many_steps_on_their_way_and_spill_nothing(offline):
    """Each of sLSTM's four inputs, 16 steps ahead of the two that are computed at once."""
    found = offline("result = codes(lambda: calls.cell('sLSTM'))")
    for name, registers, spills, _, loads, barriers, _, _ in found[:2]:
        assert (spills, barriers) == (0, 0), name
        assert registers <= 168, name  # 12 programs a multiprocessor
        assert sum(loads.values()) >= 4 * (16 + 2), name


@needs_triton
@pytest.mark.parametrize(
    ("gated", "modes"),
    [pytest.param(False, 16, marks=pytest.mark.slow), (True, 16), (False, 1)],
)
def test_selective_scan_keeps_expanded_states_in_registers(offline, gated, modes):
    """Its adjoint is given no room for the states of every step, and spills none."""
    kept, found = offline(f"""
from linrnn.ops.selective_scan import _triton
sizes, launch = [], _triton.launch

def measured(kernel, programs, *arguments, **options):
    sizes.extend(x.numel() for n, x in zip(kernel.arg_names, arguments) if n == "chunk_states")
    launch(kernel, programs, *arguments, **options)

_triton.launch = measured
shape = (2, 256, 32, {modes})
make = lambda: calls.selective(shape, {gated})
found = codes(make)
result = max(sizes) / torch.Size(shape).numel(), found
""")
    assert kept == 1 / 16
    assert [(name, spills) for name, _, spills, *_ in found] == [
        ("run_forward", 0),
        ("run_backward", 0),
    ]


class Compiled:
    """A compiled kernel."""

    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *arguments: self.calls.append(arguments)


class Kernel:
    """Like Triton's: a launch compiles and returns what it compiled."""

    arg_names = ("x", "y", "n", "BLOCK")

    def __init__(self):
        self.launches, self.direct = [], []

    def __getitem__(self, grid):
        def run(*arguments, **options):
            self.launches.append((grid, arguments, options))
            return Compiled(self.direct)

        return run


def at(offset):
    """Four numbers that begin so many bytes behind a multiple of 16."""
    memory = torch.zeros(64)
    first = -memory.data_ptr() % 16 // 4 + offset // 4
    return memory[first : first + 4]


def test_only_the_first_launch_of_a_plan_takes_the_compilers_way():
    kernel = Kernel()
    run = Launch(kernel, 3, {"n": 4, "other": 1}, {"BLOCK": 32, "num_warps": 1})
    assert run.tensors == ["x", "y"]
    x, y = at(0), at(0)
    run(x, y)
    run(y, x)
    ((grid, arguments, options),) = kernel.launches
    assert (grid, options) == ((3, 1, 1), {"num_warps": 1})
    assert arguments[0] is x
    assert arguments[2:] == (4, 32)
    ((first, second, *numbers),) = kernel.direct
    assert first is y
    assert second is x
    assert numbers == [4, 32]


def test_tensors_that_are_missing_or_lie_elsewhere_are_compiled_for():
    kernel = Kernel()
    run = Launch(kernel, 1, {"n": 4}, {"BLOCK": 32})
    run(at(0), None)
    run(at(0), at(0))
    assert (len(kernel.launches), len(kernel.direct)) == (2, 0)
    run(at(4), at(0))  # what is compiled for aligned ones would read beside them
    run(at(4), at(0))
    assert (len(kernel.launches), len(kernel.direct)) == (4, 0)
    run(at(0), None)
    run(at(0), at(0))
    assert (len(kernel.launches), len(kernel.direct)) == (4, 2)


def test_a_launch_without_a_plan_tells_numbers_and_dtypes_apart():
    kernel, x = Kernel(), at(0)
    for n, y in ((4, x), (4, x), (5, x), (4, x.double()), (4, None), (5, x)):
        launch(kernel, 1, x, y, n, BLOCK=32)
    assert len(kernel.launches) == 4
    assert [arguments[2] for arguments in kernel.direct] == [4, 5]


def test_complex_numbers_are_pairs_to_the_compiler():
    kernel = Kernel()
    run = Launch(kernel, 1, {"n": 4}, {"BLOCK": 32})
    z = torch.zeros(8, dtype=torch.complex64)
    z = z[-z.data_ptr() % 16 // 8 :][:2]
    run(z, None)
    run(z, None)
    assert kernel.launches[0][1][0].shape == (2, 2)
    assert kernel.direct[0][0] is z

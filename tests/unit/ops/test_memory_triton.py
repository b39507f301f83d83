"""The Triton kernels of the matrix memories: in the interpreter, and compiled for a GPU."""

import importlib.util

import pytest
import torch

from linrnn.ops import explain
from linrnn.ops._memory import _triton

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)
slow = pytest.mark.slow
OPS = ("outer_scan", "delta_scan")

SETUP = """
import torch
torch.set_num_threads(1)
from linrnn.ops import delta_scan, outer_scan
from linrnn.ops._memory import _triton
from linrnn.testing import _every_op as laws
from linrnn.testing._examples import calls
from linrnn.testing._op_laws import _PoisonedMemory

def chunks_of(steps):
    _triton.WINDOW = _triton.CHUNK = _triton.SOLVED = steps

def compare(call, dtype, **layout):
    '''Outputs and all gradients with the equation of a step, as the law of all ops does.'''
    exact = laws._cast({**call.arguments, **layout}, dtype)
    truth, loop = (laws._evaluate(call, laws._loop(call), exact, d)
                   for d in (torch.float64, torch.float32))
    with _PoisonedMemory():
        got = laws._evaluate(call, laws._on(call, "triton"), exact, dtype)
    to = laws.epsilon(laws.accumulator_dtype(dtype)) / laws.epsilon(torch.float32)
    for name, value in got.items():
        laws.check_close(f"{call.kind} {dtype} {list(layout)}: {name}", value, truth[name],
                         loop_error=laws.difference(loop[name], truth[name]) * to,
                         roundings=call.roundings)

def mask(time, *places):
    reset = torch.zeros(1, time, dtype=torch.bool)
    reset[:, list(places)] = True
    return reset
"""


@pytest.fixture
def interpreted(python):
    def run(code):
        assert python(f"{SETUP}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


@needs_triton
@pytest.mark.parametrize("op", OPS)
def test_decays_by_head_or_none_equal_their_steps(interpreted, op):
    """Of two chunks; with a state, a reset and in reverse; in every dtype."""
    interpreted(f"""
chunks_of(16)
by_head = [x for x in calls({op!r}, 1, 19, 3) if x.arguments.get("g", torch.ones(1)).ndim in (1, 3)]
assert len(by_head) >= 2
dtypes = (torch.float32, torch.bfloat16, torch.float64)
for i, call in enumerate(by_head):
    state = laws._random(1, *call.state)
    compare(call, dtypes[i % 3], initial_state=state, reset=mask(19, 5), reverse=True)
""")


@needs_triton
def test_decays_by_channel_equal_their_steps(interpreted):
    """Of two blocks; one head and no state, then a bonus."""
    interpreted("""
chunks_of(32)
*_, by_channel, _, bonus = calls("outer_scan", 1, 19, 3)
compare(by_channel, torch.float32, reset=mask(19, 2, 17))
compare(bonus, torch.float32)
""")


@needs_triton
@slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("kind", range(6))
def test_every_kind_equals_its_steps(interpreted, op, kind):
    """Two chunks of two blocks, in both directions; packed, with sequences of no step."""
    interpreted(f"""
chunks_of(32)
kinds = list(calls({op!r}, 1, 37, 3))
call = kinds[{kind} % len(kinds)]
state, reset = laws._random(4, *call.state), mask(37, 3, 16, 34)
compare(call, torch.float64, initial_state=state[:1], reset=reset)
compare(call, torch.float16, reverse=True)
cuts = torch.tensor([0, 0, 34, 37, 37])
compare(call, torch.float64, initial_state=state, cu_seqlens=cuts, reverse=True)
""")


@needs_triton
@slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("law", ["empty_sizes", "any_memory", "nothing_passes_a_cut"])
def test_law(interpreted, op, law):
    interpreted(f"""
chunks_of(16)
layouts = laws._layouts
laws._layouts = lambda op: list(layouts(op))[2::9]
laws.{law}({op!r}, "triton")
""")


@needs_triton
def test_what_is_not_finite_goes_neither_back_in_time_nor_past_a_reset(interpreted):
    """In the same block, in the same chunk and chunks later; gradients in the other direction."""
    interpreted("""
chunks_of(16)
time, nan = 40, float("nan")
for op, options in ((outer_scan, {}), (delta_scan, {"beta": torch.ones(1, time, 1)})):
    for at, cut in ((3, 9), (20, 38)):
        q, k, v = (torch.randn(1, time, 1, 2) for _ in "qkv")
        k = torch.nn.functional.normalize(k, dim=-1)
        given = dict(q=q, k=k, v=v, g=-torch.rand(1, time, 1), reset=mask(time, cut), **options)
        clean, last = op(**given, backend="triton")
        for name in ("k", "v", "g"):
            for bad in (nan, float("inf")):
                x = given[name].clone()
                x[:, at] = bad
                o, final = op(**{**given, name: x}, backend="triton")
                assert torch.equal(o[:, :at], clean[:, :at]), (name, bad)
                assert not o[:, at:cut].isfinite().any(), (name, bad)
                assert torch.equal(o[:, cut:], clean[:, cut:]), (name, bad)
                assert torch.equal(final, last), (name, bad)
        leaves = {n: given[n].requires_grad_() for n in ("q", "k", "v", "g", *options)}
        o, _ = op(**given, backend="triton")
        into = torch.ones_like(o)
        into[:, cut - 2] = nan
        for n, x in zip(leaves, torch.autograd.grad(o, leaves.values(), into)):
            assert x[:, cut - 1:].isfinite().all(), n
            assert n == "q" or x[:, at:cut - 2].isnan().all(), n
        given["reset"] = None
        o, _ = op(**given, backend="triton")
        into[:, cut - 2], into[:, at] = 1, nan
        for n, x in zip(leaves, torch.autograd.grad(o, leaves.values(), into)):
            assert x[:, at + 1:].isfinite().all(), n
""")


@needs_triton
@slow
@pytest.mark.parametrize("low_rank", [False, True])
def test_nothing_passes_a_cut_of_decays_by_channel(interpreted, low_rank):
    """NaN at a step of every block, a reset in the same block and in later ones; both ways."""
    interpreted(f"""
chunks_of(32)
time, nan = 37, float("nan")
for at, cut in ((3, 9), (3, 20), (18, 34)):
    unit = lambda: torch.nn.functional.normalize(torch.randn(1, time, 1, 2), dim=-1)
    given = dict(q=unit(), k=unit(), v=torch.randn(1, time, 1, 2), g=-torch.rand(1, time, 1, 2))
    op = outer_scan
    if {low_rank}:
        op, given = delta_scan, given | dict(a=unit(), b=-0.5 * unit())
    given["reset"] = mask(time, cut)
    clean, last = op(**given, backend="triton")
    for name in ("g", "k"):
        bad = given[name].clone()
        bad[:, at] = nan
        leaves = {{n: x.clone().requires_grad_() for n, x in {{**given, name: bad}}.items()
                  if n != "reset"}}
        o, final = op(**leaves, reset=given["reset"], backend="triton")
        assert torch.equal(o[:, :at], clean[:, :at]) and not o[:, at:cut].isfinite().any()
        assert torch.equal(o[:, cut:], clean[:, cut:]) and torch.equal(final, last)
        for n, x in zip(leaves, torch.autograd.grad(o.sum() + final.sum(), leaves.values())):
            assert x[:, cut:].isfinite().all(), n
        bad = given[name].clone()
        bad[:, cut + 1] = nan
        leaves[name] = bad.requires_grad_()
        o, final = op(**leaves, reset=given["reset"], backend="triton")
        for n, x in zip(leaves, torch.autograd.grad(o.sum() + final.sum(), leaves.values())):
            if n != name:  # the broken leaf of before
                assert not leaves[n].isfinite().all() or x[:, :cut].isfinite().all(), n
""")


@needs_triton
def test_two_runs_give_the_same_bits(interpreted):
    interpreted("""
chunks_of(16)
*_, call = [x for x in calls("delta_scan", 1, 19, 3) if x.kind == "by head"]
first, second = (laws._evaluate(call, laws._on(call, "triton"), call.arguments, torch.float32)
                 for _ in "ab")
assert all(torch.equal(x, second[n]) for n, x in first.items())
""")

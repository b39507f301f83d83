"""The Triton kernels of the matrix memories: in the interpreter, and compiled for a GPU."""

import importlib.util
from functools import partial

import pytest
import torch

from linrnn.ops import explain
from linrnn.ops.matrix._memory import _triton

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed (pip install 'linrnn[triton]')",
)
slow = pytest.mark.slow
OPS = ("outer_scan", "delta_scan")

SETUP = """
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
from linrnn.ops import delta_scan, outer_scan
from linrnn.ops.matrix._memory import _triton
from linrnn.testing import _every_op as laws
from linrnn.testing._examples import calls
from linrnn.testing._op_laws import _PoisonedMemory

def chunks_of(steps):
    _triton.CHUNK = _triton.SOLVED = steps

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
def interpreted(warm):
    def run(code):
        assert warm(f"{SETUP}{code}\nresult = 1", TRITON_INTERPRET="1") == 1

    return run


@needs_triton
def test_some_of_every_kind_equal_their_steps(interpreted):
    """Two chunks with a state, a reset and in reverse, in two dtypes; two blocks with a bonus."""
    interpreted("""
dtypes = (torch.float64, torch.bfloat16)
for op, names in (("outer_scan", ("undecayed", "by head")), ("delta_scan", ("delta", "by head"))):
    chunks_of(16)
    for i, call in enumerate(x for x in calls(op, 1, 19, 3) if x.kind in names):
        state = laws._random(1, *call.state)
        compare(call, dtypes[i], initial_state=state, reset=mask(19, 5), reverse=True)
chunks_of(32)
(bonus,) = (x for x in calls("outer_scan", 1, 19, 3) if x.kind == "bonus")
compare(bonus, torch.float32, reset=mask(19, 2, 17))
""")


@needs_triton
@slow
@pytest.mark.parametrize(
    ("op", "kind"),
    [*(("outer_scan", i) for i in range(6)), *(("delta_scan", i) for i in (0, 1, 2, 3, 5, 6, 7))],
)
@pytest.mark.parametrize(
    ("steps", "layout"),
    [
        (32, "dtype=torch.float64, initial_state=state[:1], reset=mask(19, 3, 16, 17)"),
        (16, "dtype=torch.float16, reverse=True"),
        (16, "dtype=torch.float64, initial_state=state, cu_seqlens=cuts, reverse=True"),
    ],
)
def test_every_kind_equals_its_steps(interpreted, op, kind, steps, layout):
    """Two blocks of a chunk or two chunks, in both directions; packed, with one of no step."""
    interpreted(f"""
chunks_of({steps})
call = list(calls({op!r}, 1, 19, 3))[{kind}]
state, cuts = laws._random(3, *call.state), torch.tensor([0, 17, 17, 19])
compare(call, {layout})
""")


@needs_triton
def test_several_writes_a_bonus_and_reads_before_equal_their_steps(interpreted):
    """The delta rule, with heads that share keys and rates; in both directions."""
    interpreted("""
chunks_of(16)
kinds = {x.kind: x for x in calls("delta_scan", 1, 19, 3)}
for kind, layout in (("several writes", {"reverse": True}), ("read before", {}), ("bonus", {})):
    call = kinds[kind]
    state = laws._random(1, *call.state)
    compare(call, torch.float64, initial_state=state, reset=mask(19, 5), **layout)
""")


@needs_triton
@slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("law", ["empty_sizes", "any_memory", "nothing_passes_a_cut"])
def test_law(interpreted, op, law):
    interpreted(f"""
chunks_of(16)
layouts = laws._layouts
laws._layouts = lambda op: list(layouts(op))[3::16]
laws.{law}({op!r}, "triton")
""")


@needs_triton
def test_what_is_not_finite_goes_neither_back_in_time_nor_past_a_reset(interpreted):
    """In the same chunk and chunks later; gradients in the other direction."""
    interpreted("""
chunks_of(16)
time, nan = 40, float("nan")
beta = {"beta": torch.ones(1, time, 1)}
for op, options, at, cut in ((outer_scan, {}, 3, 9), (delta_scan, beta, 12, 38)):
    q, k, v = (torch.randn(1, time, 1, 2) for _ in "qkv")
    k = torch.nn.functional.normalize(k, dim=-1)
    given = dict(q=q, k=k, v=v, g=-torch.rand(1, time, 1), reset=mask(time, cut), **options)
    clean, last = op(**given, backend="triton")
    for name, bad in (("k", nan), ("v", float("inf")), ("g", nan)):
        x = given[name].clone()
        x[:, at] = bad
        o, final = op(**{**given, name: x}, backend="triton")
        assert torch.equal(o[:, :at], clean[:, :at]), name
        assert not o[:, at:cut].isfinite().any(), name
        assert torch.equal(o[:, cut:], clean[:, cut:]) and torch.equal(final, last), name
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
@slow
@pytest.mark.parametrize("kind", ["constant by head", "by head", "by channel", "bonus"])
def test_float32_is_as_exact_as_a_loop_at_any_decay(interpreted, kind):
    """Logarithms from almost 0 to -300, mixed at random."""
    interpreted(f"""
(call,) = [x for x in calls("outer_scan", 1, 70, 8) if x.kind == {kind!r}]
g = call.arguments["g"]
g = -300 * torch.rand_like(g) ** 12
compare(call._replace(arguments=call.arguments | {{"g": g}}, roundings=1), torch.float32)
""")


@needs_triton
@slow
@pytest.mark.parametrize("kind", ["delta", "by head", "by channel", "low rank"])
def test_float32_is_as_exact_as_a_loop_for_keys_alike(interpreted, kind):
    """And beta up to 2."""
    interpreted(f"""
time = 70
if {kind!r} in ("by channel", "low rank"):  # whose pairs take the interpreter long
    _triton.SOLVED, time = 16, 35
(call,) = [x for x in calls("delta_scan", 1, time, 8) if x.kind == {kind!r}]
given = dict(call.arguments)
if "g" in given:
    given["g"] = -300 * torch.rand_like(given["g"]) ** 12
for name in {{"k", "a"}} & set(given):
    x = given[name]
    given[name] = torch.nn.functional.normalize(2 + 0.5 * x / x.norm(dim=-1, keepdim=True), dim=-1)
if "b" in given:
    given["b"] = -given["a"]
compare(call._replace(arguments=given, roundings=4), torch.float32)
""")


@needs_triton
@slow
def test_two_runs_give_the_same_bits(interpreted):
    interpreted("""
chunks_of(16)
*_, call = [x for x in calls("delta_scan", 1, 19, 3) if x.kind == "by head"]
first, second = (laws._evaluate(call, laws._on(call, "triton"), call.arguments, torch.float32)
                 for _ in "ab")
assert all(torch.equal(x, second[n]) for n, x in first.items())
""")


COMPILE = """
import sys, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from linrnn.ops.matrix._memory import _triton

NUMBERS = {"time", "heads", "keys", "values", "columns", "x_size", "y_size"}
STORED = {"q", "k", "v", "w", "do", "o"}

def compiled(name, storage, wide, absent, **options):
    function = getattr(_triton._module(_triton._MODULES[name]), name)
    constants = dict.fromkeys(absent) | options
    constants["DTYPE"] = tl.float64 if wide == "fp64" else tl.float32
    kinds = {}
    for argument in function.arg_names:
        if argument in constants:
            kinds[argument] = "constexpr"
        elif argument in NUMBERS or argument.endswith("_heads"):
            kinds[argument] = "i32"
        elif argument in ("reset", "slots", "cu_seqlens"):
            kinds[argument] = "*i1" if argument == "reset" else "*i64"
        else:
            kinds[argument] = "*" + (storage if argument in STORED else wide)
    constants = {n: x for n, x in constants.items() if n in kinds}
    aligned = {(i,): [["tt.divisibility", 16]] for i, k in enumerate(kinds.values()) if "*" in k}
    source = ASTSource(function, kinds, constants, aligned)
    launch = {"num_warps": _triton.WARPS[name][1], "num_stages": 1}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launch)

ALL = {
    "SIDE": 16, "KEYS": 32, "COLUMNS": 32, "EARLY": True, "ASKS_EARLY": True, "STRICT": True,
    "ONES": True, "SCALE": 0.125, "REVERSE": True,
}
PRECISIONS = {"bf16": "tf32", "fp32": "tf32x3", "fp64": "ieee"}
"""


@needs_triton
@slow
@pytest.mark.parametrize("name", list(_triton._MODULES))
def test_kernels_compile_for_a_gpu(warm, name):
    """With everything they can take, and with nothing; in shared memory that every GPU has."""
    result = warm(
        f"""{COMPILE}
name, bare = {name!r}, ("slots", "cu_seqlens", "reset", "bonus", "initial")
if name != "run_channel_pairs_back":  # its pairs of a and k are there where both are
    bare += ("past",)
result = []
for storage, wide, steps, absent in (("bf16", "fp32", 32, ()), ("fp32", "fp32", 16, bare),
                                     ("fp64", "fp64", 16, ())):
    for G in ((2,) if "channel" in name else (0, 1) if "pairs" in name else (2, 1)):
        products = dict.fromkeys(("PRECISION", "SOLVING"), PRECISIONS[storage])
        found = compiled(name, storage, wide, absent, G=G, CONSTANT=not absent, CHUNK=steps, **ALL,
                         **products)
        result.append([found.asm["ptx"].count("st.global"), found.metadata.shared])
        if name == "run_products":
            break
""",
        TRITON_INTERPRET="0",
    )
    for stores, shared in result:
        assert stores > 0
        assert shared <= 96 * 1024


def problem(**given):
    from linrnn.ops.matrix._memory._problem import Problem

    shapes = {"q": (1, 5, 2, 4), "k": (1, 5, 2, 4), "v": (1, 5, 2, 3)}
    tensors = {n: torch.zeros(s) for n, s in shapes.items()} | given
    fields = dict.fromkeys(Problem._fields) | {"delta": False, "normalizer": False, "scale": 1.0}
    return Problem(**fields | {"reverse": False} | tensors)


def test_what_it_declines_and_why_it_is_unavailable(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    reason = _triton.unavailable
    assert reason(torch.device("cpu"), torch.float32) == "it needs a CUDA tensor, got cpu"
    assert "no kernel for" in reason(torch.device("cuda"), torch.complex64)
    declines = _triton.declines
    assert declines(*problem()) is None
    assert "decays of values" in declines(*problem(value_decay=torch.zeros(1, 5, 2, 3)))
    one = {n: torch.zeros(1, 1, 2, 4) for n in "qkv"}
    assert "one step" in declines(*problem(**one))
    assert declines(*problem(**one, cu_seqlens=torch.tensor([0, 1]))) is None
    assert "no values" in declines(*problem(v=torch.zeros(1, 5, 2, 0)))
    wide = {n: torch.zeros(1, 5, 2, 300) for n in "qk"}
    assert declines(*problem(**wide)) is None
    assert "300 channels of a key" in declines(*problem(**wide, delta=True))


@needs_triton
def test_explain_says_that_it_declines(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from linrnn.compute import backend
    from linrnn.ops import outer_scan

    backend._choose.cache_clear()
    x = torch.zeros(1, 5, 1, 2)
    text = explain(outer_scan, x, x, x, value_decay=-torch.ones(1, 5, 1, 2), backend="triton")
    assert text == "composed of PyTorch's operators: decays of values have no kernel"
    assert explain(outer_scan, x, x, x, backend="triton").startswith("triton: requested")
    backend._choose.cache_clear()


@pytest.mark.parametrize(
    ("dtype", "keys", "delta", "allowed", "expected"),
    [
        (torch.float32, 128, False, False, ("tf32x3", "tf32x3")),
        (torch.float32, 64, False, False, ("tf32x3", "tf32x3")),
        (torch.float32, 64, True, False, ("ieee", "ieee")),
        (torch.float32, 128, True, True, ("tf32", "tf32x3")),
        (torch.bfloat16, 64, True, False, ("tf32", "ieee")),
        (torch.float16, 128, False, False, ("tf32", "tf32x3")),
        (torch.bfloat16, 32, False, True, ("ieee", "ieee")),
        (torch.float64, 128, True, True, ("ieee", "ieee")),
    ],
)
def test_how_exactly_kernels_multiply(request, dtype, keys, delta, allowed, expected):
    """One product of TF32 only for half precision, or where PyTorch may use it; solving, never."""
    request.addfinalizer(partial(torch.set_float32_matmul_precision, "highest"))
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    given = {n: torch.zeros(1, 5, 2, keys, dtype=dtype) for n in "qkv"}
    p = problem(**given, delta=delta)
    assert (_triton._precision(p), _triton._precision(p, solving=True)) == expected

"""Cells whose matrices stay on chip: against a float64 loop in the interpreter; compiled code.

Instances that share matrices run there in turn (`interpreted_together.py`). What that leaves out is
the order in which a GPU makes stores of one multiprocessor visible to another.
"""

import pytest
import torch
from test_cell_triton import SETUP, needs_triton, sized
from test_gpu_gates import SETUP as OFFLINE

from linrnn.engine.graph import Graph, finish
from linrnn.ops.cell.cell_scan import _triton_form
from linrnn.ops.cell.cell_scan._triton import form

slow = pytest.mark.slow

NOTED = """
from linrnn.ops.cell.cell_scan import _triton_code, _triton_form
forms, choose = [], _triton.choose_form

def noted(*arguments):
    forms.append(choose(*arguments))
    return forms[-1]

_triton.choose_form = noted
"""


@pytest.fixture
def interpreted(warm, root):
    def run(code):
        setup = SETUP.format(folder=f"{root}/tests/unit/") + NOTED
        return warm(f"{setup}{code}", TRITON_INTERPRET="1")

    return run


@needs_triton
def test_matrices_on_chip_equal_the_loop(interpreted):
    """Sequences of several lengths in one instance, and of two; more channels than widths have."""
    sharers = interpreted("""
for name, marks in in_turn(["gru", "lem", "heads", "cornn"]):
    check(name, (3, 5, 20), marks, torch.float32)
check("gru", (17, 4, 17), machine.MARKS[5], torch.float32)
result = [x.sharers for x in forms]
""")
    assert sharers
    assert set(sharers) == {1}


@needs_triton
@slow
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_every_layout_equals_the_loop(interpreted, stored):
    interpreted(f"""
for name in ("gru", "lem", "heads", "cornn"):
    for marks in machine.MARKS:
        check(name, (2, 6, 24), marks, torch.{stored})
assert all(x.sharers == 1 for x in forms)
result = 1
""")


PARTS_OF_A_CALL = """
given, state, options = machine.drawn("lem", 3, 9, 20, (True, False, False))
given = {n: x.float() for n, x in given.items()}
state = tuple(x.float() for x in state)
cell, reset = CELLS["lem"], options["reset"]

def by(cuts, state):
    outputs = []
    for first, last in zip([0, *cuts], [*cuts, 9], strict=True):
        piece = {n: x[:, first:last] if n in cell.inputs else x for n, x in given.items()}
        y, state = cell_scan(cell, state=state, reset=reset[:, first:last], **piece,
                             backend="triton")
        outputs.append(y)
    return [torch.cat(outputs, 1), *state]
"""


@needs_triton
def test_pieces_and_single_steps_have_the_bits_of_one_pass(interpreted):
    interpreted(f"""{PARTS_OF_A_CALL}
whole = by([], state)
for cuts in ([4], [1, 2, 7], list(range(1, 9))):
    assert all(map(torch.equal, by(cuts, state), whole)), cuts
assert {{x.sharers for x in forms}} == {{1}}
result = 1
""")


@needs_triton
def test_products_of_bfloat16_round_what_is_multiplied_once(interpreted):
    """Errors are those of rounding a state of a matrix of bfloat16."""
    interpreted("""
given, state, _ = machine.drawn("gru", 2, 6, 32, (False, False, False))
cell = CELLS["gru"]
given = {n: x.bfloat16() for n, x in given.items()}

def computed(dtype, **options):
    leaves = {n: x.detach().to(dtype).requires_grad_() for n, x in given.items()}
    y, last = cell_scan(cell, **leaves, **options)
    into = torch.linspace(-1, 1, y.numel()).view(y.shape)
    return [y, last, *torch.autograd.grad(y, list(leaves.values()), into.to(y.dtype))]

exact = computed(torch.float64, form="loop")
found = computed(torch.bfloat16, backend="triton")
assert {(x.sharers, x.half) for x in forms} == {(1, True)}
assert max(machine.errors(found, exact)) <= 4 * torch.finfo(torch.bfloat16).eps
result = 1
""")


SHARED = """
import interpreted_together
_triton.gpu.processors = lambda device: 64
_triton.gpu.cooperates = lambda device: True
_triton_form.CHUNK = _triton_code.CHUNK = 16
grids = interpreted_together.install()
interpreted_together.SEED = {seed}

def shared(name, channels, sharers, marks, batch=3):
    matrices = len(CELLS[name].matrices)
    _triton_form.ON_CHIP = 8 * matrices * channels * channels // sharers
    forms.clear(), grids.clear()
    check(name, (batch, 5, channels), marks, torch.float32)
    assert {{x.sharers for x in forms}} == {{sharers}}, forms
    assert all(x.switches > 20 for x in grids)  # they did wait
"""


@needs_triton
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=slow), pytest.param(2, marks=slow)])
def test_instances_that_share_matrices_equal_the_loop(interpreted, seed):
    """A GRU, a cell of two products one behind the other, one of two products of one step."""
    interpreted(f"""{SHARED.format(seed=seed)}
shared("gru", 32, 2, machine.MARKS[0])
shared("lem", 32, 2, machine.MARKS[7])
shared("cornn", 32, 2, machine.MARKS[5])
shared("gru", 64, 4, machine.MARKS[6])
shared("gru", 32, 2, machine.MARKS[1], 17)  # two groups
result = 1
""")


@needs_triton
def test_the_order_of_instances_changes_no_bit(interpreted):
    interpreted(f"""{SHARED.format(seed=0)}{PARTS_OF_A_CALL}
given, state, options = machine.drawn("lem", 3, 9, 32, (True, False, False))
given = {{n: x.float().requires_grad_() for n, x in given.items()}}
state, reset = tuple(x.float() for x in state), options["reset"]
_triton_form.ON_CHIP = 8 * 4 * 32 * 32 // 2
found, switches = [], []
for seed in range(3):
    interpreted_together.SEED = seed
    grids.clear()
    flat = by([], state)
    found.append([*flat, *torch.autograd.grad(sum(x.sum() for x in flat), list(given.values()))])
    switches.append([x.switches for x in grids])
assert len(set(map(str, switches))) == 3  # the orders did differ
assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))
result = 1
""")


@needs_triton
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("j % 2 * room", "0 * room", id="one room", marks=pytest.mark.slow),
        pytest.param("meet(arrived, (j", "meet(arrived, (0 * j", id="no waiting"),
    ],
)
def test_the_order_of_instances_shows_a_wrong_exchange(interpreted, right, wrong):
    """The test above can fail: with one room, or a counter that is passed too early."""
    interpreted(f"""{SHARED.format(seed=0)}
from linrnn.ops.cell.cell_scan import _triton_source
load = _triton_code.load
_triton_code.load = lambda text: load(text.replace({right!r}, {wrong!r}))
failures = 0
for seed in range(4):
    interpreted_together.SEED = seed
    try:
        shared("gru", 32, 2, machine.MARKS[0])
    except AssertionError:
        failures += 1
assert failures, "no order showed it"
result = 1
""")


def test_the_form_says_why():
    cell, leaves, layout = sized(64)
    assert form(cell.program, leaves, layout).why == "matrices on chip, of one instance"
    cell, leaves, layout = sized(64, None, torch.float64)
    why = form(cell.program, leaves, layout).why
    assert why == "one sequence an instance, since tensor cores are not used for float64"
    cell, leaves, layout = sized(64, 8)
    why = form(cell.program, leaves, layout).why
    assert why == (
        "one sequence an instance, since heads of 8 channels fit in the registers of a warp"
    )


def chosen(channels, seqs, matrices=4, half=False, processors=132, cooperates=True, time=1024):
    program = finish(_graph(), [["h"], ["x"], [], ["W"]], [3], [3])
    sides = _triton_form.Sides(1, ((channels, channels),) * matrices, (channels,), 4 * channels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_triton_form.gpu, "processors", lambda device: processors)
        patch.setattr(_triton_form.gpu, "cooperates", lambda device: cooperates)
        patch.setattr(_triton_form.gpu, "allows_tf32", lambda: False)
        device = torch.device("cpu")
        return _triton_form.choose_form(program, sides, seqs, time, device, half, False)


def _graph():
    graph = Graph()
    h, x, w = graph.leaf("state", 0), graph.leaf("input", 0), graph.leaf("matrix", 0)
    graph("add", graph.contract("linear", w, h), x)
    return graph


@pytest.mark.parametrize(
    ("call", "sharers", "rows"),
    [
        ({"channels": 64, "seqs": 8}, 1, 16),
        ({"channels": 128, "seqs": 8, "half": True}, 1, 16),
        ({"channels": 128, "seqs": 8}, 4, 16),
        ({"channels": 256, "seqs": 8, "half": True}, 4, 16),
        ({"channels": 256, "seqs": 8}, 16, 16),
        ({"channels": 512, "seqs": 8, "half": True}, 16, 16),
        ({"channels": 256, "seqs": 256}, 16, 32),
        ({"channels": 512, "seqs": 8}, 0, 1),  # 64 instances of 8 channels
        ({"channels": 256, "seqs": 4096}, 0, 1),
        ({"channels": 256, "seqs": 8, "cooperates": False}, 0, 1),
        ({"channels": 256, "seqs": 8, "processors": 8}, 0, 1),
        ({"channels": 256, "seqs": 8, "time": 1 << 26}, 0, 1),
    ],
    ids=str,
)
def test_instances_and_sequences_of_a_form(call, sharers, rows):
    found = chosen(**call)
    assert (found.sharers, found.rows) == (sharers, rows), found.why
    assert ("since" in found.why) == (sharers == 0)


CODES = f"""{OFFLINE}
from linrnn.compute import gpu
from linrnn.ops import cell_scan
from linrnn.ops.cell.cell_scan import _triton
from cells import CELLS

def call(name, batch, channels, dtype):
    cell = CELLS[name]
    leaf = lambda *shape: torch.zeros(shape, dtype=dtype).requires_grad_()
    given = {{x: leaf(batch, 3, channels) for x in cell.inputs}}
    given |= {{x: leaf(channels) for x in cell.constants}}
    given |= {{x: leaf(channels, channels) for x in cell.matrices}}
    return (lambda: cell_scan(cell, **given, backend="triton")[0]), tuple(given.values())

def found(*arguments):
    launches = offline.launched(calls.both(call(*arguments)))
    return [
        [x.programs, x.warps, offline.code(x.cubin)[1], *offline.longest_loop(x.cubin)]
        for x in launches
    ]
"""

#: Rows of a step that are read forward and backward: inputs, and then states, gradients of
#: outputs and products, too.
READ = {"GRU": (3, 3 + 1 + 1 + 3), "LSTM": (4, 4 + 2 + 1 + 4)}


@needs_triton
@pytest.mark.parametrize(
    ("name", "channels", "dtype", "tf32", "programs", "barriers"),
    [
        ("GRU", 64, "float32", False, 4, (10, 12)),
        pytest.param("LSTM", 64, "float32", False, 4, (14, 18), marks=slow),
        pytest.param("GRU", 128, "bfloat16", False, 4, (12, 20), marks=slow),
        pytest.param("LSTM", 128, "bfloat16", False, 4, (16, 24), marks=slow),
        pytest.param("LSTM", 256, "bfloat16", False, 16, (30, 46), marks=slow),
        pytest.param("LSTM", 512, "bfloat16", False, 64, (30, 46), marks=slow),
        pytest.param("LSTM", 256, "float32", True, 32, (30, 46), marks=slow),
        pytest.param("GRU", 256, "float32", False, 64, (32, 36), marks=slow),
        pytest.param("LSTM", 256, "float32", False, 64, (40, 50), marks=slow),
    ],
)
def test_no_matrix_is_read_at_a_step_and_nothing_spills(
    warm, name, channels, dtype, tf32, programs, barriers
):
    """A step of 64 sequences reads its rows, and what its group publishes."""
    result = warm(
        f"""{CODES}
gpu.allows_tf32 = lambda: {tf32}
result = found({name!r}, 64, {channels}, torch.{dtype})
""",
        TRITON_INTERPRET="0",
    )
    kernels = zip(result[:2], READ[name], barriers, strict=True)
    shares = programs // 4
    for number, ((grid, warps, spills, size, bars, products, _), rows, most) in enumerate(kernels):
        assert (grid, spills) == (programs, 0)
        assert bars <= most
        assert products > 0
        item = 2 if dtype == "bfloat16" else 4
        published = (1 if number == 0 else READ[name][0]) * 16 * channels * item
        own = (rows + 1) * 16 * channels // shares * 4  # fewer than a share of a matrix
        assert 32 * warps * size <= own + (published if shares > 1 else 0)

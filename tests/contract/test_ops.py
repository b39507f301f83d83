"""Every law of every op on every backend this machine has; nothing is listed by hand."""

from itertools import combinations

import pytest

import linrnn.ops
from linrnn.compute.composed import Composed
from linrnn.compute.in_place import UPDATES
from linrnn.compute.op import ALL
from linrnn.errors import UnknownNameError
from linrnn.ops import backend_report
from linrnn.testing import OP_PROPERTIES, BrokenPropertyError, check_op
from linrnn.testing._every_op import (
    ALONE_LAWS,
    BACKEND_LAWS,
    any_size_in_one_graph,
    backends,
    derivatives,
    matches_its_steps,
    operators,
)
from linrnn.testing._examples import ops
from linrnn.testing._laid_out import FLAGS, dtypes_in_turns, layouts, with_both_dtypes

NEEDS_NO_CHECKER = {"compiles"}  # torch.compile cannot trace the shape checker
# what returns no recurrence; what is distributed, which needs several processes; Newton's method,
# which tests/unit/cells has; steps in place and the norm, which tests/unit/ops has
OTHERS = {"accumulator_dtype", "backend_report", "explain", "use_backend", "use_form"}
OTHERS |= {"distributed_linear_scan", "sequence_parallel", "newton_scan", *UPDATES}
OTHERS |= {"gated_rms_norm", "seq_idx_to_cu_seqlens", "seq_idx_to_reset"}

PAIRS = [(op, backend) for op in ops() for backend in backends(op)]
IN_GRAPHS = any_size_in_one_graph.__name__


def test_every_op_is_described():
    assert set(ops()) == set(ALL)
    assert set(linrnn.ops.__all__) - OTHERS == {op for op in ops() if op in linrnn.ops.__all__}


def test_every_backend_of_an_op_is_tried():
    for op in (op for op in ops() if not isinstance(ALL[op], Composed)):
        here = {name for name, why in backend_report(op).items() if why == "available"}
        assert set(backends(op)) <= here
        assert here - set(backends(op)) <= {"tree", "reference"}


@pytest.mark.parametrize(("op", "backend"), PAIRS)
@pytest.mark.parametrize("law", [law for law in BACKEND_LAWS if law != IN_GRAPHS])
def test_op_keeps_law(op, backend, law):
    """`test_every_law_of_an_op` has each call in two dtypes, and here it has one of them."""
    in_turns = {"one_dtype": True} if law == matches_its_steps.__name__ else {}
    BACKEND_LAWS[law](op, backend, **in_turns)


@pytest.mark.parametrize("op", ["linear_scan", "recurrence", "ridge_solve", "siso_scan"])
def test_every_kind_and_pair_of_layouts_meets_both_dtypes(op):
    def met(calls):
        for call, layout, dtypes in calls:
            on = [(n, layout.get(n, False) is not False) for n in FLAGS]
            for dtype in dtypes:
                yield from ((*two, dtype.itemsize == 8) for two in combinations(on, 2))
                yield call.kind, dtype.itemsize == 8

    every, some = (list(run(layouts(op, 3))) for run in (with_both_dtypes, dtypes_in_turns))
    assert {*met(some)} == {*met(every)}
    assert sum(len(c[2]) for c in some) < sum(len(c[2]) for c in every) or op == "ridge_solve"


# whose steps, in operators one by one, take half a minute
LONG = {"attend", "attend_sinks", "attend_evicting", "attentive_recurrence", "legs_rnn"}
COMPOSED = [
    pytest.param(op, marks=pytest.mark.slow if op in LONG else ())
    for op in ops()
    if isinstance(ALL[op], Composed)
]


@pytest.mark.parametrize("op", COMPOSED)
def test_blocks_and_halvings_equal_the_steps(op):
    """Reads more steps than any block has; the layouts of all kinds have few steps."""
    matches_its_steps(op, backends(op)[0], time=75, in_turns=True, one_dtype=True)


@pytest.mark.slow
@pytest.mark.parametrize("op", COMPOSED)
def test_blocks_and_halvings_equal_the_steps_in_every_layout(op):
    matches_its_steps(op, backends(op)[0], time=75)


# whose graphs of PyTorch's operators take 2 to 8 s of processor time each; a mixer on each of them
# is traced in tests/contract/test_mixers.py, if only at one size
LONG_GRAPHS = {"attend_sinks", "attend_evicting", "attentive_recurrence", "carry_keys"}
LONG_GRAPHS |= {"fenwick_scan", "inner_scan", "momentum_delta_scan"}


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("turn", "op"),
    [
        pytest.param(turn, op, marks=pytest.mark.slow if op in LONG_GRAPHS else (), id=op)
        for turn, op in enumerate(ops())
    ],
)
def test_one_graph_serves_every_size(turn, op):
    """`test_every_law_of_an_op` exports and compiles each call, and each packed one."""
    any_size_in_one_graph(op, backends(op)[0], kinds=1, in_turns=turn)


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("op", ops())
def test_every_law_of_an_op(op):
    check_op(op)


# whose derivatives take 4 to 10 s of processor time; `higher_derivatives` of the mixers on them
# has the same in tests/contract/test_mixers.py
LONG_DERIVATIVES = {"attend", "attentive_recurrence", "fenwick_scan", "inner_scan"}


def is_quick(op, law):
    """Whether it is not what tests/unit/ops/test_composed.py has PyTorch check of an operator."""
    if law == derivatives.__name__:
        return op not in LONG_DERIVATIVES
    return law != operators.__name__ or not isinstance(ALL[op], Composed)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("op", "law"),
    [
        pytest.param(op, law, marks=() if is_quick(op, law) else pytest.mark.slow)
        for op in ops()
        for law in ALONE_LAWS
    ],
)
def test_op_keeps_law_of_its_own(op, law):
    """`test_every_law_of_an_op` varies each argument alone and traces, in all examples."""
    if law == derivatives.__name__:
        derivatives(op, in_turns=True)
    elif law == operators.__name__:
        operators(op, ends=True)
    else:
        ALONE_LAWS[law](op)


def test_check_op_takes_ops_and_backends():
    with pytest.raises(UnknownNameError, match="no check_op name named 'gru'"):
        check_op("gru")


def cases(*, unchecked: bool) -> list[tuple[str, str]]:
    laws = [n for n in OP_PROPERTIES if (n in NEEDS_NO_CHECKER) == unchecked]
    return [(backend, law) for law in laws for backend in backend_report()]  # laws share loops


def run(backend: str, law: str) -> None:
    problem = backend_report()[backend]
    if problem != "available":
        pytest.skip(f"{backend}: {problem}")
    OP_PROPERTIES[law](backend)


@pytest.mark.parametrize(("backend", "law"), cases(unchecked=False))
def test_backend_keeps_law(backend, law):
    run(backend, law)


@pytest.mark.unchecked
@pytest.mark.parametrize(("backend", "law"), cases(unchecked=True))
def test_backend_keeps_law_unchecked(backend, law):
    run(backend, law)


FORGOTTEN = [
    (op, name)
    for op in ops()
    for name in ("reset", "cu_seqlens", "reverse")
    if name in ALL[op].names and op != "cell_scan"  # which comes to its op in graphs alone
]


@pytest.mark.parametrize(("op", "name"), FORGOTTEN)
def test_law_notices_an_op_that_forgets_its_layout(monkeypatch, op, name):
    kind = type(ALL[op])
    original = kind.__call__

    def forgetful(self, *arguments, backend=None):
        if self.name == op:
            arguments = list(arguments)
            arguments[self.names.index(name)] = False if name == "reverse" else None
            if name == "cu_seqlens":
                states = "S", "M"  # of a rule with momentum
                if "S" not in self.names:
                    states = ("past" if "past" in self.names else "initial_state",)
                for state in map(self.names.index, states):
                    one = arguments[state]
                    arguments[state] = None if one is None else one[:1]
        return original(self, *arguments, backend=backend)

    monkeypatch.setattr(kind, "__call__", forgetful)
    with pytest.raises((BrokenPropertyError, RuntimeError)):
        BACKEND_LAWS["matches_its_steps"](op, backends(op)[-1])

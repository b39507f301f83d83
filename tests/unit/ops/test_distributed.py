"""Several Gloo processes give the numbers, gradients and errors `distributed_linear_scan` promises.

Each test starts its processes once and runs many cases in them: starting takes longer than
computing. Every process builds every case from its seed and takes its own piece.
"""

import itertools
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal, localcontext
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from linrnn.errors import BackendError, LinrnnError
from linrnn.ops import distributed_linear_scan, linear_scan
from linrnn.ops.linear.distributed import _power
from linrnn.testing import loop_scan
from linrnn.testing._tolerance import check_close, difference

PATIENCE = 100  # seconds until processes that wait for each other are ended
NAMES = ("a", "b", "initial_state")
START_METHOD = "spawn"
if sys.platform == "linux":  # forks of one process that has imported PyTorch, which takes seconds
    START_METHOD = "forkserver"
    multiprocessing.set_forkserver_preload(["linrnn.ops", "linrnn.testing", "pytest"])


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]
    constant: bool = False
    is_complex: bool = False
    reverse: bool = False
    resets: bool = False
    initial: bool = True
    batch: int = 2
    channels: tuple[int, ...] = (3,)
    decay: tuple[float, float] = (0.0, 1.0)
    dtype: torch.dtype = torch.float32
    everywhere: bool = False  # the initial state is given on every rank

    def arguments(self):
        """Inputs of the whole sequence and the cotangents, exact in the dtype of the case."""
        g = torch.Generator().manual_seed(sum(self.lengths) + len(self.lengths))
        wide = torch.complex128 if self.is_complex else torch.float64
        dtype = torch.complex64 if self.is_complex else self.dtype
        shape = (self.batch, sum(self.lengths), *self.channels)
        low, high = self.decay

        def normal(*shape):
            return torch.randn(shape, generator=g, dtype=wide).to(dtype)

        modulus = low + (high - low) * torch.rand(shape, generator=g, dtype=torch.float64)
        sign = normal(*shape)
        a = (modulus * (sign / sign.abs() if self.decay[0] < 0.9 else 1)).to(dtype)
        a = a[0, 0] if self.constant and shape[1] and shape[0] else a
        state = normal(self.batch, *self.channels) if self.initial else None
        reset = torch.rand(shape[:2], generator=g) < 0.2 if self.resets else None
        into_h = normal(*shape)
        into_final = normal(len(self.lengths), self.batch, *self.channels)
        return a, normal(*shape), state, reset, into_h, into_final


def cases(ranks):
    lengths = {2: (5, 12), 4: (7, 1, 0, 9)}[ranks]
    for flags in itertools.product((False, True), repeat=5):
        yield Case(lengths, *flags)
    empty = {2: [(0, 6), (6, 0), (0, 0)], 4: [(0, 3, 0, 4), (3, 0, 4, 0), (0, 0, 0, 0)]}[ranks]
    for uneven, constant, reverse in itertools.product(empty, (False, True), (False, True)):
        yield Case(uneven, constant, reverse=reverse)
    even = (4,) * ranks
    yield Case(even, channels=(2, 3))
    yield Case(even, constant=True, channels=(2, 1, 3), reverse=True, resets=True)
    yield Case(even, channels=())
    yield Case(even, batch=0)
    yield Case(even, everywhere=True)
    yield Case(even, everywhere=True, reverse=True)
    yield Case(even, dtype=torch.bfloat16)
    if ranks == 2:
        return
    # long memory over several blocks of a summary, forward and backward
    for constant, reverse in itertools.product((False, True), repeat=2):
        rest = {"batch": 1, "channels": (4096,), "decay": (0.9999, 1.0)}
        yield Case((70, 130, 10, 65), constant, constant, reverse, resets=reverse, **rest)


def backward(h, final, into_h, into_final):
    wide = torch.complex128
    return (
        (h.to(wide) * into_h.to(wide).conj()).sum()
        + (final.to(wide) * into_final.to(wide).conj()).sum()
    ).real.backward()


def piece(case, rank, x):
    start = sum(case.lengths[:rank])
    return x if x is None or x.ndim < 2 else x[:, start : start + case.lengths[rank]]


def compute_piece(case, rank, group):
    """The results and gradients of one rank, by name."""
    a, b, state, reset, into_h, into_final = case.arguments()
    starts = len(case.lengths) - 1 if case.reverse else 0
    state = state if rank == starts or case.everywhere else None
    a = a if a.ndim < b.ndim else piece(case, rank, a)
    leaves = [None if x is None else x.clone().requires_grad_() for x in (a, state)]
    a, state, b = *leaves, piece(case, rank, b).clone().requires_grad_()
    reset = piece(case, rank, reset)
    if reset is not None and not reset.any():
        reset = None
    h, final = distributed_linear_scan(a, b, state, reset=reset, reverse=case.reverse, group=group)
    backward(h, final, piece(case, rank, into_h), into_final[rank])
    found = {"h": h.detach(), "final": final.detach()}
    named = zip(NAMES, (a, b, state), strict=True)
    return found | {f"grad {name}": x.grad for name, x in named if x is not None}


def compute_whole(case, scan, dtype):
    a, b, state, reset, into_h, into_final = case.arguments()
    leaves = [None if x is None else x.to(dtype).requires_grad_() for x in (a, b, state)]
    shape, width = b.shape, prod(case.channels)
    narrow = (shape[0], shape[1], width)
    flat = [
        leaves[0].reshape(width if a.ndim < b.ndim else narrow),
        leaves[1].reshape(narrow),
        None if state is None else leaves[2].reshape(shape[0], width),
    ]
    h, final = scan(*flat, reset=reset, reverse=case.reverse)
    h, final = h.reshape(shape), final.reshape(shape[0], *shape[2:])
    backward(h, final, into_h, into_final.sum(0, dtype=torch.complex128))
    found = {"h": h.detach(), "final": final.detach()}
    named = zip(NAMES, leaves, strict=True)
    return found | {f"grad {name}": gradient(x) for name, x in named if x is not None}


def gradient(x):
    """Zero where a loop over no steps never touched its argument."""
    return torch.zeros_like(x) if x.grad is None else x.grad


def joined(case, parts):
    """The pieces put together; what ranks share is added up."""
    whole = {name: torch.cat([p[name] for p in parts], 1) for name in ("h", "grad b")}
    whole["final"] = parts[0]["final"]
    constant = parts[0]["grad a"].ndim < parts[0]["h"].ndim
    grads = [p["grad a"] for p in parts]
    whole["grad a"] = torch.stack(grads).sum(0) if constant else torch.cat(grads, 1)
    states = [p["grad initial_state"] for p in parts if "grad initial_state" in p]
    if states:
        whole["grad initial_state"] = torch.stack(states).sum(0)
    return whole


def check_case(case, parts):
    wide = torch.complex128 if case.is_complex else torch.float64
    expected = compute_whole(case, linear_scan, wide)
    narrow = torch.complex64 if case.is_complex else torch.float32
    loop = compute_whole(case, loop_scan if sum(case.lengths) < 50 else linear_scan, narrow)
    for name, got in joined(case, parts).items():
        error = difference(loop[name], expected[name])
        check_close(f"{case}: {name}", got, expected[name], loop_error=error)
    for part in parts:
        assert torch.equal(part["final"], parts[0]["final"])
    if case.everywhere:
        starts = len(parts) - 1 if case.reverse else 0
        others = [p["grad initial_state"] for r, p in enumerate(parts) if r != starts]
        assert not torch.stack(others).any()


def start(rank, ranks, folder, work, *arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE / 2),
    )
    try:
        torch.save(work(rank, *arguments), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def run(ranks, folder, work, *arguments):
    """The results of ``work(rank, *arguments)`` on several processes."""
    context = multiprocessing.start_processes(
        start,
        (ranks, folder, work, *arguments),
        nprocs=ranks,
        join=False,
        start_method=START_METHOD,
    )
    deadline = time.monotonic() + PATIENCE
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in context.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def work_on_cases(rank):
    pair = dist.new_group([2, 3])  # whose ranks are not those of the default group
    return {
        "two": [compute_piece(case, rank - 2, pair) for case in cases(2)] if rank >= 2 else [],
        "four": [compute_piece(case, rank, None) for case in cases(4)],
    }


def test_two_and_four_processes_give_the_numbers_of_one(tmp_path):
    found = run(4, tmp_path, work_on_cases)
    for i, case in enumerate(cases(4)):
        check_case(case, [of_rank["four"][i] for of_rank in found])
    for i, case in enumerate(cases(2)):
        check_case(case, [of_rank["two"][i] for of_rank in found[2:]])


@contextmanager
def counted_exchanges(sizes):
    original = dist.all_gather

    def count(parts, sent, group=None):
        sizes.append(sent.numel() * sent.element_size())
        return original(parts, sent, group=group)

    dist.all_gather = count
    try:
        yield
    finally:
        dist.all_gather = original


def refusal(call):
    try:
        call()
    except LinrnnError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def work_on_the_rest(rank):
    """Everything else the function promises, one answer by name."""
    mine = rank == 1

    def says(a=None, b=None, state=None, **options):
        a = torch.ones(2, 4, 3) if a is None else a
        b = torch.ones(2, 4, 3) if b is None else b
        return refusal(lambda: distributed_linear_scan(a, b, state, **options))

    def wide(*shape):
        return torch.ones(shape, dtype=torch.float64 if mine else torch.float32)

    alone = [dist.new_group([0]), dist.new_group([1])]
    sizes, b = [], torch.ones(2, 4, 3, requires_grad=mine)
    with counted_exchanges(sizes):
        h, _ = distributed_linear_scan(torch.full((3,), 0.5), b)
        h.sum().backward()  # rank 0 has nothing to differentiate, and must take part
        single = distributed_linear_scan(torch.ones(3), b, group=alone[rank])[1]
    squared = distributed_linear_scan(torch.full((3,), 0.5, requires_grad=True), b)[0] ** 2
    twice = torch.autograd.grad(squared.sum(), b, create_graph=True)[0] if mine else None
    if not mine:
        squared.sum().backward()
    with torch.set_grad_enabled(mine):
        grad_mode = says()
    return {
        "sizes": sizes,
        "grad b": b.grad,
        "single": single.detach(),
        "twice": refusal_of_second(twice),
        "dtype": says(b=wide(2, 4, 3)),
        "batch": says(b=torch.ones(2 + rank, 4, 3), a=torch.ones(3)),
        "channels": says(b=torch.ones(2, 4, 3 + rank), a=torch.ones(3 + rank)),
        "axes": says(b=torch.ones(2, 4, *((3, 2) if mine else (2, 3))), a=torch.ones(1, 1, 1, 1)),
        "reverse": says(reverse=mine),
        "grad_mode": grad_mode,
        "integers": says(b=torch.ones(2, 4, 3, dtype=torch.long) if mine else None),
        "state": says(state=torch.ones(2, 3) if mine else None),
        "reversed_state": says(state=None if mine else torch.ones(2, 3), reverse=True),
        "backend": says(backend="quantum" if mine else None),
        "outside": says(group=alone[1 - rank]),
        "afterwards": says(),
    }


def refusal_of_second(gradient):
    if gradient is None:
        return ""
    try:
        gradient.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "accepted"


def test_errors_reach_every_rank_and_exchanges_stay_small(tmp_path):
    found = run(2, tmp_path, work_on_the_rest)
    # the card, then batch * (2 channels + 1) doubles; batch * 2 channels doubles back
    assert [f["sizes"] for f in found] == [[136, 2 * 7 * 8, 2 * 6 * 8]] * 2
    expected = torch.tensor([1.875, 1.75, 1.5, 1.0]).expand(2, 3, 4).mT
    torch.testing.assert_close(found[1]["grad b"], expected)
    assert found[0]["grad b"] is None
    torch.testing.assert_close(found[0]["single"], torch.full((2, 3), 4.0))
    assert "once_differentiable" in found[1]["twice"]
    for rank in (0, 1):
        for name, message in MESSAGES.items():
            message = message if isinstance(message, str) else message[rank]
            assert message in found[rank][name], name


EQUAL = "must be equal on every rank, got"
MESSAGES = {
    "dtype": f"DTypeError: distributed_linear_scan: the common dtype of a and b {EQUAL} "
    "torch.float32 on rank 0 and torch.float64 on rank 1.",
    "batch": f"ShapeError: distributed_linear_scan: batch {EQUAL} 2 on rank 0 and 3 on rank 1.",
    "channels": f"ShapeError: distributed_linear_scan: the shape of the channels {EQUAL} "
    "(3,) on rank 0 and (4,) on rank 1.",
    "axes": f"ShapeError: distributed_linear_scan: the shape of the channels {EQUAL} "
    "(2, 3) on rank 0 and (3, 2) on rank 1.",
    "reverse": f"ArgumentError: distributed_linear_scan: reverse {EQUAL} False on rank 0 and True",
    "grad_mode": f"torch.is_grad_enabled() {EQUAL} False on rank 0 and True on rank 1.",
    "integers": ("BackendError: distributed_linear_scan: every rank must accept", "DTypeError"),
    "state": "initial_state must be given on rank 0, which starts the sequence, got it on rank 1",
    "reversed_state": "initial_state must be given on rank 1, which starts the sequence, got it",
    "backend": ("got a refusal on rank 1. Its own error says why.", "no linear_scan backend"),
    "outside": "ArgumentError: distributed_linear_scan: group must contain this process",
    "afterwards": "accepted",
}


def test_without_a_process_group_the_error_says_what_to_do():
    with pytest.raises(BackendError, match=r"process group must be initialised, got none\. Start"):
        distributed_linear_scan(torch.ones(3), torch.ones(1, 4, 3))


@pytest.mark.parametrize("exponent", [0, 1, 2, 7, 1000, 2**20 - 1])
def test_power_is_exact_but_for_a_few_roundings(exponent):
    a = torch.tensor([0.99999912345, -0.9999, 1.0, 1 + 2**-30], dtype=torch.float64)
    with localcontext() as context:
        context.prec = 60
        for base, got in zip(a.tolist(), _power(a, exponent).tolist(), strict=True):
            error = abs(Decimal(got) / Decimal(base) ** exponent - 1)
            assert error <= 2 * exponent.bit_length() * Decimal(2) ** -53


@pytest.mark.slow  # the other tests here have the numbers of as many processes
def test_example_runs_under_torchrun(root):
    program = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, "-m", *program, root / "examples" / "distributed_scan.py"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks agree with one process" in done.stdout

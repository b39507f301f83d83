"""How many threads: one or all, whichever is faster at what is about to be done.

Small recurrent layers are many small operations, and waking threads for each may cost more than
they save: a forecast with short windows trained ten times as fast with one thread as with two on
a busy machine of two cores. Nobody can tell without trying.
"""

import copy
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from linrnn.errors import ArgumentError, check_at_most, check_positive_int, show
from linrnn.learn import Batch, Loop

if TYPE_CHECKING:
    from linrnn.train._module import TrainingModule

SECONDS = 1.0
"""For which each number of threads is tried, or three steps if they take longer together."""

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MARGIN = 1.05  # all threads, PyTorch's own choice, are given up for no less


_MAX_THREADS = 1024  # threads: more than any machine has, and PyTorch counts in 32 bits


class Chosen(NamedTuple):
    """A number of threads, and why it is that."""

    threads: int
    why: str


def check_threads(where: str, threads: object) -> None:
    """Raise `ArgumentError` unless it is a positive integer, ``auto`` or None."""
    if threads is None or (isinstance(threads, str) and threads == "auto"):
        return
    if isinstance(threads, str):
        raise ArgumentError(
            f"{where}: threads must be a positive integer or 'auto', got {show(threads)}."
        )
    check_positive_int(where, threads=threads)
    check_at_most(where, _MAX_THREADS, threads=cast(int, threads))


def choose_threads(step: Callable[[], object], *, seconds: float = SECONDS) -> Chosen:
    """One thread or all, by steps that are timed in turns; afterwards all is as before.

    Where somebody has chosen already, by ``OMP_NUM_THREADS``, ``MKL_NUM_THREADS`` or
    `torch.set_num_threads`, nothing is tried and that number stays.

    Args:
        step: what is to be fast, often; may be called any number of times.
        seconds: for which each number is tried.
    """
    initial = torch.get_num_threads()
    if reason := _said(initial):
        return Chosen(initial, reason)
    best = {1: float("inf"), initial: float("inf")}
    try:
        for threads in best:  # caches, allocations, and threads that have not started yet
            torch.set_num_threads(threads)
            step()
        spent, turns = 0.0, 0
        while spent < 2 * seconds or turns < 3:
            for threads in best:
                torch.set_num_threads(threads)
                start = time.perf_counter()
                step()
                took = time.perf_counter() - start
                best[threads], spent = min(best[threads], took), spent + took
            turns += 1
            if spent > 20 * seconds:
                break
    finally:
        torch.set_num_threads(initial)
    threads = 1 if best[1] * _MARGIN < best[initial] else initial
    rates = " and ".join(f"{1 / took:.3g} with {n}" for n, took in best.items())
    return Chosen(threads, f"{rates} in steps/s")


def trial_of_training(module: "TrainingModule", batch: Batch) -> Chosen:
    """`choose_threads` for the gradients of a batch, which a copy of the module finds.

    The generator of random numbers is where it was afterwards.
    """
    initial = torch.get_num_threads()
    if reason := _said(initial):
        return Chosen(initial, reason)
    step = gradients(module, batch)
    if isinstance(step, str):
        return Chosen(initial, step)
    with torch.random.fork_rng(devices=[]):
        return choose_threads(step)


def gradients(module: "TrainingModule", batch: Batch) -> Callable[[], None] | str:
    """A call that finds the gradients of a batch in a copy of the module, or why there is none."""
    try:
        copied = copy.deepcopy(module).train()
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        return f"the model cannot be copied to try: {error}"
    weight = next(copied.model.parameters(), batch.x)
    if batch.x.is_floating_point() and weight.is_floating_point():
        batch = batch._replace(x=batch.x.to(weight.dtype))

    def step() -> None:
        copied.zero_grad(set_to_none=True)
        copied.learner.step(copied.called(), batch, None, Loop(copied.loss))

    return step


def _said(initial: int) -> str | None:
    """Why there is nothing to choose, or None."""
    for name in _VARIABLES:
        if os.environ.get(name):
            return f"{name} is set"
    if initial == 1:
        return "there is one"
    if initial not in _of_the_machine():
        return "torch.set_num_threads was called"
    return None


def _of_the_machine() -> set[int]:
    """Counts that PyTorch may have taken of itself: processors, or cores of two processors each."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    counts = {allowed, os.cpu_count() or 1}
    return counts | {max(1, n // 2) for n in counts}

"""float32 or bfloat16 products, whichever is faster at what is about to be done.

Where a processor multiplies bfloat16 numbers itself, large layers gain; small ones pay for the
casts, and other processors are slower with it. Nobody can tell without trying.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch

from linrnn.learn import Batch
from linrnn.train.threads import gradients

if TYPE_CHECKING:
    from linrnn.train._module import TrainingModule

SECONDS = 1.0
"""For which each precision is tried, or three steps if they take longer together."""

Tried: TypeAlias = Literal["32-true", "bf16-mixed"]
FLOAT32: Tried = "32-true"
HALF: Tried = "bf16-mixed"
TRIED: tuple[Tried, ...] = (FLOAT32, HALF)
"""Values that ``auto`` may become."""

_MARGIN = 1.05  # float32 is given up for no less


class ChosenPrecision(NamedTuple):
    """A precision, and why it is that."""

    precision: Tried
    why: str


def choose_precision(
    steps: Mapping[Tried, Callable[[], object]], *, seconds: float = SECONDS
) -> ChosenPrecision:
    """The faster of both precisions, by steps that are timed in turns.

    Args:
        steps: what is to be fast in each; may be called any number of times.
        seconds: for which each is tried.
    """
    best: dict[Tried, float] = dict.fromkeys(steps, float("inf"))
    for step in steps.values():  # caches, allocations
        step()
    spent, turns = 0.0, 0
    while spent < 2 * seconds or turns < 3:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            took = time.perf_counter() - start
            best[name], spent = min(best[name], took), spent + took
        turns += 1
        if spent > 20 * seconds:
            break
    pays = best[HALF] * _MARGIN < best[FLOAT32]
    rates = " and ".join(f"{1 / took:.3g} with {name}" for name, took in best.items())
    return ChosenPrecision(HALF if pays else FLOAT32, f"{rates} in steps/s")


def trial_of_precision(module: "TrainingModule", batch: Batch, device: str) -> ChosenPrecision:
    """`choose_precision` for the gradients of a batch, which a copy of the module finds.

    The generator of random numbers is where it was afterwards.

    Args:
        module: what is to be trained, on a CPU.
        batch: an example.
        device: the type of that on which it will be trained; only a CPU is tried.
    """
    if device != "cpu":
        return ChosenPrecision(FLOAT32, "precisions are tried on a CPU only")
    step = gradients(module, batch)
    if isinstance(step, str):
        return ChosenPrecision(FLOAT32, step)

    def in_precision(name: Tried) -> Callable[[], None]:
        def call() -> None:
            around: AbstractContextManager[object] = nullcontext()
            if name == HALF:
                around = torch.autocast("cpu", torch.bfloat16)
            with around:
                step()

        return call

    with torch.random.fork_rng(devices=[]):
        steps = {name: in_precision(name) for name in TRIED}
        return choose_precision(steps, seconds=SECONDS)

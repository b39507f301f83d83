"""Public calls with one argument at a time at its edges, or of another type than it should be."""

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from fuzzing import quick_and_small
from torch import Tensor
from torch.utils._pytree import tree_leaves

from linrnn.errors import LinrnnError, show


class Odd:
    """An object of no type that anything takes."""

    def __repr__(self) -> str:
        return "Odd()"


NUMBERS = (0, 1, -1, 3, 2**31, 2**63, 10**30, 10**400, True)
REALS = (0.0, -0.0, 1.5, -2.5, 1e300, 1e-320, math.nan, math.inf, -math.inf, 1j)
OTHERS = (None, "", "x", b"x", "\x1b[31m", (), [], {}, [None], [[]], {"x": 1}, Odd(), Odd, len)
OTHERS += ([1, [2]], ["a"], {1, 2}, range(3))
ARRAYS = (
    *(np.int64(3), np.float32(0.5), np.array(2), np.array([]), np.zeros(3), np.ones((2, 2))),
    *(np.array(["a"]), np.array([None]), np.array("2020-01-01", "datetime64[D]")),
    np.ma.masked_array([1.0, 2.0], [0, 1]),
)


def tensors() -> list[Tensor]:
    """Tensors of every kind, new for each call."""
    made = [torch.tensor(3), torch.tensor([0.5, 0.25]), torch.zeros(0), torch.zeros(2, 0)]
    made += [torch.zeros(3, 2), torch.ones(1, 1, 1, 1), torch.tensor(math.nan), torch.zeros(2) + 1j]
    made += [torch.tensor([True, False]), torch.tensor([1, 2]), torch.full((2,), 1e30)]
    made += [torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta")]
    made += [torch.zeros(2, 2).to_sparse(), torch.zeros(2, dtype=torch.float16)]
    return [
        *made,
        torch.tensor([2**62]),
        torch.quantize_per_tensor(torch.zeros(2), 1, 0, torch.qint8),
    ]


def values() -> Iterator[Any]:
    """Whatever somebody may write in the place of an argument."""
    yield from NUMBERS
    yield from REALS
    yield from OTHERS
    yield from ARRAYS
    yield from tensors()


def finite(value: Any) -> bool:
    """Whether all numbers in a tree are."""
    leaves = tree_leaves(value)
    tensors_of = (x for x in leaves if isinstance(x, Tensor) and has_numbers(x))
    numbers = (x for x in leaves if isinstance(x, (float, np.floating)))
    return all(map(math.isfinite, numbers)) and all(bool(x.isfinite().all()) for x in tensors_of)


def has_numbers(x: Tensor) -> bool:
    """Whether a tensor has numbers that can be asked whether they are finite."""
    return not (x.is_meta or x.is_quantized) and x.layout is torch.strided


def try_call(call: Callable[[], Any], said: str) -> bool:
    """Whether a call answers; else it raised an error of ours of one line.

    Args:
        call: returns an answer, or an iterator, of which the first few are taken.
        said: what it is, for the message.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer = call()
            if isinstance(answer, Iterator):
                answer = list(itertools.islice(answer, 3))
        except LinrnnError as error:
            text = str(error)
            assert text, said
            assert "\n" not in text, said
            assert len(text) < 2000, said
            return False
        except Exception as error:
            raise AssertionError(f"{said}: {type(error).__name__}: {error}"[:500]) from error
    assert finite(answer), f"{said}: an answer that is not finite"
    return True


def try_argument(
    call: Callable[[Any], Any],
    name: str,
    *,
    seconds: float = 5.0,
    without: Callable[[Any], bool] = lambda value: False,
    among: Callable[[], Iterator[Any]] = values,
) -> None:
    """Try every value in the place of one argument; all that go wrong are said together.

    Args:
        call: takes a value.
        name: of the argument, for the message.
        seconds: of the processor that a value may take.
        without: says which values are not tried.
        among: gives the values.
    """
    wrong = []
    with quick_and_small(seconds=60):
        for value in itertools.filterfalse(without, among()):
            said, start = f"{name}={show(value, 60)}", time.process_time()
            try:
                try_call(lambda value=value: call(value), said)
            except AssertionError as error:
                wrong.append(str(error))
            if (took := time.process_time() - start) > seconds:
                wrong.append(f"{said}: took {took:.1f} s")
    assert not wrong, f"{len(wrong)} values: " + "\n".join(wrong)

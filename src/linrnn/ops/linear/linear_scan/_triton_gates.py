"""The gates of a gated recurrence as Triton functions: decay and input exist in registers alone.

``GATES`` is 0 where there are none, 1 for two parts (a, z), 2 for three (a, u, w) whose gates sum
to one, 3 for three.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-any-return"
# no_type_check keeps the shape checker from wrapping kernels: Triton compiles what the source says

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _log_sigmoid(x):
    return tl.minimum(x, 0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
@no_type_check
def _shares(first, second, GATES: tl.constexpr):
    """Share of the old state that stays, and share of the value that is added."""
    if GATES == 3:
        keep, take = tl.sigmoid(first), tl.sigmoid(second)
    else:
        logit = first
        if GATES == 2:  # of their ratio, so both may underflow
            logit = _log_sigmoid(second) - _log_sigmoid(first)
        keep, take = tl.sigmoid(-logit), tl.sigmoid(logit)
    return keep, take


@triton.jit
@no_type_check
def _value(a, POSITIVE: tl.constexpr):
    if POSITIVE:
        a = tl.where(a >= 0, a + 0.5, tl.sigmoid(a))
    return a


@triton.jit
@no_type_check
def gated(a, u, w, GATES: tl.constexpr, POSITIVE: tl.constexpr):
    """Decay and input of a step, from its value and the logits of its gates."""
    keep, take = _shares(u, w, GATES)
    return keep, take * _value(a, POSITIVE)


@triton.jit
@no_type_check
def put_gated(
    p, channels, delta, before, a, u, w, inside, GATES: tl.constexpr, POSITIVE: tl.constexpr
):
    """Store what a step's cotangent is to its value and logits; the decay of that cotangent."""
    keep, take = _shares(u, w, GATES)
    value = _value(a, POSITIVE)
    to_a = delta * take
    if POSITIVE:
        to_a = tl.where(a >= 0, to_a, to_a * value * (1 - value))
    tl.store(p, to_a, mask=inside)
    if GATES == 3:
        tl.store(p + channels, delta * before * keep * (1 - keep), mask=inside)
        tl.store(p + 2 * channels, delta * value * take * (1 - take), mask=inside)
    else:
        to_logit = delta * (value - before) * keep * take
        if GATES == 1:
            tl.store(p + channels, to_logit, mask=inside)
        else:
            tl.store(p + channels, -to_logit * tl.sigmoid(-u), mask=inside)
            tl.store(p + 2 * channels, to_logit * tl.sigmoid(-w), mask=inside)
    return keep

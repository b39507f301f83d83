"""Named axes and array types used in every public signature.

Axis legend (the letters in comments, the words in annotations):

====== ============ =====================================================
letter word         meaning
====== ============ =====================================================
B      ``batch``    independent sequences
T      ``time``     steps; always the axis after ``batch``
D      ``d_model``  width of the residual stream, a mixer's input and output
N      ``d_state``  size of the recurrent state
C      ``channels`` any channel axes of a diagonal scan
S      ``seqs``     sequences: ``batch``, or the number packed into one row
====== ============ =====================================================
"""

from collections import abc
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Complex, Float, Inexact, Integer
from torch import Tensor

# not recursive: the shape checker of the test run cannot resolve an alias inside itself
State: TypeAlias = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]
"""A plain tree of tensors whose leading axis is ``batch``; see `linrnn.state` for tree helpers."""

Sequence: TypeAlias = Float[Tensor, "batch time d_model"]
"""Input and output of a mixer."""

Token: TypeAlias = Float[Tensor, "batch d_model"]
"""One time step of a `Sequence`."""

Signals: TypeAlias = abc.Mapping[str, Tensor]
"""Tensors that layers of a stack pass on, by name; see `linrnn.mixers.Mixer.signal_spec`."""

Read: TypeAlias = Float[Tensor, "batch time d_output"]
"""Output of a mixer: as wide as its input, unless its last map was removed, as by `RNN`."""

ReadToken: TypeAlias = Float[Tensor, "batch d_output"]
"""One time step of what is `Read`."""

ResetMask: TypeAlias = Bool[Tensor, "batch time"]
"""True where the state is cleared before that step."""

Times: TypeAlias = Float[Tensor, "batch time"]
"""Time since the step before, of every step."""

Time: TypeAlias = Float[Tensor, " batch"]
"""One time step of `Times`."""

_Rows = "batch *documents"
Lengths: TypeAlias = Integer[Tensor, _Rows] | Integer[np.ndarray, _Rows] | abc.Sequence[Any]
"""Valid steps of each row of a padded batch: a tensor, an array or a list of integers."""

CuSeqlens: TypeAlias = Integer[Tensor, " seqs_plus_1"]
"""Offsets of packed sequences: ``[0, len_0, len_0 + len_1, ...]``."""

__all__ = [
    "Bool",
    "Complex",
    "CuSeqlens",
    "Float",
    "Inexact",
    "Integer",
    "Lengths",
    "ResetMask",
    "Sequence",
    "Signals",
    "State",
    "Tensor",
    "Time",
    "Times",
    "Token",
]


def __dir__() -> list[str]:
    return sorted(__all__)

"""Recurrence made of segments: a memory is written when a segment ends, and read in the next."""

from linrnn.ops.attention.segments import RULES as RULES
from linrnn.ops.attention.segments import Age as Age
from linrnn.ops.attention.segments import Rule as Rule
from linrnn.ops.attention.segments import Tensors as Tensors
from linrnn.ops.attention.segments import read_segments as read_segments
from linrnn.ops.attention.segments import seen as seen

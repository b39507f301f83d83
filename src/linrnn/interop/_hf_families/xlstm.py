"""See `linrnn.interop._hf_xlstm`."""

from linrnn.interop._hf_family import Converters
from linrnn.interop._hf_xlstm import from_xlstm, to_xlstm

FAMILY = Converters(from_xlstm, to_xlstm)

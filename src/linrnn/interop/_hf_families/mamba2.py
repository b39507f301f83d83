"""See `linrnn.interop._hf_mamba2`."""

from linrnn.interop._hf_family import Converters
from linrnn.interop._hf_mamba2 import from_mamba2, to_mamba2

FAMILY = Converters(from_mamba2, to_mamba2)

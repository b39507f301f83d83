"""See `linrnn.interop._hf_mamba`."""

from linrnn.interop._hf_family import Converters
from linrnn.interop._hf_mamba import from_mamba, to_mamba

FAMILY = Converters(from_mamba, to_mamba)

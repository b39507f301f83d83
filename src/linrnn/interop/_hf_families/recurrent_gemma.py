"""See `linrnn.interop._hf_recurrent_gemma`."""

from linrnn.interop._hf_family import Converters
from linrnn.interop._hf_recurrent_gemma import from_recurrent_gemma, to_recurrent_gemma

FAMILY = Converters(from_recurrent_gemma, to_recurrent_gemma)

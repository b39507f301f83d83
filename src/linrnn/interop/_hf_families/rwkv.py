"""RWKV-4: see `linrnn.interop._hf_rwkv`."""

from linrnn.interop._hf_family import Converters
from linrnn.interop._hf_rwkv import from_rwkv
from linrnn.interop._hf_rwkv4 import to_rwkv

FAMILY = Converters(from_rwkv, to_rwkv)

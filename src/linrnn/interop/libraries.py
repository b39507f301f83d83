"""Other libraries' functions by their own names, computed here for tensors on a CPU."""

from linrnn.interop._libraries import Acceleration as Acceleration
from linrnn.interop._libraries import accelerate_library as accelerate_library

__all__ = ["Acceleration", "accelerate_library"]

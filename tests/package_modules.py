"""Every module of the package that this environment can import."""

import pkgutil
from importlib.util import find_spec

import linrnn

# GPU kernels are compiled by a package that not every system has
_ABSENT = (
    ()
    if find_spec("triton")
    else ("_triton_kernels", "_triton_functions", "triton_walk", "_triton_gates")
)
_HF = () if find_spec("transformers") else ("linrnn.interop.hf", "linrnn.interop._hf")
_SB3 = () if find_spec("sb3_contrib") else ("linrnn.interop.sb3",)
_TORCHRL = () if find_spec("torchrl") else ("linrnn.interop.torchrl",)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(linrnn.__path__, "linrnn.")
    if not module.name.endswith("__main__")
    and not module.name.endswith(_ABSENT)
    and not module.name.startswith(_HF + _SB3 + _TORCHRL)
)

"""Every module of the package that this environment can import."""

import pkgutil
from importlib.util import find_spec

import linrnn

# GPU kernels are compiled by a package that not every system has
_ABSENT = set() if find_spec("triton") else {"linrnn.ops.linear_scan._triton_kernels"}
_HF = () if find_spec("transformers") else ("linrnn.interop.hf", "linrnn.interop._hf")
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(linrnn.__path__, "linrnn.")
    if not module.name.endswith("__main__")
    and module.name not in _ABSENT
    and not module.name.startswith(_HF)
)

"""Every module of the package that this environment can import."""

import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import linrnn

# GPU kernels are compiled by a package that not every system has
_NO_TRITON = find_spec("triton") is None
_HF = () if find_spec("transformers") else ("linrnn.interop.hf", "linrnn.interop._hf")
_SB3 = () if find_spec("sb3_contrib") else ("linrnn.interop.sb3",)
_TORCHRL = () if find_spec("torchrl") else ("linrnn.interop.torchrl",)


def _has_kernels(module: pkgutil.ModuleInfo) -> bool:
    """Whether it imports Triton as it is imported itself."""
    spec = module.module_finder.find_spec(module.name, None)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    return re.search(r"^import triton", source, re.MULTILINE) is not None


MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(linrnn.__path__, "linrnn.")
    if not module.name.endswith("__main__")
    and not (_NO_TRITON and _has_kernels(module))
    and not module.name.startswith(_HF + _SB3 + _TORCHRL)
)

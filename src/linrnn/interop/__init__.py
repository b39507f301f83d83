"""Models in other people's formats; each module needs the package it speaks to.

`accelerate` runs the recurrent layers of other people's ``transformers`` models through this
library's ops.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from linrnn.interop._accelerate.report import Acceleration

__all__ = ["accelerate", "accelerate_report"]
_SUBMODULES = ("fla", "hf", "onnx", "sb3", "torchrl")


def __getattr__(name: str) -> Any:
    # absent from `dir`, since what inspects every name would need every package
    if name in _SUBMODULES:
        return importlib.import_module(f"linrnn.interop.{name}")
    raise AttributeError(f"module 'linrnn.interop' has no attribute {name!r}")


def accelerate(model: "nn.Module | str | None" = None) -> "Acceleration":
    """Run the recurrent layers of a model of ``transformers`` through linrnn's ops, on a CPU.

    Or the functions of another library under their own names: after ``accelerate("fla")``,
    ``fla.ops.gla.chunk_gla(q, k, v, g)`` computes on a CPU, where it could not.

    Weights, names, outputs and caches stay as they are; convolutions, scans and delta rules are
    computed by other functions. While a model generates, a recurrent layer reads a token in one
    native call, recorded from its own operators. Nothing outside of the model changes: another
    model of the same family computes what it did. Tensors elsewhere than on a CPU, and
    ``torch.export``, get the functions of ``transformers``, as does whatever is not faster here.

    Args:
        model: a model, or any module with one inside. None is every model of the process, those
            to come too, as ``LINRNN_ACCELERATE=1`` in the environment of a program that imports
            linrnn. Or a library, "fla", "mamba_ssm" or "causal_conv1d": its functions are replaced
            in every module that was imported.

    Returns:
        What was replaced. It is a context manager, and has ``detach()``, after which nothing is
        left of it. Printed, it is a table. A model that is attached already stays so.

    Raises:
        ArgumentError: ``model`` is no `torch.nn.Module`.
        UnknownNameError: another library.
        BackendError: the library cannot be imported.

    A copy by `copy.deepcopy` is attached as well. A pickled model is the plain one when it comes
    back. Methods are bound to a snapshot of their module's globals: what another library patches
    there later does not reach them.

    Example:
        >>> from transformers import Mamba2Config, Mamba2ForCausalLM
        >>> sizes = {"hidden_size": 8, "num_heads": 2, "head_dim": 8, "state_size": 4}
        >>> config = Mamba2Config(num_hidden_layers=1, n_groups=1, **sizes)
        >>> model = Mamba2ForCausalLM(config)
        >>> with accelerate(model) as report:
        ...     sorted({row.op for row in report.replaced})
        ['causal_conv', 'conv_update', 'outer_scan', 'outer_update']
    """
    if model is None:
        from linrnn.interop._accelerate import process

        return process.accelerate()
    if isinstance(model, str):
        from linrnn.interop._libraries import accelerate_library

        return accelerate_library(model)
    from linrnn.interop._accelerate import model as one

    return one.accelerate(model)


def accelerate_report() -> str:
    """Whether every model of the process is accelerated, and what would be; for `linrnn doctor`.

    Example:
        >>> accelerate_report().startswith("off; ")
        True
    """
    import importlib.metadata

    from linrnn.interop._accelerate.process import VARIABLE, attached
    from linrnn.interop._accelerate.table import FAMILIES

    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "there is no transformers here, so nothing to accelerate"
    state = "on for the process" if attached() else "off"
    how = f"linrnn.interop.accelerate(model), or {VARIABLE}=1 for all"
    return f"{state}; {how}: {len(FAMILIES)} families of transformers {version} by linrnn's ops"


def __dir__() -> list[str]:
    return sorted(__all__)

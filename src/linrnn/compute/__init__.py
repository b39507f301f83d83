"""Machinery shared by all ops: arguments, layout, precision, modes around a call, kernels.

Each module says one thing that every recurrence and every layer has to know. `linrnn.compute.op`
makes an operator of PyTorch of a description; `linrnn.compute.backend` chooses who computes it.
"""

from linrnn._options.catalogue import stems

__all__: list[str] = []  # modules are imported one by one


def __dir__() -> list[str]:
    return stems(__name__)

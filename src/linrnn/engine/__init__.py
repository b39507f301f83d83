"""One step of a recurrence: read once, kept as a graph, derived, and run by machines.

`linrnn.cells` is the part of it that people write cells with.
"""

from linrnn._options.catalogue import stems

__all__: list[str] = []  # modules are imported one by one


def __dir__() -> list[str]:
    return stems(__name__)

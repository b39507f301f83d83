"""The state of a mixer from step to step, tensor by tensor."""

from collections.abc import Iterator

from _pages import measures
from linrnn.state_spec import Part, Spec


def of_state(name: str) -> dict[str, Part]:
    """Every tensor of a mixer's state by its path, and the only one of a state without names."""
    return dict(_leaves(measures.built(name).state_spec(), ""))


def shape(part: Part) -> str:
    """The axes of a tensor with their sizes, as words."""
    sizes = (f"{axis} {'(grows)' if n is None else n}" for axis, n in part.axes.items())
    return " × ".join(sizes) or "one number"


def _leaves(spec: Spec, path: str) -> Iterator[tuple[str, Part]]:
    if isinstance(spec, Part):
        yield path or "state", spec
        return
    for key, inside in spec.items() if isinstance(spec, dict) else enumerate(spec):
        yield from _leaves(inside, f"{path}.{key}".lstrip("."))

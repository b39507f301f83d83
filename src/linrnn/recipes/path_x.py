"""An LRU on Path-X."""

from linrnn.recipes import _lru
from linrnn.recipes._base import Recipe


def paper() -> Recipe:
    """Six LRU layers on the task `path_x`, as in the paper's Table 9."""
    return _lru.paper(
        "path_x",
        departures=(
            "Each direction has parameters of its own. The paper leaves out the linear layer "
            "of the GLU on this task; ours keeps it."
        ),
    )

"""Path-X of Long Range Arena: Pathfinder with 16,384 steps."""

from dataclasses import dataclass
from typing import ClassVar

from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.long_range import long_range
from linrnn.tasks._kinds.pathfinder import PathfinderOptions, PathfinderTask, Size

_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table 8"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


@dataclass(frozen=True, kw_only=True)
class PathXOptions(PathfinderOptions):
    """Options of the task `path_x`."""

    size: Size = 128
    """Pixels of a side; a sequence has as many steps as the image has pixels."""


class PathX(PathfinderTask):
    """The task `pathfinder` with images of 128x128 pixels: 16,384 steps.

    A model must keep apart 28 strokes over thousands of steps, and many never leave chance. What
    is known to be needed is a long memory from the start: steps from 0.0001 up for S4, for the LRU
    radii from 0.999 and phases up to a tenth of pi (Orvieto et al. 2023, arXiv:2303.06349).

    Args:
        options: `PathXOptions`.

    Raises:
        ArgumentError: as for `linrnn.tasks.pathfinder.Pathfinder`.
        UnknownNameError: no such contrast.
    """

    Options: ClassVar[type] = PathXOptions
    summary: ClassVar[str] = "are two marked ends joined by a dashed path? 128x128 pixels (Path-X)"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="LRU", value=0.942, source=_LRU),
        Published(model="S4, first release", value=0.8810, source=_S4),
        Published(model="S4-LegS, updated", value=0.9635, source=_S4),
        Published(model="S4D-LegS", value=0.9195, source=_S4D),
        Published(model="S5", value=0.9858, source=_S5),
        *long_range(dss=0.85, liquid_s4=0.9666, sgconv=0.9783, mega=0.9798),
    )

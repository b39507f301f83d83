"""Pathfinder of Long Range Arena: whether a dashed path joins two marked ends."""

from typing import ClassVar

from linrnn.tasks._kinds.base import Published
from linrnn.tasks._kinds.long_range import long_range
from linrnn.tasks._kinds.pathfinder import PathfinderOptions, PathfinderTask

_LRA = "Tay et al. 2021, arXiv:2011.04006, Table 1, as its public code"
_LRU = "Orvieto et al. 2023, arXiv:2303.06349, Table {}"
_S4 = "Gu, Goel and Re 2022, arXiv:2111.00396"
_S4D = "public code of Gu et al. 2022, arXiv:2206.11893"
_S5 = "Smith, Warrington and Linderman 2023, arXiv:2208.04933"


class Pathfinder(PathfinderTask):
    """Two long dashed paths, some short ones, and two marked ends, of one path or of both.

    An image is read pixel by pixel, row by row: 32x32 of them are 1,024 steps, 128x128 the task
    `path_x`. Pixels are divided by 255, less 0.5, over 0.5. Half of the images are connected; what
    tells them apart is nowhere in particular, so each step alone says nothing.

    A path grows from a stroke in the middle of the image, two paths in turn. The next of its 14
    strokes begins a gap behind the last one and leads to a pixel on a circle, drawn by the square
    of the cosine of the angle it turns by and by how free the place is; where a stroke would lie on
    what is there, the image is begun anew. Short paths of 4 strokes come where there is room.
    Strokes and discs are drawn twice as large and reduced with a Lanczos filter.

    Rules and numbers are those of the generator by Linsley, Kim and others (2018, its public
    code) with Long Range Arena's settings (Tay et al. 2021, arXiv:2011.04006, its public code),
    written anew: the images are others than in the files. Images of 32x32 have two short paths, not
    the five of the settings: with two, their mean and spread are those of the released images,
    with five, a quarter more is lit. Wider strokes are filled in by their distance from a line, and
    a short path is looked for at 64 places instead of all.

    Images are drawn when they are first needed and kept below `LINRNN_DATA` or
    ``~/.cache/linrnn``: a byte a pixel, 205 MB for all of 32x32, 3.3 GB for 128x128. With the
    option `data` the released images are read instead, the level of the longest paths, split at
    random into 80, 10 and 10 %; the sizes of the splits are then not used.

    Args:
        options: `linrnn.tasks._kinds.pathfinder.PathfinderOptions`.

    Raises:
        ArgumentError: a size that is none of 32, 64, 128, 256; a split's size below 1; a
            negative data_seed.
        UnknownNameError: no such contrast.
    """

    Options: ClassVar[type] = PathfinderOptions
    summary: ClassVar[str] = "are two marked ends joined by a dashed path? 32x32 pixels, 2 classes"
    published: ClassVar[tuple[Published, ...]] = (
        Published(model="Transformer", value=0.7140, source=_LRA),
        Published(model="Linear Transformer", value=0.7530, source=_LRA),
        Published(model="Performer", value=0.7705, source=_LRA),
        Published(model="LRU", value=0.951, source=_LRU.format(8)),
        Published(model="S4, first release", value=0.8605, source=_S4),
        Published(model="S4-LegS, updated", value=0.9420, source=_S4),
        Published(model="S4D-LegS", value=0.9306, source=_S4D),
        Published(model="S4D-Lin", value=0.9396, source=_S4D),
        Published(model="S5", value=0.9533, source=_S5),
        *long_range(dss=0.846, liquid_s4=0.948, sgconv=0.9546, mega=0.9601),
    )

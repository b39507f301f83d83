"""Widths at which different mixers have the same number of parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from linrnn.backbone import SequenceModel
from linrnn.compare._runs import Entry
from linrnn.errors import ArgumentError
from linrnn.tasks import Task
from linrnn.train import Config
from linrnn.train.model import build_model, build_task, sizes
from linrnn.train.suits import check_data, one_step

#: Parameter counts may differ by this part.
TOLERANCE = 0.03
_WIDEST = 4096
_NEARBY = 16  # widths tried on either side, for mixers that want multiples of something


def count_parameters(config: Config) -> int:
    """Real parameters of the model a configuration describes."""
    return sizes(outline(config, build_task(config)))[0]


def outline(config: Config, task: Task) -> SequenceModel:
    """The model a configuration describes, without weights where that can be."""
    try:
        return build_model(config, task, device="meta")
    except RuntimeError:  # a layer of someone else, which looks at the numbers that it draws
        return build_model(config, task)


def check_suits(entries: Sequence[Entry]) -> Task:
    """Raise unless each entry's model can read its data, before the first of them is trained.

    Models are built, and data read, for tasks that may ask for something alone.

    Returns:
        The task of the first entry.

    Raises:
        ArgumentError: as `linrnn.train.suits.check_data`.
    """
    tasks: list[tuple[Any, Task]] = []
    for config in (entry.config for entry in entries):
        matching = [pair for pair in tasks if pair[0] == config.task_options]
        if not matching:
            matching = [(config.task_options, build_task(config))]
            tasks += matching
        task = matching[0][1]
        if task.time_unit is not None or one_step(config, task):
            check_data(config, task, outline(config, task), task.datasets())
    return tasks[0][1]


def match_parameters(config: Config, target: int) -> Config:
    """The configuration with the width ``d_model`` that comes nearest to ``target`` parameters.

    Args:
        config: of the model to widen or narrow; its ``d_model`` does not matter.
        target: number of parameters to reach.

    Raises:
        ArgumentError: no width comes within 3 %; the message has the nearest.

    Example:
        >>> from linrnn import recipes
        >>> config = match_parameters(recipes.load("digits").config, 20_000)
        >>> abs(count_parameters(config) - 20_000) <= 600
        True
    """
    counts: dict[int, int] = {}

    def count(width: int) -> int | None:
        """Parameters at a width, None where the mixer does not take it."""
        if width not in counts:
            try:
                counts[width] = count_parameters(_widened(config, width))
            except ArgumentError:
                return None
        return counts[width]

    for width in _around(_crossing(count, target)):
        count(width)
    if not counts:
        raise ArgumentError(f"compare: the mixer {config.mixer!r} takes none of the widths tried.")
    best = min(counts, key=lambda width: abs(counts[width] - target))
    if abs(counts[best] - target) > TOLERANCE * target:
        raise ArgumentError(
            f"compare: the mixer {config.mixer!r} must reach {target:,} parameters within "
            f"{TOLERANCE:.0%}, got {counts[best]:,} at d_model {best}. "
            "Choose a larger width, where one more channel matters less."
        )
    return _widened(config, best)


def _widened(config: Config, width: int) -> Config:
    return replace(config, model=replace(config.model, d_model=width))


def _crossing(count: object, target: int) -> int:
    """A width near which the count passes the target: bisection, since wider is never smaller."""
    low, high = 1, _WIDEST
    while high - low > 1:
        middle = (low + high) // 2
        n_parameters = _nearest_valid(count, middle)
        if n_parameters is None or n_parameters < target:
            low = middle
        else:
            high = middle
    return high


def _nearest_valid(count: object, width: int) -> int | None:
    for candidate in _around(width):
        n_parameters: int | None = count(candidate)  # type: ignore[operator]
        if n_parameters is not None:
            return n_parameters
    return None


def _around(width: int) -> Iterator[int]:
    yield width
    for step in range(1, _NEARBY + 1):
        yield from (w for w in (width - step, width + step) if w >= 1)

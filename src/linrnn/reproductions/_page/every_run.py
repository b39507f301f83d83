"""Every run of a page by itself: what its means and verdicts were made of."""

from collections.abc import Mapping
from pathlib import Path

from linrnn.reproductions._page.base import Table
from linrnn.reproductions._runs.trained import RUNS
from linrnn.train import Result
from linrnn.train.config import Config
from linrnn.train.folder import RunFolder

_FIGURES = 8  # of a number: about what single precision has
_HEAD = (
    "run",
    "mixer",
    "seed",
    "lr",
    "parameters",
    "steps",
    "metric",
    "validation",
    "test",
    "test loss",
    "seconds",
)


def finished(out: Path) -> dict[Path, Result]:
    """Results of the runs below a page that finished, by their folder."""
    folders = sorted(path.parent for path in out.glob(f"{RUNS}/**/result.json"))
    results = ((folder, RunFolder(folder).read_result()) for folder in folders)
    return {folder: result for folder, result in results if result is not None}


def every_run(runs: Mapping[Path, Result], out: Path) -> Table:
    """A row for each of the finished runs below a page, those of tuning among them.

    ``validation`` is the best one, of the weights that were tested; ``metric`` names what it and
    ``test`` are.
    """
    rows = [
        _row(folder.relative_to(out / RUNS).as_posix(), RunFolder(folder).load_config(), result)
        for folder, result in runs.items()
    ]
    return Table("Every run", _HEAD, rows)


def _row(name: str, config: Config, result: Result) -> list[str]:
    sizes = [str(result.n_parameters), str(result.steps)]
    numbers = (result.validation_metric, result.test_metric, result.test_loss)
    measured = [f"{number:.{_FIGURES}g}" for number in numbers]
    settings = [name, result.mixer, str(config.seed), f"{config.optim.lr:g}"]
    return [*settings, *sizes, result.metric, *measured, f"{result.seconds:.1f}"]

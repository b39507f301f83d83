"""Run folders of models whose read-out was solved for: written, tested, and finished."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from linrnn._files.reading import reading
from linrnn.backbone import Model
from linrnn.errors import RunFolderError
from linrnn.frozen import LinearModel
from linrnn.tasks import Task
from linrnn.train._report import Plan, Reporter, Result, Silent
from linrnn.train.checkpoint import load_tensors, save_tensors, write_atomically
from linrnn.train.config import BANK, LINEAR, Config
from linrnn.train.context import Trained, open_run
from linrnn.train.data import size_of
from linrnn.train.evaluation import score
from linrnn.train.folder import RunFolder
from linrnn.train.model import sizes

_CHOSEN = "validation_metric"
_SECONDS = "seconds"


class Solved(NamedTuple):
    """A model, and what its fit was like."""

    model: Model
    validation_metric: float
    seconds: float


def write_run(
    config: Config,
    task: Task,
    solved: Solved,
    *,
    contest: str = "",
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Write a run folder around a model of `linrnn.frozen`, test it and plot its answers.

    Args:
        config: of the run; its mixer becomes "bank" or "linear".
        task: of the configuration.
        solved: the model.
        contest: the text of ``contest.csv``, where there was one.
        out: the folder, which must be new or empty; None takes the next free one.
        reporter: told what happens.

    Raises:
        RunFolderError, StorageError: as `RunFolder.create`.
    """
    mixer = LINEAR if isinstance(solved.model, LinearModel) else BANK
    config = replace(config, mixer=mixer, mixer_options={})
    numbers = {_CHOSEN: solved.validation_metric, _SECONDS: solved.seconds}

    def fill(folder: RunFolder) -> None:
        texts = {name: repr(float(value)) for name, value in numbers.items()}
        save_tensors(solved.model.state_dict(), folder.model, texts, inside=folder.path)
        if contest:
            write_atomically(folder.contest, contest.encode(), inside=folder.path)

    folder = RunFolder.create(out, config, task.run_files(), fill)
    return finish(folder, reporter)


def finish(folder: RunFolder, reporter: Reporter | None = None) -> Result:
    """Test a model of `linrnn.frozen` that a run folder holds, and record the end of the run.

    Raises:
        RunFolderError: the folder cannot be used.
        DataError: the data are missing or others.
    """
    from linrnn.train._answer_plots import draw_confusion, draw_forecasts
    from linrnn.train.figures import save

    run = open_run(folder.path)
    texts = load_tensors(folder.weights(), inside=folder.path)[1]
    with reading(folder.model, RunFolderError, "say how it was chosen", "Restore it from a copy."):
        chosen, seconds = float(texts[_CHOSEN]), float(texts[_SECONDS])
    splits = run.task.datasets()
    with folder.locked():
        folder.remove_leftovers()
        folder.write_environment(_plan(run, *map(size_of, splits, splits._fields)))
        (reporter or Silent()).trained()
        tested = score(run, splits.test)
        for draw, path in ((draw_confusion, folder.confusion), (draw_forecasts, folder.forecasts)):
            figure = draw(run.task, run.model, splits.test)
            if figure is not None:
                save(figure, path)
        n_parameters, n_state = sizes(run.model)
        result = Result(
            task=run.config.task,
            mixer=run.config.mixer,
            metric=run.task.metric,
            test_metric=tested.metric,
            test_loss=tested.loss,
            validation_metric=chosen,
            best_step=0,
            steps=0,
            n_parameters=n_parameters,
            n_state=n_state,
            seconds=seconds,
            folder=folder.path,
        )
        folder.write_result(result)
    return result


def write_contest(folder: Path, contest: str) -> None:
    """Put the table of a contest beside a mixer that won it."""
    path = RunFolder(folder).contest
    if not os.path.lexists(path):
        write_atomically(path, contest.encode(), inside=folder)


def _plan(run: Trained, n_train: int, n_validation: int, n_test: int) -> Plan:
    n_parameters, n_state = sizes(run.model)
    return Plan(
        task=run.config.task,
        mixer=run.config.mixer,
        metric=run.task.metric,
        epochs=0,
        steps_per_epoch=0,
        start_step=0,
        n_train=n_train,
        n_validation=n_validation,
        n_test=n_test,
        n_parameters=n_parameters,
        n_state=n_state,
        seed=run.config.seed,
        device="cpu",
        threads=torch.get_num_threads(),
        folder=run.folder.path,
    )

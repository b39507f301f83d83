"""Train: from a configuration, or from where a run was interrupted, to a finished run folder."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from linrnn import learn
from linrnn._files.storage import DENIED, FULL, cannot_write
from linrnn._process.signals import NoStopRequest, StopRequest
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, MissingExtraError, RunFolderError, StorageError
from linrnn.learn import Batch, Learner
from linrnn.tasks import Splits, Task
from linrnn.train._recover import BEGINNING, usable_checkpoint
from linrnn.train._report import Reporter, Result, Silent
from linrnn.train._restored import progress
from linrnn.train._together import Group
from linrnn.train.checkpoint import load_tensors
from linrnn.train.closed import finish
from linrnn.train.config import CLOSED, Config, OnNan
from linrnn.train.context import Run
from linrnn.train.data import check_memory, check_order, train_loader, unpack
from linrnn.train.evaluation import score
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import MetricsLog, NoRecords, read_metrics, restore_metrics
from linrnn.train.model import build_model, build_stored, build_task, restore
from linrnn.train.precision import trial_of_precision
from linrnn.train.processes import processes
from linrnn.train.seeding import process_settings
from linrnn.train.suits import check_data
from linrnn.train.threads import trial_of_training

if TYPE_CHECKING:
    from linrnn.train._module import TrainingModule


def run(
    config: Config, *, out: Path | str | None = None, reporter: Reporter | None = None
) -> Result:
    """Train, test and plot; everything lands in a new run folder.

    Args:
        config: what to train; `linrnn.recipes` has complete ones.
        out: the run folder, which must be new or empty; None takes the next free
            ``runs/<task>-<mixer>-<n>``.
        reporter: told what happens; None keeps silent.

    Returns:
        The test metric and what it took.

    Raises:
        LinrnnError: of the kind that says what is wrong: `ArgumentError`, `UnknownNameError`,
            `DataError`, `RunFolderError`, `NonFiniteError`, `InterruptedRunError`.

    Example:
        >>> from linrnn import recipes
        >>> result = run(recipes.load("digits").config)        # doctest: +SKIP
    """
    _require_lightning()
    reporter = reporter or Silent()
    _check_device(config)
    task = build_task(config)
    model = build_model(config, task)
    learner = _build_learner(config, model)
    check_order(config, task, model)
    splits = task.datasets()
    check_data(config, task, model, splits)
    config = _with_threads(config, model, task, learner, splits, reporter)
    config = _with_precision(config, model, task, learner, splits, reporter)
    folder = RunFolder.create(None if out is None else Path(out), config, task.run_files())
    run = Run(
        config=config,
        task=task,
        model=model,
        folder=folder,
        splits=splits,
        learner=learner,
        start=BEGINNING,
        reporter=reporter,
    )
    with folder.locked():
        return _train(run)


def resume(
    run: Path | str,
    *,
    reporter: Reporter | None = None,
    fallback: bool = False,
    on_nan: OnNan | None = None,
    devices: int | None = None,
) -> Result:
    """Continue an interrupted run to the weights it would have had without the interruption.

    The same bits come out on the same machine with the same packages. A run that is finished
    already is not touched; one that was killed before its first checkpoint begins again.

    Args:
        run: its folder.
        reporter: told what happens; None keeps silent.
        fallback: where the newest checkpoint is damaged, go on from the one before it, and put
            the damaged file aside under a name that ends in ``.damaged``.
        on_nan: from here on instead of ``train.on_nan``; None takes that of the run.
        devices: from here on instead of ``train.devices``, which gives the same bits only
            where it is the same; None takes that of the run.

    Returns:
        What `run` would have returned.

    Raises:
        RunFolderError: the folder or its newest checkpoint cannot be used.
        LinrnnError: as `run`.
    """
    _require_lightning()
    folder = RunFolder(Path(run))
    config = folder.load_config()
    finished = folder.read_result()
    if finished is not None:
        return finished
    if config.mixer in CLOSED:
        return finish(folder, reporter)
    _check_resumable(folder)
    if on_nan is not None:
        config = replace(config, train=replace(config.train, on_nan=on_nan))
    if devices is not None and devices != config.train.devices:
        # the number of threads was found for the other one
        config = replace(config, train=replace(config.train, devices=devices, threads=None))
    _check_device(config)
    reporter = reporter or Silent()
    with folder.locked():
        folder.remove_leftovers()
        start = usable_checkpoint(folder, reporter, fallback=fallback)
        with folder.suits():
            task = build_task(config, folder)
            begun = start.step > 0
            model = (
                build_stored(config, task, start.weights) if begun else build_model(config, task)
            )
            learner = _build_learner(config, model)
            check_order(config, task, model)
            splits = task.datasets()
        config = _with_threads(config, model, task, learner, splits, reporter)
        return _train(
            Run(
                config=config,
                task=task,
                model=model,
                folder=folder,
                splits=splits,
                learner=learner,
                start=start,
                reporter=reporter,
            )
        )


def _check_resumable(folder: RunFolder) -> None:
    """Raise `RunFolderError` for a folder by another command than ``linrnn train``."""
    if os.path.lexists(folder.distillation):
        raise RunFolderError(
            f"{folder.path}: a run must have checkpoints to continue from, got one that `linrnn "
            "distill` wrote. It is complete: train the original run, and distil that."
        )
    if os.path.lexists(folder.stream):
        raise RunFolderError(
            f"{folder.path}: a run must have checkpoints of a training to continue from, got those "
            "of a stream. Repeat the command that began it: linrnn stream RUN --learner NAME."
        )


def _train(run: Run) -> Result:
    plan, folder, start = run.plan, run.folder, run.start
    if start.step > plan.steps:
        raise RunFolderError(
            f"{folder.last}: the file must be a checkpoint of this run of {plan.steps} steps, got "
            f"one after step {start.step}. Restore it from a copy, or train again."
        )
    train = run.config.train
    rows = min(train.batch_size, plan.n_train)
    check_memory(run.model, run.task, rows, examples=plan.n_train)
    try:
        folder.write_environment(plan)
        run.reporter.started(plan)
        metrics = restore_metrics(folder, start.step, start.metrics, run.reporter)
        with process_settings(plan.threads):
            _fit(run, metrics)
            run.reporter.trained()
            result = _finish(run)
            folder.write_result(result)
    except OSError as error:
        if error.errno in (*FULL, *DENIED) or isinstance(error, StorageError):
            raise _cannot_go_on(folder, error) from error
        raise
    finally:
        run.reporter.closed()
    return result


def _cannot_go_on(folder: RunFolder, error: OSError) -> RunFolderError:
    """The error about a run that a disk ended."""
    what = str(error) if isinstance(error, StorageError) else str(cannot_write(folder.path, error))
    return RunFolderError(f"{what} Then continue with: linrnn train --resume {folder.path}")


def _fit(run: Run, metrics: str) -> None:
    """The steps that are left, given what ``metrics.csv`` holds."""
    plan = run.plan
    if plan.start_step >= plan.steps:
        return
    _notice_norms(run)
    log = MetricsLog(run.folder, plan.start_step, metrics)
    try:
        with StopRequest() as stop, processes(run) as group:
            steps(run, group, log, stop)
    finally:
        log.close()


def steps(
    run: Run, group: Group, records: MetricsLog | NoRecords, stop: StopRequest | NoStopRequest
) -> None:
    """The steps that are left, in one of the processes that train the run."""
    from linrnn.train._bookkeeping import Bookkeeping
    from linrnn.train._run_module import RunModule
    from linrnn.train.lightning import make_trainer, quiet

    module = RunModule(run, group)
    with quiet():
        trainer = make_trainer(run, module, Bookkeeping(run, records, stop, group))
        trainer.fit(module, ckpt_path=run.folder.last if run.start.step else None)


def _notice_norms(run: Run) -> None:
    """Say where several processes are not one: a batch norm's statistics are of a share."""
    norms = any(isinstance(part, nn.BatchNorm1d) for part in run.model.modules())
    if norms and run.config.train.devices > 1:
        run.reporter.noticed(
            "batch norm: each process has the statistics of its share of a batch, and the "
            "first one's are kept; --model.norm layer gives the numbers of one process"
        )


def _finish(run: Run) -> Result:
    """Test the best weights and draw the plots."""
    from linrnn.train._plots import draw_plots

    plan, folder = run.plan, run.folder
    restore(run.model, load_tensors(folder.weights(), inside=folder.path)[0], folder.model)
    run.model.eval()
    tested = score(run, run.splits.test, carry=run.config.train.carry_state)
    draw_plots(run)
    done, _, _ = progress(folder.last, inside=folder.path)
    return Result(
        task=plan.task,
        mixer=plan.mixer,
        metric=plan.metric,
        test_metric=tested.metric,
        test_loss=tested.loss,
        validation_metric=done.best["metric"],
        best_step=done.best["step"],
        steps=plan.steps,
        n_parameters=plan.n_parameters,
        n_state=plan.n_state,
        seconds=read_metrics(folder)[-1].seconds,
        folder=folder.path,
        skipped=done.not_finite["skipped"],
        rollbacks=done.not_finite["rollbacks"],
    )


def _build_learner(config: Config, model: SequenceModel) -> Learner:
    """The learner that the configuration names, for a model that suits it."""
    learner = learn.build(config.learner, config.learner_options)
    learner.check(model)
    return learner


def _with_threads(
    config: Config,
    model: SequenceModel,
    task: Task,
    learner: Learner,
    splits: Splits,
    reporter: Reporter,
) -> Config:
    """The configuration with a number of threads: PyTorch's, or a faster one, if none is named."""
    devices = config.train.devices
    threads = config.train.threads or max(1, torch.get_num_threads() // devices)
    if threads == "auto" and devices > 1:
        threads = max(1, torch.get_num_threads() // devices)  # they would try in turns, and alone
    if threads == "auto" and config.train.device != "cpu" and torch.cuda.is_available():
        threads = torch.get_num_threads()  # what a GPU does takes as long with any
    if threads == "auto":
        threads, why = trial_of_training(*_tried(config, model, task, learner, splits))
        reporter.noticed(f"threads: {threads} ({why})")
    return replace(config, train=replace(config.train, threads=threads))


def _with_precision(
    config: Config,
    model: SequenceModel,
    task: Task,
    learner: Learner,
    splits: Splits,
    reporter: Reporter,
) -> Config:
    """The configuration with a precision by name, the faster one where that is left open."""
    train = config.train
    if train.precision != "auto":
        return config
    gpu = train.device != "cpu" and torch.cuda.is_available()
    with process_settings(train.threads if isinstance(train.threads, int) else None):
        tried = _tried(config, model, task, learner, splits)
        precision, why = trial_of_precision(*tried, "cuda" if gpu else "cpu")
    reporter.noticed(f"precision: {precision} ({why})")
    return replace(config, train=replace(train, precision=precision))


def _tried(
    config: Config, model: SequenceModel, task: Task, learner: Learner, splits: Splits
) -> "tuple[TrainingModule, Batch]":
    """Parts of a trial before a run: its module, and the first batch."""
    from linrnn.train._module import TrainingModule

    loader = train_loader(splits.train, config.train.batch_size, config.seed, 0)
    return TrainingModule(model, task.loss, learner=learner), unpack(next(iter(loader)))


def _check_device(config: Config) -> None:
    train, gpus = config.train, torch.cuda.device_count()
    if train.device != "cpu" and torch.cuda.is_available() and train.devices > gpus:
        raise ArgumentError(
            f"Config: train.devices must be at most {gpus}, the GPUs of this machine, got "
            f"{train.devices}. Use --train.device cpu for processes on the CPU."
        )
    if train.device == "gpu" and not torch.cuda.is_available():
        raise ArgumentError(
            "Config: train.device must be one this machine has, got 'gpu' and no GPU is visible. "
            "Use --train.device cpu."
        )


def _require_lightning() -> None:
    for package in ("lightning", "tensorboard", "matplotlib"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError("training", package, "train") from error

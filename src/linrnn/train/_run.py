"""Train: from a configuration, or from where a run was interrupted, to a finished run folder."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from linrnn._signals import StopRequest
from linrnn._storage import DENIED, FULL, cannot_write
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, MissingExtraError, RunFolderError, StorageError
from linrnn.tasks import Splits, Task
from linrnn.train._checkpoint import load_tensors
from linrnn.train._config import Config, OnNan
from linrnn.train._data import check_memory, check_order, size_of, steps_per_epoch
from linrnn.train._evaluate import score
from linrnn.train._folder import RunFolder
from linrnn.train._metrics import MetricsLog, read_metrics, restore_metrics
from linrnn.train._model import build_model, build_stored, build_task, restore, sizes
from linrnn.train._nonfinite import Guard
from linrnn.train._recover import BEGINNING, Restart, usable_checkpoint
from linrnn.train._report import Plan, Reporter, Result
from linrnn.train._restored import progress
from linrnn.train._seeding import process_settings


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
    config = _with_threads(config)
    _check_device(config)
    task = build_task(config)
    model = build_model(config, task)
    check_order(config, task, model)
    splits = task.datasets()
    folder = RunFolder.create(None if out is None else Path(out), config, task.kept())
    with folder.locked():
        return _train(config, task, model, splits, folder, reporter or Reporter(), BEGINNING)


def resume(
    run: Path | str,
    *,
    reporter: Reporter | None = None,
    fallback: bool = False,
    on_nan: OnNan | None = None,
) -> Result:
    """Continue an interrupted run to the weights it would have had without the interruption.

    The same bits come out on the same machine with the same packages. A run that is finished
    already is not touched; one that was killed before its first checkpoint begins again.

    Args:
        run: its folder.
        reporter: told what happens; None keeps silent.
        fallback: where the newest checkpoint is damaged, go on from the one before it, and put
            the damaged file aside under a name that ends in ``.damaged``.
        on_nan: from here on in the place of ``train.on_nan``; None takes that of the run.

    Returns:
        What `run` would have returned.

    Raises:
        RunFolderError: the folder or its newest checkpoint cannot be used.
        LinrnnError: as `run`.
    """
    _require_lightning()
    folder = RunFolder(Path(run))
    config = _with_threads(folder.load_config())
    finished = folder.read_result()
    if finished is not None:
        return finished
    if on_nan is not None:
        config = replace(config, train=replace(config.train, on_nan=on_nan))
    _check_device(config)
    reporter = reporter or Reporter()
    with folder.locked():
        folder.remove_leftovers()
        start = usable_checkpoint(folder, reporter, fallback=fallback)
        with folder.suits():
            task = build_task(config, folder)
            begun = start.step > 0
            model = (
                build_stored(config, task, start.weights) if begun else build_model(config, task)
            )
            check_order(config, task, model)
            splits = task.datasets()
        return _train(config, task, model, splits, folder, reporter, start)


def _train(
    config: Config,
    task: Task,
    model: SequenceModel,
    splits: Splits,
    folder: RunFolder,
    reporter: Reporter,
    start: Restart,
) -> Result:
    plan = _plan(config, task, model, splits, folder, start.step)
    if start.step > plan.steps:
        raise RunFolderError(
            f"{folder.last}: the file must be a checkpoint of this run of {plan.steps} steps, got "
            f"one after step {start.step}. Restore it from a copy, or train again."
        )
    check_memory(model, task, min(config.train.batch_size, plan.n_train), examples=plan.n_train)
    try:
        folder.write_environment(plan)
        reporter.started(plan)
        metrics = restore_metrics(folder, start.step, start.metrics, reporter)
        with process_settings(config.train.threads):
            _fit(config, task, model, splits, folder, reporter, plan, metrics)
            reporter.trained()
            result = _finish(config, task, model, splits, folder, plan)
            folder.write_result(result)
    except OSError as error:
        if error.errno in (*FULL, *DENIED) or isinstance(error, StorageError):
            raise _cannot_go_on(folder, error) from error
        raise
    finally:
        reporter.closed()
    return result


def _cannot_go_on(folder: RunFolder, error: OSError) -> RunFolderError:
    """The error about a run that a disk ended."""
    what = str(error) if isinstance(error, StorageError) else str(cannot_write(folder.path, error))
    return RunFolderError(f"{what} Then continue with: linrnn train --resume {folder.path}")


def _plan(
    config: Config, task: Task, model: SequenceModel, splits: Splits, folder: RunFolder, step: int
) -> Plan:
    n_train = size_of(splits.train, "training data")
    n_parameters, n_state = sizes(model)
    gpu = config.train.device != "cpu" and torch.cuda.is_available()
    assert config.train.threads is not None
    return Plan(
        task=config.task,
        mixer=config.mixer,
        metric=task.metric,
        epochs=config.train.epochs,
        steps_per_epoch=steps_per_epoch(n_train, config.train.batch_size),
        start_step=step,
        n_train=n_train,
        n_validation=size_of(splits.validation, "validation data"),
        n_test=size_of(splits.test, "test data"),
        n_parameters=n_parameters,
        n_state=n_state,
        seed=config.seed,
        device="gpu" if gpu else "cpu",
        threads=config.train.threads,
        folder=folder.path,
    )


def _fit(
    config: Config,
    task: Task,
    model: SequenceModel,
    splits: Splits,
    folder: RunFolder,
    reporter: Reporter,
    plan: Plan,
    metrics: str,
) -> None:
    """The steps that are left."""
    from linrnn.train._lightning import Bookkeeping, TrainingModule, make_trainer, quiet

    if plan.start_step >= plan.steps:
        return
    log = MetricsLog(folder, plan.start_step, metrics)
    guard = Guard(config.train.on_nan, reporter, lambda: _advice(folder))
    module = TrainingModule(model, task, splits, config, guard)
    epochs = plan.epochs - plan.start_step // plan.steps_per_epoch
    checkpoint = folder.last if plan.start_step else None
    try:
        with quiet(), StopRequest() as stop:
            bookkeeping = Bookkeeping(folder, log, reporter, stop)
            trainer = make_trainer(config, epochs, bookkeeping, folder, module)
            trainer.fit(module, ckpt_path=checkpoint)
    finally:
        log.close()


def _advice(folder: RunFolder) -> str:
    """What to do about numbers that are not finite."""
    fix = "Correct the data, or lower --optim.lr or --optim.clip in a new run"
    if not os.path.lexists(folder.last):
        return f"{fix}, or leave such steps out with --on-nan skip."
    return (
        f"The last checkpoint is as it was. {fix}, or leave such steps out: "
        f"linrnn train --resume {folder.path} --on-nan skip"
    )


def _finish(
    config: Config,
    task: Task,
    model: SequenceModel,
    splits: Splits,
    folder: RunFolder,
    plan: Plan,
) -> Result:
    """Test the best weights and draw the plots."""
    from linrnn.train._plots import draw_plots

    restore(model, load_tensors(folder.weights(), inside=folder.path)[0], folder.model)
    model.eval()
    train = config.train
    tested = score(model, task, splits.test, train.batch_size, carry=train.carry_state)
    draw_plots(folder, config, task, model, splits)
    run, _, _ = progress(folder.last, inside=folder.path)
    return Result(
        task=config.task,
        mixer=config.mixer,
        metric=task.metric,
        test_metric=tested.metric,
        test_loss=tested.loss,
        validation_metric=run.best["metric"],
        best_step=run.best["step"],
        steps=plan.steps,
        n_parameters=plan.n_parameters,
        n_state=plan.n_state,
        seconds=read_metrics(folder)[-1].seconds,
        folder=folder.path,
        skipped=run.not_finite["skipped"],
        rollbacks=run.not_finite["rollbacks"],
    )


def _with_threads(config: Config) -> Config:
    """With the number of threads that PyTorch would take where none is named."""
    threads = config.train.threads or torch.get_num_threads()
    return replace(config, train=replace(config.train, threads=threads))


def _check_device(config: Config) -> None:
    if config.train.device == "gpu" and not torch.cuda.is_available():
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

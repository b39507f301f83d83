"""From a configuration to a model, and from a run folder to a trained one."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from linrnn import state, tasks
from linrnn._process.memory import available, within
from linrnn.backbone import Model, SequenceModel
from linrnn.compute.finite import first_bad, misfit
from linrnn.errors import ArgumentError, DataError, RunFolderError
from linrnn.frozen import BankModel, LinearModel, MeanModel, SeriesModel
from linrnn.tasks import ForecastTask, Task
from linrnn.train.checkpoint import load_tensors
from linrnn.train.config import CLOSED, LINEAR, Config, shape_of
from linrnn.train.folder import RunFolder
from linrnn.train.seeding import derive

# what building may take beside the stored weights: some are drawn in a wider type, or computed of
# matrices that are not kept
_SPARE, _TIMES = 16 << 20, 8


def build_task(config: Config, folder: RunFolder | None = None) -> Task:
    """The task with its options, and with what a run folder keeps for it.

    Raises:
        RunFolderError: what the folder keeps is missing, damaged or of another model.
    """
    cls = tasks.load(config.task)
    if folder is None:
        return cls(config.task_options)
    folder.check_kept()
    try:
        return cls.of_run(config.task_options, folder.path)
    except DataError as error:
        raise RunFolderError(f"{folder.path}: {error}") from error


def build_model(
    config: Config, task: Task, limit: int | None = None, device: str | None = None
) -> SequenceModel:
    """The model with the initial weights of ``config.seed``, on the CPU.

    Args:
        config, task: of the model.
        limit: bytes that it may take. Default: those of this machine's memory.
        device: "meta" for a model without weights, which has sizes alone.

    Raises:
        UnknownNameError: an unknown mixer, or the mixer has no such option.
        ArgumentError: an option of the mixer is outside its range, or the model does not fit into
            memory, which is noticed before memory is allocated; more steps pooled than there are.
    """
    if config.mixer in CLOSED:
        raise ArgumentError(
            "Config: mixer must be one that is trained by gradients, got "
            f"{config.mixer!r}, which is not. Name another; linrnn.contest.run chooses a frozen "
            "bank or a linear model where it answers best."
        )
    pooled = math.prod(config.model.tiers)
    if pooled > task.sequence_length:
        raise ArgumentError(
            f"Config: model.tiers must pool at most the {task.sequence_length} steps of a sequence "
            f"of the task {config.task}, got {config.model.tiers}, {pooled} steps in all."
        )
    limit = available() if limit is None else limit
    message = (
        f"Config: the model must fit into {limit:,} bytes of memory, got sizes that do not. "
        "Lower --model.d-model, --model.n-layers, or the sizes of the mixer or the vocabulary."
    )
    with torch.random.fork_rng(devices=[]), within(limit, ArgumentError, message):
        torch.manual_seed(derive(config.seed, "weights", 0))
        return SequenceModel(
            task.d_input,
            task.d_output,
            mixer=config.mixer,
            mixer_options=config.mixer_options,
            encoder=task.encoder,
            documents=task.documents,
            **asdict(config.model),
            dtype=torch.float64 if config.train.precision == "64-true" else torch.float32,
            device=device,
        )


def load_reader(run: Path | str, *, trust: bool = False) -> tuple[Model, Task, Config]:
    """The best weights of a run, in evaluation mode, with its task and configuration.

    Args:
        run: the run folder.
        trust: import the modules of mixers that the run names by import paths, which runs their
            code. Without it they must have been imported before, or be named in ``LINRNN_TRUST``.

    Returns:
        A `SequenceModel`, or one of `linrnn.frozen` where one of those won.

    Raises:
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        UntrustedError: the run names a mixer of a module that may not be imported.
    """
    folder = RunFolder(Path(run))
    config = folder.load_config(trust=trust)
    weights, _ = load_tensors(folder.weights(), inside=folder.path)
    model: Model
    with folder.suits():
        task = build_task(config, folder)
        if config.mixer in CLOSED:
            model, task = _build_frozen(config, task, weights)
        else:
            model = build_stored(config, task, weights)
    restore(model, weights, folder.model)
    return model.eval(), task, config


def load_model(run: Path | str, *, trust: bool = False) -> tuple[SequenceModel, Task, Config]:
    """The same of a run with layers.

    Args:
        run, trust: as of `load_reader`.

    Raises:
        ArgumentError: a frozen bank or a linear model, which has none.
        RunFolderError, UntrustedError: as of `load_reader`.
    """
    model, task, config = load_reader(run, trust=trust)
    return with_layers(model, run), task, config


def with_layers(model: Model, run: Path | str) -> SequenceModel:
    """The model of a run, which must have layers.

    Raises:
        ArgumentError: it is a frozen bank or a linear model.
    """
    if isinstance(model, SequenceModel):
        return model
    linear = isinstance(model, LinearModel)
    got = "a linear model" if linear else "a frozen bank"
    verbs = (
        "predict, eval, stream, serve and export" if linear else "predict, eval, stream and serve"
    )
    raise ArgumentError(
        f"{run}: the run must be of layers that were trained, got {got}, which has none. "
        f"{verbs} take it; for anything else train one: linrnn train TASK "
        "--only trained."
    )


def _build_frozen(config: Config, task: Task, weights: Mapping[str, Tensor]) -> tuple[Model, Task]:
    """A model for stored weights, and the task with windows as long as it reads."""
    model: Model
    if config.mixer == LINEAR:
        model = LinearModel.of_weights(weights)
        fits = (model.d_input, model.d_output) == (task.d_input, task.d_output)
    elif isinstance(task, ForecastTask):
        series: MeanModel | SeriesModel
        if MeanModel.is_of(weights):
            series = MeanModel.of_weights(weights)
        else:
            series = SeriesModel.of_weights(weights, task.d_input)
        fits = (series.d_input, series.d_output) == (task.d_input, task.d_output)
        task = task.reaching(series.reach)
        model = series
    else:
        model = BankModel.of_weights(weights, task.d_input)
        fits = model.d_output == task.d_output
    if not fits:
        raise ArgumentError(
            f"Config: the task must have {model.d_output} outputs as the weights, got "
            f"{task.d_output}."
        )
    return model, task


def build_stored(config: Config, task: Task, weights: Mapping[str, Tensor]) -> SequenceModel:
    """A model for stored weights, in about the memory that those take.

    Raises:
        ArgumentError: the configuration asks for more layers or larger ones than they are of.
        UnknownNameError: as `build_model`.
    """
    layers = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    ways = shape_of(config.model).ways()
    if config.model.n_layers * ways != len(layers):
        raise ArgumentError(
            f"Config: model.n_layers must be {len(layers) // ways}, as many as there are weights "
            f"of, got {config.model.n_layers}."
        )
    stored = sum(x.numel() * x.element_size() for x in weights.values())
    return build_model(config, task, _SPARE + _TIMES * stored)


def restore(model: Model, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put stored weights into a model.

    Raises:
        RunFolderError: see `check_weights`.
    """
    check_weights(model, weights, path)
    model.load_state_dict(weights)


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], path: Path | str | None) -> None:
    """Check weights that were read: of a run, of a checkpoint, after a roll-back.

    Args:
        model: they are to be put into.
        weights: by name.
        path: of their file.

    Raises:
        RunFolderError: a name, shape or dtype is not that of the model, or a number not finite.
    """
    if wrong := misfit(weights, model.state_dict()):
        raise RunFolderError(
            f"{path}: the weights must fit the configuration beside them, got {wrong}. "
            "Restore both files from the same run."
        )
    if wrong := first_bad(weights.items()):
        raise RunFolderError(
            f"{path}: the weights must be finite, or every answer would be NaN, got {wrong}. "
            "Restore the file from a copy, or train again."
        )


def sizes(model: Model) -> tuple[int, int]:
    """Number of parameters that learn, and floats of state for one sequence."""
    learn = (p for p in model.parameters() if p.requires_grad)
    n_parameters = sum(p.numel() * (2 if p.is_complex() else 1) for p in learn)
    return n_parameters, state.n_floats(model.init_state(1))

"""The configuration of a run: frozen dataclasses, and their form as JSON."""

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from linrnn import learn, tasks
from linrnn._options.catalogue import todays_name
from linrnn._options.declared import dataclass_of
from linrnn._options.schema import check_fields, check_type, record
from linrnn.backbone import model_options
from linrnn.backbone.pattern import stored
from linrnn.backbone.tiers import Shape
from linrnn.block import BLOCKS
from linrnn.errors import (
    ArgumentError,
    UnknownNameError,
    check_in,
    check_positive,
    check_positive_int,
    show,
)

OnNan = Literal["stop", "skip", "rollback"]

BANK = "bank"
"""Name used instead of a mixer: no layers, but a frozen bank with a read-out that is solved for."""
LINEAR = "linear"
"""Name used instead of a mixer: a linear map of all numbers of a sequence."""
CLOSED = (BANK, LINEAR)
"""All names used instead of a mixer."""

MAX_LAYERS = 10_000
"""More than any model has: each takes time to build however small it is."""

_THREADS = 16  # for each core of the machine, but no fewer than those of a large one


_MODEL: Any = dataclass_of(
    "ModelOptions", "The residual stack around the mixer.", model_options(dropout=0.1)
)


class ModelConfig(_MODEL):  # type: ignore[misc]
    """The residual stack around the mixer: options of `linrnn.SequenceModel`, under their names.

    Types, descriptions and defaults are those of its constructor, except that dropout is 0.1.
    """


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW, with linear warm-up and a schedule of the learning rate."""

    lr: float = 3e-3
    """Peak learning rate."""
    recurrent_lr_factor: float = 0.5
    """Recurrent parameters learn at lr times this."""
    weight_decay: float = 0.05
    """Decay of the weight matrices outside the recurrence; biases and norms have none."""
    warmup_fraction: float = 0.1
    """Fraction of all steps during which the learning rate rises from 0."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Learning rate after the warm-up: a cosine down to min_lr, or constant."""
    min_lr: float = 0.0
    """Learning rate at the last step; that of recurrent parameters shrinks in proportion."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's running means of the gradient and of its square."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Length of training, batches, devices, and what happens at a NaN."""

    epochs: int = 20
    """Passes through the training data."""
    batch_size: int = 64
    """Sequences in a batch."""
    order: Literal["shuffled", "contiguous"] = "shuffled"
    """Order of training examples: shuffled in each epoch, or contiguous.
    With contiguous, each row of a batch continues where it ended in the previous batch."""
    carry_state: bool = False
    """Carry the state of each row from batch to batch, without its gradient, also in validation.
    This is truncated back-propagation through time; it sets the order to contiguous."""
    precision: Literal["32-true", "bf16-mixed", "64-true", "auto"] = "32-true"
    """Number format: float32, float32 with bfloat16 products, or float64.
    On a CPU, auto times the first two for a second each and stores the faster one."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Device; auto takes a GPU if there is one."""
    devices: int = 1
    """Number of GPUs, or of processes on a CPU; each reads its share of every batch (DDP)."""
    threads: int | Literal["auto"] | None = None
    """Number of CPU threads; the same number gives the same bits.
    auto times one thread and all threads for a second each, and takes the faster.
    Default: PyTorch's number, divided by the number of devices."""
    checkpoint_minutes: float = 5.0
    """Longest time between two checkpoints; every epoch also ends with one."""
    on_nan: OnNan = "stop"
    """Reaction to a loss, gradient or carried state that is not finite.
    stop: end the run. skip: leave out the step, at most 10 in a row.
    rollback: restore the last epoch's weights and go on, at most 3 times in an epoch.
    A validation loss or a checkpoint that is not finite always stops it."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything a run depends on.

    Raises:
        UnknownNameError: no such task or precision, norm, ...
        ArgumentError: a value of the wrong type, a number outside its range, a pool that does
            not suit the task, or a mixer that no text can stand for.
    """

    task: str
    """Name of the task."""
    mixer: Any = "lru"
    """The layer along time, as for `linrnn.SequenceModel`. It is stored as a text: a name or
    an import path, or several with commas between; of an instance the class and the options are
    kept, and its parameters are drawn anew like all others. ``"bank"`` and ``"linear"`` are no
    mixers, but what `linrnn.contest` writes where a frozen bank or a linear model answers best."""
    seed: int = 0
    """Seed of the initial weights, the order of the data, dropout and augmentation."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The residual stack."""
    mixer_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the mixer's constructor besides ``d_model``, or of those of a pattern."""
    task_options: Any = None
    """An instance of the task's ``Options``; None takes the defaults."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimiser."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The loop."""
    learner: str = "bptt"
    """Name of the learner, which finds the gradients."""
    learner_options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the learner's constructor."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or self.task not in tasks.names():
            raise UnknownNameError("task", self.task, tasks.names())
        check_type("Config", "mixer_options", dict[str, Any], self.mixer_options)
        check_type("Config", "seed", int, self.seed)
        if isinstance(self.learner, str):
            object.__setattr__(self, "learner", todays_name(learn.__name__, self.learner))
        check_in("Config", "learner", self.learner, learn.names())
        check_type("Config", "learner_options", dict[str, Any], self.learner_options)
        if self.seed < 0:
            raise ArgumentError(f"Config: seed must be an integer of at least 0, got {self.seed}.")
        for name, cls in _PARTS.items():
            part = getattr(self, name)
            check_type("Config", name, cls, part)
            check_fields("Config", part, f"{name}.")
        _check_model(self.model)
        self._keep_mixer()
        check_optim("Config", self.optim)
        _check_train(self.train)
        if self.train.carry_state:
            contiguous = dataclasses.replace(self.train, order="contiguous")
            object.__setattr__(self, "train", contiguous)
        if self.task_options is None:
            object.__setattr__(self, "task_options", tasks.load(self.task).Options())
        check_type("Config", "task_options", tasks.load(self.task).Options, self.task_options)
        check_fields("Config", self.task_options, "task_options.")
        pools = tasks.load(self.task).pools
        if self.model.pool not in pools:
            raise ArgumentError(
                f"Config: model.pool must be one of {', '.join(pools)} for the task {self.task}, "
                f"got {self.model.pool!r}. Use --model.pool {pools[0]}."
            )

    def _keep_mixer(self) -> None:
        """Replace classes and instances by texts, and former names by today's."""
        mixer, options = stored(self.mixer, self.mixer_options, self.model.d_model)
        object.__setattr__(self, "mixer", mixer)
        object.__setattr__(self, "mixer_options", options)


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as plain dictionaries, lists and numbers; `from_json` reads it back."""
    return dataclasses.asdict(config)


def from_json(values: object) -> Config:
    """The configuration `to_json` wrote.

    Raises:
        ArgumentError: a field is missing, unknown or of the wrong type.
    """
    task = values.get("task") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(task, str) or task not in tasks.names():
        raise UnknownNameError("task", task, tasks.names())
    nested = dict(values)
    for name, cls in (_PARTS | {"task_options": tasks.load(task).Options}).items():
        if name in nested:
            fields = record("Config", cls, nested[name], prefix=f"{name}.", optional=_LATER)
            nested[name] = cls(**fields)
    return Config(**record("Config", Config, nested))


_PARTS: dict[str, type] = {"model": ModelConfig, "optim": OptimConfig, "train": TrainConfig}

# added after the first run folders were written: what those do not name is the default
_LATER = {  # of models, of training, of tasks
    *("final_norm", "tie_embeddings", "encoder_norm", "norm_eps", "head_bias", "skip"),
    *("encoder_scale", "logit_soft_cap", "d_ffn", "tiers", "expand", "unet", "identity_ends"),
    *("block_pattern", "residual_scale", "head_scale", "ends_init", "out_norm", "skip_scale"),
    *("order", "carry_state", "on_nan", "devices"),
    *("frame", "rows"),
    *("id", "value", "known", "past", "static", "season", "freq"),
}


def _check_model(model: ModelConfig) -> None:
    check_positive_int(
        "Config", **{"model.d_model": model.d_model, "model.n_layers": model.n_layers}
    )
    if model.d_ffn is not None:
        check_positive_int("Config", **{"model.d_ffn": model.d_ffn})
    shape = shape_of(model)
    shape.check("Config")
    max_layers = MAX_LAYERS // shape.ways()
    _check_range(
        "model.n_layers", model.n_layers, model.n_layers <= max_layers, f"at most {max_layers:,}"
    )
    _check_range("model.conv_width", model.conv_width, model.conv_width >= 0, "at least 0")
    eps = model.norm_eps
    _check_range("model.norm_eps", eps, eps is None or eps > 0, "above 0")
    positive = {"encoder_scale": model.encoder_scale, "logit_soft_cap": model.logit_soft_cap}
    positive |= {"residual_scale": model.residual_scale, "head_scale": model.head_scale}
    for kind in model.block_pattern:
        check_in("Config", "model.block_pattern", kind, BLOCKS)
    if len(model.block_pattern) > model.n_layers:
        raise ArgumentError(
            f"Config: model.block_pattern must have at most model.n_layers={model.n_layers} kinds, "
            f"got {len(model.block_pattern)}."
        )
    checked = {f"model.{name}": value for name, value in positive.items() if value is not None}
    check_positive("Config", **checked)
    _check_range("model.dropout", model.dropout, 0 <= model.dropout < 1, "in [0, 1)")


def shape_of(model: ModelConfig) -> Shape:
    """How many blocks a model has at which rate."""
    return Shape(model.n_layers, model.tiers, model.expand, model.unet)


def check_optim(where: str, optim: OptimConfig) -> None:
    """Raise `ArgumentError` for a setting of the optimiser of another type, or out of its range."""
    check_fields(where, optim, "optim.")
    # training flushes subnormal numbers to 0, and the schedule divides by the rate
    normal = sys.float_info.min <= optim.lr < float("inf")
    rule = "above 0" if optim.lr <= 0 else f"finite, and at least {sys.float_info.min:.1e}"
    _check_range("optim.lr", optim.lr, normal, rule, where)
    for name in ("recurrent_lr_factor", "weight_decay", "clip"):
        value = getattr(optim, name)
        _check_range(f"optim.{name}", value, 0 <= value < float("inf"), "at least 0", where)
    part, low = optim.warmup_fraction, optim.min_lr
    _check_range("optim.warmup_fraction", part, 0 <= part <= 1, "in [0, 1]", where)
    _check_range("optim.min_lr", low, 0 <= low <= optim.lr, "in [0, optim.lr]", where)
    fits = all(0 <= b < 1 for b in optim.betas)
    _check_range("optim.betas", optim.betas, fits, "two numbers in [0, 1)", where)


def _check_train(train: TrainConfig) -> None:
    sizes = {"train.epochs": train.epochs, "train.batch_size": train.batch_size}
    check_positive_int("Config", **sizes)
    check_devices(train.devices, train.batch_size)
    if train.threads is not None and train.threads != "auto":
        check_positive_int("Config", **{"train.threads": train.threads})
        max_threads = max(256, _THREADS * (os.cpu_count() or 1))
        _check_range(
            "train.threads", train.threads, train.threads <= max_threads, f"at most {max_threads}"
        )
    minutes = train.checkpoint_minutes
    _check_range("train.checkpoint_minutes", minutes, minutes > 0, "above 0")


def check_devices(devices: int, batch_size: int) -> None:
    """Raise `ArgumentError` unless each of ``devices`` devices has rows of a batch."""
    check_positive_int("Config", **{"train.devices": devices})
    _check_range(
        "train.devices",
        devices,
        devices <= batch_size,
        f"at most train.batch_size, {batch_size}, so that each has rows of a batch",
    )


def _check_range(name: str, value: object, fits: bool, rule: str, where: str = "Config") -> None:
    if not fits:
        raise ArgumentError(f"{where}: {name} must be {rule}, got {show(value)}.")

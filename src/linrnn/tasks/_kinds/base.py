"""The contract of a task: data, the numbers that describe it, and how an output is scored."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from linrnn.errors import ArgumentError, show
from linrnn.tokenizers import Tokenizer

IGNORE = -100
"""Target of a step that is not asked about."""


MAX_OPTION, MAX_EXAMPLES = 1 << 24, 1 << 40
"""Largest numbers that options of tasks may have: steps, tokens and the like, and examples."""


class Given(NamedTuple):
    """Sequences of a user's file, as a model reads them."""

    x: Tensor
    """(batch, time, d_input) real, or (batch, time) token ids."""
    lengths: Tensor | None = None
    """Valid steps (batch,) of each, where they are padded at their end."""
    dt: Tensor | None = None
    """Time (batch, time) since the step before, where steps lie unevenly."""
    ids: tuple[str, ...] = ()
    """How the file calls each sequence, where it does."""
    times: tuple[str, ...] = ()
    """When the steps are that are forecast, where that is known."""


class Splits(NamedTuple):
    """The three parts of a task's data.

    Each item is ``(x, target)``, or ``(x, target, length)`` where sequences are padded at their
    end, or ``(x, target, dt)`` with the time (time,) since the step before, a real number, where
    steps lie unevenly, or both. A `BatchDataset` gives whole batches for a list of indices.
    """

    train: Dataset[Any]
    validation: Dataset[Any]
    test: Dataset[Any]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number somebody published for this task."""

    model: str
    """The model, and its size where that is known."""
    value: float
    """The test metric, in the unit of `Task.metric`."""
    source: str
    """Where the number is printed."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A task without options."""


class Task(ABC):
    """A data set with a question: what goes in, what comes out, how the answer is scored.

    A subclass is final, lives in its own file in ``linrnn/tasks`` and is named by it. It
    sets the attributes below (in its constructor where they depend on the options) and implements
    `datasets`. What the defaults of `loss` and `scores` assume is classification.

    Args:
        options: an instance of the class's ``Options``; None takes the defaults.
    """

    Options: ClassVar[type] = NoOptions
    """Frozen keyword-only dataclass of what can be chosen; on the command line ``--task.NAME``."""

    summary: ClassVar[str]
    """One line for a list of tasks."""

    metric: ClassVar[str] = "accuracy"
    """Name of the mean of `contributions`; a fraction in [0, 1] for accuracy."""

    pooled: ClassVar[bool] = False
    """Whether the metric depends on all predictions at once, as a rank statistic or BLEU does. Then
    `scores` are collected, not averaged, before `contributions` turns them into the metric."""

    decodes: ClassVar[bool] = False
    """Whether a model is scored in validation and testing by what it writes by itself, each word
    being read next: then `decoded_scores` stand for `scores` there."""

    higher_is_better: ClassVar[bool] = True
    """Whether a larger metric is a better one."""

    kind: ClassVar[Literal["classification", "regression"]] = "classification"
    """Whether an output is a score for each class or the predicted numbers."""

    loss_name: ClassVar[str] = "cross-entropy (nats)"
    """Name of `loss`, with its unit in parentheses where it has one; the label of an axis."""

    encoder: ClassVar[Literal["linear", "tokens"]] = "linear"
    """Whether an input is (time, d_input) real numbers or (time,) token ids."""

    length_option: ClassVar[str] = "length"
    """The option that `at_length` changes."""

    documents: ClassVar[int] = 1
    """How many sequences a question is about: of 2, inputs and lengths have an axis in front."""

    pools: ClassVar[tuple[str, ...]] = ("mean", "last")
    """Values of the model's ``pool`` that give an output of the shape of the target."""

    perplexity: ClassVar[bool] = False
    """Whether the exponential of the loss is of interest, as it is for a language model."""

    short_options: ClassVar[Mapping[str, str]] = {}
    """Short names of options on the command line: ``{"bptt": "task.length"}`` is ``--bptt``."""

    published: ClassVar[tuple[Published, ...]] = ()
    """Numbers to compare with, each with its source."""

    chance: float
    """The metric of guessing."""

    sequence_length: int
    """Steps of the longest sequence."""

    d_input: int
    """Channels of an input, or the vocabulary size."""

    d_output: int
    """Outputs of the model's head."""

    contiguous: bool = False
    """Whether each training example goes on where the one before it ended, so that the state can
    be carried from one to the next."""

    class_names: tuple[str, ...] = ()
    """Name of each output, for classification."""

    time_unit: float | None = None
    """Divisor of the times between steps that come as `dt`, in the unit of the data; None where all
    steps are equal and no times come. Computed from the facts in a run folder alone."""

    number_names: tuple[str, ...] = ()
    """Name of each number that `numbers` gives, for regression; none: y, or y1, y2, ..."""

    tokenizer: Tokenizer | None = None
    """The tokenizer of a task of text; None of other tasks."""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        _check_sizes(type(self).__name__, self.options)

    @property
    def channels(self) -> int:
        """Numbers a step in the units of the data. Default: as many as the model reads."""
        return self.d_input

    @abstractmethod
    def datasets(self) -> Splits:
        """Read or generate the data; the split depends on the options alone, never on a seed.

        Raises:
            DataError: the data is missing, damaged, or holds NaN or infinity.
        """

    def at_length(self, length: int) -> "Task":
        """The same task with longer or shorter sequences, to test a trained model on.

        Default: with the option `length_option`, whose docstring says what it counts, changed.

        Raises:
            ArgumentError: the task has no such option, or cannot be of this length.

        Example:
            >>> from linrnn import tasks
            >>> tasks.load("induction_heads")().at_length(4096).sequence_length
            4096
        """
        option = self.length_option
        if option not in {f.name for f in fields(self.options)}:
            raise ArgumentError(
                f"{type(self).__name__}: the task must have an option {option!r} to be tested at "
                f"another length, got length={length}. Test it on its own "
                f"{self.sequence_length} steps."
            )
        return type(self)(replace(self.options, **{option: length}))

    def run_files(self) -> Mapping[str, str]:
        """Text files of a run folder that its model needs: name to content. Default: none."""
        if not hasattr(self, "kept"):
            return {}
        name = type(self).__name__
        words = f"{name}.kept is called run_files; the former name goes with linrnn 0.4."
        warnings.warn(words, FutureWarning, stacklevel=2)
        files: Mapping[str, str] = cast(Any, self).kept()
        return files

    @classmethod
    def of_run(cls, options: Any, folder: Path) -> "Task":
        """The task of a run, given its folder with the files of `run_files` in it.

        Raises:
            DataError: such a file is missing or damaged.
        """
        return cls(options)

    def example(self) -> str:
        """One example in words, for ``linrnn show``. Default: the first of the training data."""
        x, target, *_ = self.datasets().train[0]
        return f"input {_shorten(x)}\ntarget {_shorten(target)}"

    def baselines(self) -> Mapping[str, float]:
        """The metric of simple predictors in the test part, by their names. Default: none.

        They are computed from the data; nothing is downloaded for it.

        Raises:
            DataError: the data is missing or damaged.
        """
        return {}

    def picture(self, x: Tensor) -> Tensor | None:
        """One input as an image to look at; None where inputs are no images, the default.

        Args:
            x: (time, d_input), as the data sets give it.

        Returns:
            (height, width), or (height, width, 3) in colour, in [0, 1].
        """
        return None

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Vary a training batch; all randomness comes from ``generator``. Default: leave it."""
        return x

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """The loss that training minimises: a scalar, the mean over the batch.

        Default: cross-entropy, over the steps whose target is not `IGNORE` where there is one
        target a step.
        """
        if target.ndim == 1:
            return nn.functional.cross_entropy(y, target)
        return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten(), ignore_index=IGNORE)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """One number for each example, whose mean is the metric.

        Default: 1 where right, else 0; with one target a step, the fraction of steps that are
        right among those whose target is not `IGNORE`.

        Returns:
            (batch,). A task that is `pooled` returns (batch, numbers): the part of an example in
            its metric, as a predicted score with its label, or counts.
        """
        right = (y.argmax(-1) == target).float()
        if target.ndim == 1:
            return right
        counts = target != IGNORE
        return (right * counts).sum(1) / counts.sum(1)

    def contributions(self, scores: Tensor) -> Tensor:
        """Numbers whose mean over all examples is the metric.

        Their standard deviation over the square root of their count is the metric's standard error.
        For a metric f of the collected scores they are f plus the influence of each example on f.

        Args:
            scores: `scores` of all examples, one batch after the other: (examples,), or (examples,
                numbers) if `pooled`; float64.

        Returns:
            (examples,), float64. Default: ``scores``. All are NaN if the metric is undefined.
        """
        return scores

    def decoded_scores(self, model: Any, x: Tensor, target: Tensor) -> Tensor:
        """`scores` of what a model writes by itself, for a task that `decodes`.

        Args:
            model: a `linrnn.backbone.Model` in evaluation mode; its steps are used.
            x, target: of a batch, as the data sets give them.

        Returns:
            As `scores`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not decode")

    def side_metrics(self, scores: Tensor) -> Mapping[str, float]:
        """Other metrics of the collected ``scores``, by name, that tables state. Default: none."""
        return {}

    def numbers(self, y: Tensor) -> Tensor:
        """Outputs of a regression in the units of the data, not those of training.

        Args:
            y: (batch, d_output), or (batch, time, d_output), of the model.

        Returns:
            (batch, numbers), or (batch, steps, numbers). Default: as they are.
        """
        return y

    def scaled(self, x: Tensor) -> Tensor:
        """Steps in the units of the data, as the model reads them: an affine map of each channel.

        Args:
            x: (batch, time, d_input) real numbers; token ids are as they are.

        Raises:
            ArgumentError: what the model reads of a step depends on others.

        Returns:
            The same shape and dtype. Default: as they are.
        """
        return x

    def arranged(self, x: Tensor) -> Tensor:
        """Whole sequences in the units of the data, as the model reads them.

        Args:
            x: (batch, time, d_input) real numbers, or (batch, time) token ids.

        Returns:
            What a data set has. Default: `scaled`.
        """
        return self.scaled(x)

    def flattened(self, x: Tensor) -> Tensor:
        """Inputs in a shape of their own, such as images, as (batch, time, channels).

        Args:
            x: real numbers in the units of the data.

        Returns:
            Default, and whatever has another shape: as they are.
        """
        return x

    def read(self, path: Path) -> Tensor:
        """Inputs from a user's file, a sequence a row.

        Returns:
            (batch, sequence_length, d_input) real, or (batch, sequence_length) token ids.

        Raises:
            DataError: the file is missing, not a table of finite numbers or of ids, or of another
                width.
        """
        from linrnn.tasks._reading.table import read_ids, read_table

        if self.encoder == "tokens":
            return read_ids(path, self.sequence_length, self.d_input)
        width = self.sequence_length * self.d_input
        return read_table(path, width).reshape(-1, self.sequence_length, self.d_input)

    def read_given(self, path: Path) -> Given:
        """Read as `read` does, with lengths and times of the sequences where they have some.

        Raises:
            DataError: as `read`.
        """
        return Given(self.read(path))


def _check_sizes(where: str, options: Any) -> None:
    """Raise `ArgumentError` for sizes that exceed any time or memory."""
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, (int, float)) and not field.name.endswith("seed"):
            limit = MAX_EXAMPLES if field.name.endswith("_size") else MAX_OPTION
            if not abs(value) <= limit:
                raise ArgumentError(
                    f"{where}: {field.name} must be at most {limit:,}, got {show(value)}."
                )


def _shorten(x: Any) -> str:
    """A tensor in a line or a few."""
    if not isinstance(x, Tensor):
        return str(x)
    with_shape = f"of shape {tuple(x.shape)}: " if x.ndim else ""
    return with_shape + str(x.squeeze(-1)[:40].tolist() if x.ndim else x.item())


def tensors(x: Tensor, target: Tensor, where: str) -> TensorDataset:
    """An in-memory data set, after a check that its numbers are finite.

    Raises:
        DataError: NaN or infinity in ``x``.
    """
    from linrnn.tasks._reading.table import check_finite

    check_finite(x.flatten(1), where)
    return TensorDataset(x, target)

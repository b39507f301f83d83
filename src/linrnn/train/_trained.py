"""A trained run in a program: answers to arrays and tables, streams, a plain module."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linrnn.backbone import Model
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ShapeError,
    check_in,
    check_kind,
    check_positive_int,
    check_shape,
)
from linrnn.quantization import KINDS, quantize
from linrnn.streaming import Session
from linrnn.streaming.input import as_tensor
from linrnn.tasks import ForecastTask, Given, Task
from linrnn.tasks.table import Table
from linrnn.train._predict import answers_to, check_inputs
from linrnn.train.context import Trained, open_run
from linrnn.train.scales import input_scale, named, output_scale
from linrnn.train.suits import no_times
from linrnn.typing import Lengths


def load(run: Path | str, *, weights: str | None = None) -> "TrainedModel":
    """A trained run: its best weights, with what is needed to put them to use.

    Args:
        run: the run folder.
        weights: ``"int8"`` or ``"int4"``: store the weights of linear maps so, as
            `linrnn.quantize` does with its defaults. Default: as they were trained.

    Raises:
        UnknownNameError: no such weights.
        ArgumentError: weights of a frozen bank or a linear model, which are as they are.
        RunFolderError: not a run folder, without weights yet, damaged, or of a newer linrnn.
        UntrustedError: the run names a mixer of a module that may not be imported.

    Example:
        >>> import linrnn
        >>> labels = linrnn.load("runs/table-lru-1").predict(x)  # doctest: +SKIP
    """
    check_kind("load", "run", run, str, os.PathLike)
    if weights is None:
        return TrainedModel(open_run(run))
    check_in("load", "weights", weights, tuple(KINDS))
    trained = open_run(run)
    return TrainedModel(replace(trained, model=quantize(trained.layers, KINDS[weights])))


class TrainedModel:
    """A model, the task it answers, and the units of its data; made by `load`.

    Input is in the units of the data the run was trained on: a tensor or array (sequences, time,
    channels), or (sequences, time) of one channel or of token ids; a list of such sequences of
    different lengths; or a pandas ``DataFrame``, with a sequence in each row, or, where the run
    forecasts or was trained on such a table, with a step in each row and the columns it was trained
    on by their names. A column with the name of what was asked in training is not read. What the
    run was told to do with missing values is done with NaN.

    Attributes:
        model: the `linrnn.SequenceModel`, in evaluation mode; or one of `linrnn.frozen`.
        task: with its options.
    """

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self.model: Model = trained.model
        self.task: Task = trained.task

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class that each column of `predict_proba` is of."""
        return self.task.class_names or tuple(map(str, range(self.task.d_output)))

    @torch.no_grad()
    def predict(self, x: Any, *, dt: Any = None, batch_size: int | None = None) -> Any:
        """The answer to each sequence: the name of a class, or numbers in the units of the data.

        Args:
            x: sequences, as above.
            dt: time since the step before (sequences, time), as `SequenceModel.forward` takes it;
                of a table with time stamps it is found there. It is in the usual time between steps
                of the training data, which is then 1. Default: 1 at every step, where the run was
                trained on such.
            batch_size: how many are read at once. Default: as in training.

        Returns:
            An array (sequences,) of names, or (sequences, numbers), with an axis of steps after
            the first where there is an answer for each step, or a forecast. For a ``DataFrame``
            of sequences a ``Series`` or ``DataFrame`` with its index, or that of the sequences'
            ids; where the run forecasts, a ``DataFrame`` (horizon, columns), whose index has the
            time stamps, where they lie evenly, or counts the steps after the last, from 1.

        Raises:
            ArgumentError, ShapeError, DataError: input that does not fit, or is not finite.
            NonFiniteError: an answer is not finite.
        """
        y, inputs = self._answers("predict", x, dt, batch_size)
        answers = named(self.task, y)
        if _is_table(x):
            return self._table(x, answers, inputs)
        if inputs.lengths is not None and y.ndim == 3:
            return [row[:n] for row, n in zip(answers, inputs.lengths.tolist(), strict=True)]
        return answers

    @torch.no_grad()
    def predict_proba(self, x: Any, *, dt: Any = None, batch_size: int | None = None) -> np.ndarray:
        """The probability of each class, (sequences, classes) or (sequences, steps, classes).

        Args:
            x, dt, batch_size: as of `predict`.

        Raises:
            ArgumentError: the run is of numbers, not of classes; and as `predict`.
        """
        _check_classes("predict_proba", self.task)
        y, _ = self._answers("predict_proba", x, dt, batch_size)
        return y.double().softmax(-1).cpu().numpy()

    def stream(self) -> "TrainedStream":
        """A stream that begins with nothing read, in the units of the data."""
        return TrainedStream(self._trained)

    def to_torch(self) -> nn.Module:
        """A plain ``torch.nn.Module``: steps in the units of the data in, answers out.

        It is called as ``module(x)`` or ``module(x, lengths=..., dt=...)`` with a tensor (batch,
        time, channels), or token ids (batch, time), and returns one: a score for each class, or
        numbers in the units of the data. What scales them are buffers, so ``state_dict`` has all of
        it.

        Raises:
            ArgumentError: the task does not scale each step alone.
        """
        return _Plain(self._trained)

    def _answers(self, call: str, x: Any, dt: Any, batch_size: int | None) -> tuple[Tensor, Given]:
        if batch_size is not None:
            check_positive_int(call, batch_size=batch_size)
        inputs = self._read(call, x)
        read, weight = inputs.x, self.model.head.weight
        if dt is None and inputs.dt is None and self._trained.reads_dt:
            raise no_times(call, _DT)
        if dt is not None:
            times = _tensor(call, dt).float()
            times = times[None] if times.ndim == 1 else times
            axes = {"sequences": len(read), "time": read.shape[1]}
            check_shape(call, "dt", times.shape, axes)
            inputs = inputs._replace(dt=times)
        check_inputs(read.to(weight.dtype) if read.is_floating_point() else read, call)
        return answers_to(self._trained, inputs, call, batch_size), inputs

    def _read(self, call: str, x: Any) -> Given:
        """Sequences as the model reads them, with their lengths where these differ."""
        if isinstance(x, str | Path):
            raise ArgumentTypeError(
                f"{call}: x must be an array, a tensor or a table, got the text {str(x)!r:.60}. "
                "For a file use linrnn.train.predict(run, file)."
            )
        if _is_table(x):
            if isinstance(self.task, Table) and self.task.long:
                return self.task.read_frame(call, x)
            if isinstance(self.task, ForecastTask):
                return self.task.read_frame(call, x)
            x = self._of_table(call, x)
        if isinstance(x, list | tuple) and len({_steps(call, row) for row in x}) > 1:
            rows = [self._arranged(call, row, one=True) for row in x]
            lengths = torch.tensor([row.shape[1] for row in rows])
            parts = [row[0] for row in rows]
            return Given(nn.utils.rnn.pad_sequence(parts, batch_first=True), lengths)
        return Given(self._arranged(call, x))

    def _arranged(self, call: str, raw: Any, *, one: bool = False) -> Tensor:
        """(batch, time, channels) or (batch, time), as a data set has them."""
        x, task = _tensor(call, raw), self.task
        if task.encoder == "tokens":
            x = x[None] if one else x
            check_shape(call, "x", x.shape, {"sequences": None, "time": None})
            self._check_ids(call, x)
            return task.arranged(x.long())
        x = task.flattened(x)
        forecast = isinstance(task, ForecastTask)
        if x.ndim == 2 and (one or forecast) and x.shape[1] == task.channels:
            x = x[None]
        elif x.ndim < 3 and task.channels == 1:
            x = x[None, :, None] if x.ndim == 1 and (one or forecast) else x[..., None]
        axes = {"sequences": None, "time": None, "channels": task.channels}
        check_shape(call, "x", x.shape, axes)
        if not x.numel():
            raise ShapeError(f"{call}: x must hold a sequence with a step, got {tuple(x.shape)}.")
        return task.arranged(x.to(torch.promote_types(x.dtype, torch.float32)))

    def _check_ids(self, call: str, x: Tensor) -> None:
        size = self.task.d_input
        if x.is_floating_point() or x.dtype == torch.bool or bool(((x < 0) | (x >= size)).any()):
            raise ArgumentError(
                f"{call}: x must be token ids, integers of 0 to {size - 1}, got {x.dtype} of "
                f"{x.min().item() if x.numel() else None} to "
                f"{x.max().item() if x.numel() else None}."
            )

    def _of_table(self, call: str, table: Any) -> np.ndarray:
        """The numbers of a pandas table with a sequence a row."""
        task, features = self.task, table
        if isinstance(task, Table):
            features = task.without_label(table)
        values = _numbers(call, features)
        if isinstance(task, Table) and features.shape == table.shape:
            task.check_width(call, values.shape[1])
        channels = 1 if task.encoder == "tokens" else task.channels
        if values.shape[1] % channels:
            raise ArgumentError(
                f"{call}: a row of the table must hold steps of {channels} numbers, got "
                f"{values.shape[1]} columns. Drop those that are none, such as labels."
            )
        if task.encoder == "tokens":
            return values
        return values.reshape(len(values), -1, channels)  # (rows, time, channels)

    def _table(self, table: Any, answers: np.ndarray, inputs: Given) -> Any:
        import pandas

        names, index = self.task.number_names, table.index
        if isinstance(self.task, ForecastTask):
            steps: Any = pandas.RangeIndex(1, answers.shape[1] + 1, name="step")
            if inputs.times:
                steps = pandas.Index(self.task.as_stamps(inputs.times), name=self.task.time)
            return pandas.DataFrame(answers[0], columns=list(names), index=steps)
        if inputs.ids and isinstance(self.task, Table):
            index = pandas.Index(inputs.ids, name=self.task.options.id)
        if self.task.kind == "regression" and answers.ndim == 2:
            columns = list(names) or [f"y{i + 1}" for i in range(answers.shape[1])]
            return pandas.DataFrame(answers, columns=columns, index=index)
        if answers.ndim == 1:
            return pandas.Series(answers, index=index, name="class")
        return answers


_DT = "Pass dt=, the time since the step before, in the usual one of the training data."


class TrainedStream:
    """One endless stream of steps in the units of the data; made by `TrainedModel.stream`.

    Attributes:
        session: the `linrnn.streaming.Session` below, whose ``save``, ``load`` and ``state`` are
            those of the stream.
    """

    def __init__(self, trained: Trained) -> None:
        self._task, self._trained = trained.task, trained
        if trained.task.encoder != "tokens":
            trained.task.scaled(torch.zeros(1, 1, trained.task.channels))  # raises where it cannot
        self.session = Session(trained.model)

    def predict(self, x: Any, dt: Any = None) -> Any:
        """Read a step (channels,) or a chunk (time, channels), and answer.

        Args:
            x: in the units of the data.
            dt: time since the step before, as `linrnn.streaming.Session.feed` takes it and in the
                unit of `TrainedModel.predict`, which has to be given where that is uneven.

        Returns:
            As `TrainedModel.predict` for one sequence: for a chunk an answer for each of its steps
            or, of a model that pools over time, one for all that was read so far.

        Raises:
            ShapeError, DTypeError, ArgumentError, NonFiniteError: as
                `linrnn.streaming.Session.feed`.
        """
        return named(self._task, self._feed(x, dt)[None])[0]

    def predict_proba(self, x: Any, dt: Any = None) -> np.ndarray:
        """Probabilities of the classes, as `predict` reads its input.

        Raises:
            ArgumentError: the run is of numbers; and as `predict`.
        """
        _check_classes("predict_proba", self._task)
        return self._feed(x, dt).double().softmax(-1).cpu().numpy()

    def _feed(self, raw: Any, dt: Any) -> Tensor:
        x, task = _tensor("stream", raw), self._task
        if dt is None and self._trained.reads_dt:
            raise no_times("stream", _DT)
        if task.encoder != "tokens":
            axes = {"time": None, "channels": task.channels}
            if x.ndim == 1:
                del axes["time"]
            fix = "Pass one step (channels,) or a chunk (time, channels)."
            check_shape("stream", "x", x.shape, axes, fix)
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            x = task.scaled(x.reshape(1, -1, task.channels)).reshape(*x.shape[:-1], task.d_input)
        return self.session.feed(x, dt)


class _Plain(nn.Module):
    """The model between two affine maps."""

    in_scale: Tensor
    in_shift: Tensor
    out_scale: Tensor
    out_shift: Tensor

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        model, task = trained.model, trained.task
        self.model, self.tokens = model, task.encoder == "tokens"
        self.reads_dt = trained.reads_dt
        if not self.tokens and task.channels != task.d_input:
            raise ArgumentError(
                f"to_torch: missing must be 'error' or 'ffill', got 'mask', which reads "
                f"{task.channels} numbers of a step as {task.d_input}. Use linrnn.load(run)."
            )
        read, answer = input_scale(task), output_scale(task, model)
        self.regression = answer is not None
        for name, map_ in (("in", read), ("out", answer)):
            if map_ is not None:
                self.register_buffer(f"{name}_scale", map_.scale)
                self.register_buffer(f"{name}_shift", map_.shift)

    def forward(
        self, x: Tensor, lengths: Lengths | None = None, dt: Tensor | None = None
    ) -> Tensor:
        """Answers to sequences in the units of the data.

        Raises:
            ArgumentError: without ``dt`` where the run was trained on uneven times.
        """
        if dt is None and self.reads_dt:
            raise no_times("to_torch", _DT)
        if not self.tokens:
            weight = self.model.head.weight
            x = (x.double() * self.in_scale + self.in_shift).to(weight.dtype)
        y: Tensor = self.model(x, lengths=lengths, dt=dt)[0]
        if not self.regression:
            return y
        shape = (*y.shape[: y.ndim - 1], *self.out_shift.shape)
        return y.reshape(shape) * self.out_scale + self.out_shift


def _check_classes(call: str, task: Task) -> None:
    if task.kind == "regression":
        raise ArgumentError(
            f"{call}: the run must be one of classes, got one of numbers. Use predict."
        )


def _is_table(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def _numbers(call: str, table: Any) -> np.ndarray:
    """A pandas table as float64 or integers; a column of something else is an error."""
    bad = [str(name) for name, kind in table.dtypes.items() if kind.kind not in "biuf"]
    if bad:
        raise ArgumentError(
            f"{call}: columns of the table must be numbers, got {bad[0]} of "
            f"{table.dtypes.get(bad[0], 'another kind')}. Drop it."
        )
    numbers: np.ndarray = table.to_numpy()
    return numbers


def _steps(call: str, row: Any) -> tuple[int, ...]:
    """The length of a sequence; nothing of a number."""
    return tuple((row if isinstance(row, Tensor) else _array(call, row)).shape[:1])


def _array(call: str, x: Any) -> np.ndarray:
    try:
        return np.asarray(x)
    except ValueError as error:  # NumPy's word for it is inhomogeneous
        raise DTypeError(
            f"{call}: x must be numbers in rows, got a {type(x).__name__} with parts of different "
            "shapes in one sequence."
        ) from error


def _tensor(call: str, x: Any) -> Tensor:
    tensor = as_tensor(call, x if isinstance(x, Tensor) else _array(call, x))
    if tensor.is_complex():
        raise ArgumentTypeError(f"{call}: x must be real numbers, got {tensor.dtype}.")
    return tensor.detach().cpu()

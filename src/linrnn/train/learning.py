"""A run that goes on learning from a stream, in a separate run folder with checkpoints."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from linrnn import learn
from linrnn._files.door import folder_at
from linrnn._files.reading import reading
from linrnn._files.storage import remove, remove_leftovers
from linrnn._options.schema import record
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError, RunFolderError, check_positive_int
from linrnn.learn import LearningSession, LearningText
from linrnn.state import check_flat, flatten
from linrnn.tasks import Task
from linrnn.train._restored import moments
from linrnn.train.checkpoint import load_tree, save_tensors, save_tree
from linrnn.train.config import Config, OptimConfig
from linrnn.train.folder import RunFolder
from linrnn.train.model import check_weights, load_model
from linrnn.train.optim import make_optimizer

_FIX = "Restore it from a copy, or go back to one before it with --back-to."
_NAME = "line-{:012d}.safetensors"


@dataclass(frozen=True, kw_only=True)
class Position:
    """How much of the input was learned from."""

    lines: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class _Point:
    """The contents of a checkpoint: a `Position`, and the `LearningSession.state_dict`."""

    lines: int
    bytes: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    learner: dict[str, Tensor]
    state: dict[str, Tensor] | None
    steps: int
    pieces: int
    last: int | None = None

    def __post_init__(self) -> None:
        counts = (self.lines, self.bytes, self.steps, self.pieces)
        if min(counts) < 0:
            raise ValueError(f"a count below 0 in {counts}")


class Learning:
    """A run that learns from a stream; made by `learning`, which holds its folder.

    Args:
        folder: of the new run.
        config: of the run, with learner and optimiser as they are here.
        task: of the run.
        model: with the weights of the folder, in evaluation mode.
        every: see `linrnn.learn.LearningSession`.
        keep: newest checkpoints that are kept, beside the very first.

    Attributes:
        session: the model in the middle of the stream.
        position: how much of the input it has learned from, as of the last checkpoint.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        task: Task,
        model: SequenceModel,
        *,
        every: int,
        keep: int,
    ) -> None:
        self.folder, self.config, self.task, self.keep = folder, config, task, keep
        self.position = Position()
        rule = learn.build(config.learner, config.learner_options)
        optimizer = make_optimizer(model, config.optim)
        more: dict[str, Any] = {"every": every, "clip": config.optim.clip, "seed": config.seed}
        if task.tokenizer is not None:
            self.session: LearningSession = LearningText(model, rule, optimizer, **more)
        else:
            self.session = LearningSession(model, rule, task.loss, optimizer, **more)

    def points(self) -> list[int]:
        """After which lines there are checkpoints, in order."""
        with folder_at(self.folder.stream, self.folder.path) as folder:
            names = folder.names()
        suffixes = [name.removeprefix("line-").removesuffix(".safetensors") for name in names]
        numbers = (int(n) for n in suffixes if n.isascii() and n.isdigit())
        return [n for n in numbers if _NAME.format(n) in names]

    def save(self, position: Position) -> None:
        """Write a checkpoint, then the weights for whoever reads the folder as a run.

        Raises:
            StorageError: a file cannot be written; the checkpoints before are as they were.
        """
        tree = {**asdict(position), **self.session.state_dict()}
        save_tree(tree, self._at(position.lines), inside=self.folder.path)
        self._write_weights()
        self.position = position
        for lines in self.points()[1 : -self.keep]:
            remove(self._at(lines), inside=self.folder.path)

    def go_on(self, lines: int | None = None) -> None:
        """Take up the stream at a checkpoint: the newest, or another after which none is left.

        Raises:
            ArgumentError: there is no checkpoint after that many lines.
            RunFolderError: it is damaged, or of another model or learner.
        """
        points = self.points()
        if not points:
            raise RunFolderError(
                f"{self.folder.stream}: the folder must hold a checkpoint, got none. Choose "
                "another --out."
            )
        if lines is not None and lines not in points:
            raise ArgumentError(
                f"stream: --back-to must be a line after which there is a checkpoint, "
                f"{', '.join(map(str, points))}, got {lines}."
            )
        lines = points[-1] if lines is None else lines
        self._restore(self._at(lines))
        self._forget(points[points.index(lines) + 1 :])
        self._write_weights()

    def _forget(self, later: Sequence[int]) -> None:
        """Remove checkpoints for good."""
        if not later:
            return
        with folder_at(self.folder.stream, self.folder.path) as folder:
            for lines in reversed(later):
                folder.remove(self._at(lines).name)
            folder.sync()  # or a power cut brings them back, and the stream goes on from them

    def _restore(self, path: Path) -> None:
        session, inside = self.session, self.folder.path
        try:
            tree = load_tree(path, inside=inside)
        except RunFolderError as error:
            raise RunFolderError(f"{error} To go back to one before it: --back-to.") from error
        with reading(path, RunFolderError, "be a checkpoint of this stream", _FIX):
            point = _Point(**record("checkpoint", _Point, tree, more=True))
            check_weights(session.model, point.model, path)
            if point.state is not None:
                check_flat(path, point.state, flatten(session.model.init_state(1)))
            moments(point.optimizer["state"], session.optimizer)
            session.load_state_dict({f.name: getattr(point, f.name) for f in fields(point)})
        self.position = Position(lines=point.lines, bytes=point.bytes)

    def _write_weights(self) -> None:
        inside = self.folder.path
        save_tensors(self.session.model.state_dict(), self.folder.model, inside=inside)

    def _at(self, lines: int) -> Path:
        return self.folder.stream / _NAME.format(lines)


@contextmanager
def learning(
    run: Path | str,
    learner: str,
    learner_options: Mapping[str, Any],
    optim: OptimConfig,
    *,
    out: Path | None = None,
    every: int = 64,
    keep: int = 5,
    back_to: int | None = None,
) -> Iterator[Learning]:
    """Inside, a run learns from a stream; it begins where its newest checkpoint is.

    Args:
        run: a run folder, whose weights are where a new stream begins, and which stays as it is; or
            one that a stream has learned in, which goes on.
        learner, learner_options, optim: the same as those with which the stream began. The learning
            rate is the same at each step.
        out: the folder of the stream. Default: that of the run with ``-learned`` after its name.
        every, keep: see `Learning`.
        back_to: go on from the checkpoint after this many lines; later ones are removed.

    Raises:
        RunFolderError: not a run folder, one of another stream, damaged, or in use.
        ArgumentError: the learner cannot train the model, or no such checkpoint.
    """
    check_positive_int("stream", every=every, keep=keep)
    source = RunFolder(Path(run))
    model, task, config = load_model(source.path)
    if os.path.lexists(source.stream) and out is None:
        out = source.path
    source_path = source.path.resolve()
    folder = RunFolder(out or source_path.with_name(f"{source_path.name}-learned"))
    config = replace(
        config, learner=learner, learner_options=dict(learner_options), optim=steady(optim)
    )
    begun = os.path.lexists(folder.config)
    if begun:
        _check_same(folder, config)
        model, task, config = load_model(folder.path)
    stream = Learning(folder, config, task, model, every=every, keep=keep)
    if not begun:
        first = {**asdict(Position()), **stream.session.state_dict()}

        def fill(new: RunFolder) -> None:
            save_tensors(model.state_dict(), new.model, inside=new.path)
            save_tree(first, stream._at(0), inside=new.path)

        RunFolder.create(folder.path, config, source.run_files(), fill)
    with folder.locked():
        with folder_at(folder.stream, folder.path) as below:
            for name in below.names():
                if name.startswith(".line-"):  # left half-written by a process that was killed
                    below.remove(name)
        remove_leftovers(folder.model, inside=folder.path)
        stream.go_on(back_to)
        yield stream


def steady(optim: OptimConfig) -> OptimConfig:
    """Settings of an optimiser without a schedule: nobody knows when a stream ends."""
    return replace(optim, schedule="constant", warmup_fraction=0.0, min_lr=0.0)


def _check_same(folder: RunFolder, config: Config) -> None:
    """Raise unless a folder is of a stream with this configuration."""
    if not os.path.lexists(folder.stream):
        raise RunFolderError(
            f"{folder.path}: the folder must be new, or one of `linrnn stream --learner`, got a "
            "run of `linrnn train`, which this would change. Choose another --out."
        )
    begun_with = folder.load_config()
    for field in fields(Config):
        ours, theirs = getattr(config, field.name), getattr(begun_with, field.name)
        if ours != theirs:
            raise RunFolderError(
                f"{folder.path}: the stream must be one with this run and these options, got "
                f"another {field.name}. Give the options that it began with, or choose another "
                "--out."
            )

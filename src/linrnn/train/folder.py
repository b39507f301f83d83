"""The run folder: what lies where in it, and what can be wrong with one."""

import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linrnn import __version__
from linrnn._files.door import DoorError, check_folder, make_folder, no_folder, read_bytes
from linrnn._files.reading import reading
from linrnn._files.storage import (
    exclusive,
    read_json,
    read_text,
    remove_leftovers,
    write_atomically,
)
from linrnn._options.schema import record
from linrnn.backbone.pattern import check_stored, labels
from linrnn.errors import RunFolderError, show
from linrnn.ops import backend_report
from linrnn.train._report import Plan, Result
from linrnn.train.config import Config, from_json, to_json

#: Rises when an older linrnn could not read a folder any more.
FORMAT = 1

_MAX_KEPT = 1 << 28  # bytes of a file that comes with the configuration
_LOCK = ".lock"
PLOT_ENDINGS = ("png", "svg", "drawn.csv")
"""Endings of the files of a plot: two pictures, and the numbers in them."""

_FILLED = ("model.safetensors", "distillation.csv", "contest.csv", "stream")


class InUseError(RunFolderError):
    """Another process trains into the folder."""


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Keep other processes from training into a folder; the lock ends with the process.

    Raises:
        InUseError: another process trains into it.
        RunFolderError: the folder cannot be written to.
    """
    with ExitStack() as locks:
        try:
            locks.enter_context(exclusive(path / _LOCK))
        except BlockingIOError as error:
            raise InUseError(
                f"{path}: a run folder must be trained by one process at a time, got a second "
                "one. Wait for the first, or stop it."
            ) from error
        except DoorError as error:
            raise RunFolderError(
                f"{path / _LOCK}: the lock must be a regular file, got {error}. Remove it."
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"{path}: the run folder must be writable, got: {error.strerror}. Copy it to a "
                "place that is, and continue there."
            ) from error
        yield


class RunFolder:
    """Paths and records of one run.

    Args:
        path: the folder, made by `create`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.csv"
        self.tensorboard = path / "tensorboard"
        self.model = path / "model.safetensors"
        self.last = path / "checkpoints" / "last.safetensors"
        # what was `last` before it
        self.previous = path / "checkpoints" / "previous.safetensors"
        # of the end of the last epoch, where a run may roll back to it
        self.epoch = path / "checkpoints" / "epoch.safetensors"
        self.best = path / "checkpoints" / "best.safetensors"
        self.result = path / "result.json"
        # checkpoints of `linrnn stream --learner`, which writes such a folder
        self.stream = path / "stream"
        # plots, each of them with the endings of PLOT_ENDINGS
        self.curves = path / "curves"
        self.eigenvalues = path / "eigenvalues"
        self.memory = path / "memory"
        self.samples = path / "samples"
        self.confusion = path / "confusion"
        self.forecasts = path / "forecasts"
        # of `linrnn distill`, which writes such a folder
        self.distillation = path / "distillation.csv"
        # of `linrnn train`, where a bank and a mixer competed
        self.contest = path / "contest.csv"
        # of `linrnn eval --lengths`
        self.lengths = path / "lengths.csv"
        self.lengths_plot = path / "lengths"
        # of `linrnn eval` for a language model
        self.positions = path / "positions.csv"
        self.positions_plot = path / "positions"
        # of `linrnn eval --lyapunov`
        self.lyapunov = path / "lyapunov.csv"
        self.lyapunov_plot = path / "lyapunov"
        # of `linrnn eval --cycles`
        self.cycles = path / "cycles.csv"

    @classmethod
    def create(
        cls,
        out: Path | None,
        config: Config,
        files: Mapping[str, str] | None = None,
        fill: Callable[["RunFolder"], Any] | None = None,
    ) -> "RunFolder":
        """Make the folder and write the configuration into it, last of all.

        A folder in which that was begun and did not come to its end is begun anew.

        Args:
            out: where; None takes the next free ``runs/<task>-<mixer>-<n>``.
            config: of the run, complete.
            files: names and texts of further files that a model is of no use without.
            fill: writes the weights of a run that is not to be trained, and its `distillation`.

        Raises:
            RunFolderError: ``out`` exists and is not an empty folder, or cannot be made.
            StorageError: a file cannot be written.
        """
        files = files or {}
        folder = cls(_of_config(config) if out is None else claim(out, _begun(files, fill)))
        values = to_json(config)
        head: dict[str, Any] = {"format": FORMAT, "linrnn": __version__, "sha256": _seal(values)}
        if files:
            head["files"] = {name: _hash(text.encode()) for name, text in files.items()}
        with folder.locked():
            for name, text in files.items():
                remove_leftovers(folder.path / name)
                write_atomically(folder.path / name, text.encode(), inside=folder.path)
            if fill is not None:
                folder.remove_leftovers()
                fill(folder)
            remove_leftovers(folder.config)
            _write_json(folder.config, head | {"config": values})
        return folder

    def remove_leftovers(self) -> None:
        """Remove what a killed process left half-written; for whoever holds the lock."""
        records = (self.config, self.environment, self.metrics, self.model, self.result)
        results = (*records, self.distillation, self.contest)
        checkpoints = (self.last, self.previous, self.epoch, self.best)
        trained = (self.curves, self.eigenvalues, self.memory)
        plots = (*trained, self.samples, self.confusion, self.forecasts)
        plot_files = (p.with_name(f"{p.name}.{end}") for p in plots for end in PLOT_ENDINGS)
        for path in (*results, *checkpoints, *plot_files):
            remove_leftovers(path, inside=self.path)

    def load_config(self, *, trust: bool = False) -> Config:
        """The configuration of the run.

        Args:
            trust: whether it may name mixers by import paths, whose modules are then imported;
                else that is allowed of modules that were imported, and as ``LINRNN_TRUST`` says.

        Raises:
            RunFolderError: not a run folder, one of a newer linrnn, or a damaged one.
            UntrustedError: a mixer of a module that may not be imported.
        """
        if not self.path.is_dir():
            raise RunFolderError(
                f"{self.path}: a run folder must exist, got {no_folder(self.path)}. Check the path."
            )
        if not os.path.lexists(self.config):
            fix = "Give the folder that `linrnn train` printed."
            if (self.path / _LOCK).is_file():
                fix = "The run was killed as it began: start it again with the same --out."
            if (self.path / "panel.json").is_file():
                fix = (
                    "It holds a forecaster of many series, which linrnn.load, `linrnn predict` and "
                    "`linrnn eval` read. Other verbs are for models that read one sequence."
                )
            if (self.path / "fit.json").is_file():
                fix = (
                    "It is a folder of linrnn.fit, which holds weights without the model they are "
                    "of and without a task: make the model as before, and "
                    "model.load_state_dict(safetensors.torch.load_file("
                    f"{show(str(self.model), 200)})), or call fit as before."
                )
            raise RunFolderError(
                f"{self.path}: a run folder must hold config.json, got none. {fix}"
            )
        contents = self._read_record()
        values = contents.get("config")
        if not isinstance(values, dict) or contents.get("sha256") != _seal(values):
            raise RunFolderError(
                f"{self.config}: the configuration must be as it was written, got other content. "
                "Undo the change, or start a new run with other options."
            )
        with self.suits(f"Install the version that wrote it: {show(contents.get('linrnn'), 40)}."):
            config = from_json(values)
            if not trust:
                check_stored(f"{self.config}", config.mixer)
        return config

    @contextmanager
    def suits(self, fix: str = "Restore both files from the same run.") -> Iterator[None]:
        """Inside, an error about a value of the configuration names its file.

        Raises:
            RunFolderError: instead of an error about a value.
        """
        must = f"suit linrnn {__version__} and the weights beside it"
        with reading(self.config, RunFolderError, must, fix):
            yield

    def _read_record(self) -> dict[str, Any]:
        """config.json, of a format that is known."""
        contents = _read_json(self.config)
        version = contents.get("format")
        if type(version) is not int or version < 1:
            raise RunFolderError(
                f"{self.config}: the format must be a number of at least 1, got {show(version)}. "
                "Restore the file from a copy."
            )
        if version > FORMAT:
            newer = show(contents.get("linrnn", "a newer version"), 40).strip("'")
            raise RunFolderError(
                f"{self.config}: the format must be at most {FORMAT} for linrnn {__version__}, "
                f"got {show(version)}. Install the version that wrote it: "
                f"pip install 'linrnn>={newer}'"
            )
        return contents

    def check_kept(self) -> None:
        """Raise unless the files that came with the configuration are as they were written.

        Raises:
            RunFolderError: one is missing or changed.
        """
        files = self._read_record().get("files", {})
        if not isinstance(files, dict) or not all(isinstance(v, str) for v in files.values()):
            raise RunFolderError(
                f"{self.config}: the files must be names with checksums, got {files!r:.60}. "
                "Restore the file from a copy."
            )
        for name, expected in files.items():
            path = self.path / Path(name).name  # never a file outside the folder
            try:
                actual = _hash(read_bytes(path, inside=self.path, limit=_MAX_KEPT))
            except OSError as error:
                why = getattr(error, "strerror", None) or error
                raise RunFolderError(
                    f"{path}: the file must be readable, got: {why}. Restore it from a copy."
                ) from error
            if actual != expected:
                raise RunFolderError(
                    f"{path}: the file must be as it was written, got damaged content "
                    f"(SHA-256 {actual:.12} instead of {expected:.12}). Restore it from a copy."
                )

    def run_files(self) -> dict[str, str]:
        """The texts of the files that came with the configuration, by their names.

        Raises:
            RunFolderError: as `check_kept`.
        """
        self.check_kept()
        names = self._read_record().get("files", {})
        return {n: read_text(self.path / n, _MAX_KEPT, inside=self.path) for n in names}

    def weights(self) -> Path:
        """``model.safetensors``.

        Raises:
            RunFolderError: the run ended before it was written.
        """
        if not os.path.lexists(self.model):
            raise RunFolderError(
                f"{self.path}: a run folder must hold {self.model.name}, got none: the run ended "
                f"before its first epoch did. Go on with: linrnn train --resume {self.path}"
            )
        return self.model

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training into the folder; the lock ends with the process.

        Raises:
            InUseError: another process trains into it.
            RunFolderError: the folder cannot be written to, or a link leads out of it.
        """
        self.check_below()
        with locked_folder(self.path):
            yield

    def check_below(self) -> None:
        """Raise unless what lies in the folder is written to in the folder.

        Raises:
            RunFolderError: a folder in it is a link, or is none.
        """
        for below in (self.last.parent, self.tensorboard, self.stream):
            try:
                check_folder(below, inside=self.path)
            except OSError as error:
                raise RunFolderError(
                    f"{below}: it must be a folder of the run, got: {error.strerror or error}. "
                    "Copy the run without links."
                ) from error

    def wait_until_free(self, seconds: float) -> None:
        """Wait until no process trains into the folder, so long at most."""
        end = time.monotonic() + seconds
        while os.path.lexists(self.path / _LOCK) and time.monotonic() < end:
            try:
                with self.locked():
                    return
            except InUseError:
                time.sleep(0.1)

    def write_environment(self, plan: Plan) -> None:
        """Record versions, seed, threads and device."""
        packages = ("torch", "numpy", "lightning", "safetensors")
        versions = {"linrnn": __version__, "python": platform.python_version()}
        versions |= {name: importlib.metadata.version(name) for name in packages}
        environment = {
            "versions": versions,
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "seed": plan.seed,
            "threads": plan.threads,
            "device": plan.device,
            "devices": plan.devices,
            "scan backends": backend_report(),
            "start_step": plan.start_step,
        }
        _write_json(self.environment, environment)

    def write_result(self, result: Result) -> None:
        """Record the end of the run."""
        values = asdict(result)
        del values["folder"]  # folders are moved and renamed
        _write_json(self.result, values | {"sha256": _seal(values)})

    def read_result(self) -> Result | None:
        """Read what `write_result` recorded, or None if the run is not finished."""
        if not os.path.lexists(self.result):
            return None
        values = _read_json(self.result)
        # folders of the first days are without
        expected = values.pop("sha256", None)
        if expected not in (None, _seal(values)):
            raise RunFolderError(
                f"{self.result}: the result must be as it was written, got other numbers. "
                "Remove the file and continue the run with --resume, which tests again."
            )
        fix = "Remove the file and continue the run with --resume, which tests again."
        got = "got other fields ({})"
        with reading(self.result, RunFolderError, "be as it was written", fix, got=got):
            fields = record("result", Result, values, left_out=["folder"])
            result = Result(**fields, folder=self.path)
            # a bank has no steps
            counts = (result.best_step, result.steps, result.n_state, result.skipped)
            if result.n_parameters < 1 or min(*counts, result.rollbacks) < 0:
                raise ValueError("a number of steps or sizes that is none")
        return result


def _of_config(config: Config) -> Path:
    return next_free(f"{config.task}-{'-'.join(labels(config.mixer))}")


def next_free(stem: str) -> Path:
    """Make the next free folder ``runs/<stem>-<n>``.

    Raises:
        RunFolderError: it cannot be made.
    """
    for n in itertools.count(1):
        path = Path("runs", f"{stem}-{n}")
        try:
            make_folder(path, new=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunFolderError(
                f"{path}: the run folder must be one that can be made, got: {error.strerror}. "
                "Name another with --out."
            ) from error
        return path
    raise AssertionError("itertools.count ended")


def check_free(out: Path, names: Collection[str] | None = None) -> None:
    """Raise unless a folder is new, empty, or one in which a run was begun.

    Args:
        out: the folder.
        names: of files that it may have then; None where they are not known yet.

    Raises:
        RunFolderError: it is none of these.
    """
    if out.exists() and not out.is_dir():
        raise RunFolderError(
            f"{out}: the run folder must be a folder, got a file. Choose another --out."
        )
    if out.is_dir() and any(out.iterdir()) and not _only_begun(out, names):
        fix = f"Continue it with --resume {out}, or choose another --out."
        if not (out / "config.json").is_file():
            fix = "Choose another --out."
        raise RunFolderError(f"{out}: the run folder must be new or empty, got files in it. {fix}")


def claim(out: Path, names: Collection[str] = ()) -> Path:
    """Make a folder for a run, which must be new or empty.

    Args:
        out: the folder.
        names: of files that may be in it.

    Raises:
        RunFolderError: files are in it, or it cannot be made.
    """
    check_free(out, names)
    try:
        make_folder(out)
    except OSError as error:
        raise RunFolderError(
            f"{out}: the run folder must be one that can be made, got: {error}. "
            "Choose another --out."
        ) from error
    return out


def _begun(files: Mapping[str, str], fill: object) -> set[str]:
    """Names of files that a folder may have before it has its configuration."""
    return {*files, *(() if fill is None else _FILLED)}


def _only_begun(out: Path, names: Collection[str] | None) -> bool:
    """Whether all in a folder is from a run that was killed before it had its configuration."""
    present = {path.name for path in out.iterdir()}
    if names is None:
        return _LOCK in present and "config.json" not in present
    return _LOCK in present and all(n in names or n.startswith(".") for n in present)


def _seal(values: Any) -> str:
    return _hash(json.dumps(values, sort_keys=True).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_json(path: Path, values: Any) -> None:
    write_atomically(path, (json.dumps(values, indent=2) + "\n").encode())


def _read_json(path: Path) -> dict[str, Any]:
    with reading(path, RunFolderError, "be complete JSON", "Restore it from a copy."):
        values = read_json(path, inside=path.parent)
    if not isinstance(values, dict):
        raise RunFolderError(f"{path}: the file must hold a JSON table, got {show(values, 40)}.")
    return values

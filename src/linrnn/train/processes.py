"""Starting the processes that train one run with this one, and ending with them.

This process is the first of them: it holds the run's lock, writes, reports, and decides when to
save and to stop. The others find everything in the run folder. They end when this one is no more,
because a pipe does; and this one ends when one of them has.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from linrnn._options.import_path import is_import_path
from linrnn.backbone.pattern import pattern
from linrnn.errors import ArgumentError, LinrnnError, ProcessError
from linrnn.train._together import ALONE, Group
from linrnn.train.config import Config
from linrnn.train.context import Run

READY = "ready"
"""The line that a process prints when it has read the run."""

_SECONDS = 10.0  # for a process to end by itself once there is nothing left to do
_LINES = 50  # of what it said last


class Job(NamedTuple):
    """The job of a process that trains, sent as one line of JSON."""

    folder: str
    train: Mapping[str, Any]
    """Options of `TrainConfig`: the threads found, and what resuming changed."""
    rank: int
    store: str
    """A file by which the processes find one another."""


class Peer(NamedTuple):
    """A process that was started."""

    rank: int
    process: "subprocess.Popen[str]"
    last_lines: deque[str]
    """Its last lines."""
    listener: threading.Thread


@contextmanager
def processes(run: Run) -> Iterator[Group]:
    """Inside, as many processes train as the run asks for, of which this is the first.

    Raises:
        ArgumentError: this program has a process group already.
        ProcessError: another of the processes ended in the middle.
    """
    size = run.config.train.devices
    if size == 1:
        yield ALONE
        return
    if dist.is_initialized():
        raise ArgumentError(
            f"Config: train.devices must be 1 in a program with a process group, got {size}. "
            "Leave starting the processes to linrnn, or use linrnn.fit."
        )
    with TemporaryDirectory() as place:
        job = Job(str(run.folder.path.absolute()), asdict(run.config.train), 0, f"{place}/store")
        peers: list[Peer] = []
        try:
            for rank in range(1, size):
                peers.append(_start(job._replace(rank=rank), run.config))
            _wait_until_ready(peers)
            with joined(job) as group:
                yield group
            _wait_for_end(peers)
        except RuntimeError as error:
            if not isinstance(error, LinrnnError):  # it may be that nobody answers any more
                _raise_first_fault(peers, error)
            raise
        finally:
            _end(peers)


@contextmanager
def joined(job: Job) -> Iterator[Group]:
    """Inside, this process can talk to the others."""
    size = job.train["devices"]
    store = dist.FileStore(job.store, size)  # type: ignore[attr-defined]
    # plain values go by the CPU also where gradients go from GPU to GPU
    gpu = job.train["device"] != "cpu" and torch.cuda.is_available()
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=job.rank, world_size=size)
    try:
        yield Group(job.rank, size)
    finally:
        dist.destroy_process_group()


def environment_for(*configs: Config) -> dict[str, str]:
    """The environment of this process, with the paths of mixers that are import paths."""
    parts = [str(part) for config in configs for part in pattern(config.mixer)]
    paths = list(dict.fromkeys(part for part in parts if is_import_path(part)))
    if not paths:
        return dict(os.environ)
    where = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": where, "LINRNN_TRUST": ",".join(paths)}


def reason(code: int, errors: list[str]) -> str:
    """Why a process ended, by its exit code and its last lines."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return errors[-1] if errors else f"exit code {code}"


def _start(job: Job, config: Config) -> Peer:
    process = subprocess.Popen(
        [sys.executable, "-m", "linrnn.train._worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_for(config),
        start_new_session=True,  # Ctrl-C on the terminal comes to this process alone
    )
    last_lines: deque[str] = deque(maxlen=_LINES)
    assert process.stdin is not None
    assert process.stderr is not None
    listener = threading.Thread(target=last_lines.extend, args=(process.stderr,), daemon=True)
    listener.start()
    with suppress(BrokenPipeError):  # it has ended, and will be asked why
        process.stdin.write(json.dumps(job._asdict()) + "\n")
        process.stdin.flush()  # and left open: its end is that of this process
    return Peer(job.rank, process, last_lines, listener)


def _wait_until_ready(peers: list[Peer]) -> None:
    for peer in peers:
        assert peer.process.stdout is not None
        for line in peer.process.stdout:
            if line.strip() == READY:
                break
        else:
            raise _fault(peer, len(peers) + 1)


def _wait_for_end(peers: list[Peer]) -> None:
    for peer in peers:
        try:
            code = peer.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            continue  # it has nothing left to do, and is ended
        if code:
            raise _fault(peer, len(peers) + 1)


def _raise_first_fault(peers: list[Peer], error: BaseException) -> None:
    """Raise what the first process said that ended, if any has, or does so within some seconds."""
    for seconds in (_SECONDS / 10, _SECONDS):
        for peer in peers:
            try:
                if peer.process.wait(seconds / max(len(peers), 1)):
                    raise _fault(peer, len(peers) + 1) from error
            except subprocess.TimeoutExpired:
                continue


def _fault(peer: Peer, size: int) -> ProcessError:
    code = peer.process.wait()
    peer.listener.join(_SECONDS)
    why = reason(code, [line.strip() for line in peer.last_lines if line.strip()])
    return ProcessError(f"training: process {peer.rank + 1} of {size} must go on, got: {why}")


def _end(peers: list[Peer]) -> None:
    """No process outlives this one, nor what is inside of `processes`."""
    for peer in peers:
        peer.process.kill()
    for peer in peers:
        peer.process.wait()
        peer.listener.join(_SECONDS)
        for pipe in (peer.process.stdin, peer.process.stdout, peer.process.stderr):
            assert pipe is not None
            pipe.close()

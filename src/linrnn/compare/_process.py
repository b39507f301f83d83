"""A run in a separate process, which stops when this one is interrupted or ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from linrnn._process.signals import stop_signals
from linrnn.errors import InterruptedRunError
from linrnn.train import Config
from linrnn.train.config import to_json
from linrnn.train.processes import environment_for, reason


def train_in_process(folder: Path, config: Config, jobs: int = 1) -> str | None:
    """Train, or go on with, one run; None where it came to its end, else why it did not.

    The first Ctrl-C or SIGTERM is handed on: the run finishes its step and saves. A second one
    ends it at once.

    Args:
        folder, config: of the run.
        jobs: how many runs share the processors, of which each takes its part; ``OMP_NUM_THREADS``
            and ``train.threads`` come first.

    Raises:
        InterruptedRunError: asked to stop.
    """
    signals: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def hand_on(number: int, *_: Any) -> None:
        signals.append(number)
        for process in running:
            process.send_signal(signal.SIGTERM if len(signals) == 1 else signal.SIGKILL)

    with ExitStack() as resources:
        resources.enter_context(stop_signals(hand_on))
        environment = environment_for(config)
        if jobs > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // jobs)))
        process = start("linrnn.compare._worker", [str(folder)], resources, environment)
        running.append(process)
        if signals:
            process.terminate()
        try:
            _, errors = process.communicate(json.dumps(to_json(config)))
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if signals or code == InterruptedRunError.exit_code:
        raise InterruptedRunError(f"stopped in {folder}; the same command continues there.")
    return reason(code, errors.strip().splitlines()) if code else None


def start(
    module: str,
    arguments: list[str],
    resources: ExitStack,
    environment: dict[str, str],
    errors: int | None = subprocess.PIPE,
) -> "subprocess.Popen[str]":
    """The process of a module, and in ``resources`` a pipe that ends with this process.

    Nothing is written to the pipe, whose end is the last argument: see `stop_at_end_of`.

    Args:
        module: to run.
        arguments: before the pipe.
        resources: when they end, the process is waited for.
        environment: of the process.
        errors: where its standard error goes; None: where ours goes.
    """
    command = [sys.executable, "-m", module, *arguments]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": errors, "text": True}
    options["env"] = environment
    if os.name == "nt":
        return resources.enter_context(subprocess.Popen(command, **options))
    read, write = os.pipe()
    resources.callback(os.close, write)
    try:
        # a new session: Ctrl-C on the terminal comes to us alone, who hand it on once
        return resources.enter_context(
            subprocess.Popen(
                [*command, str(read)], pass_fds=[read], start_new_session=True, **options
            )
        )
    finally:
        os.close(read)


def stop_at_end_of(*pipes: int) -> None:
    """Ask this process to stop, as SIGTERM does, when a pipe is closed by whoever started it."""

    def wait(pipe: int) -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    for pipe in pipes:
        threading.Thread(target=wait, args=[pipe], daemon=True).start()

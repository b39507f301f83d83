"""A run in a process of its own, which stops when this one is asked to, or is no more."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from linrnn._signals import stop_signals
from linrnn.errors import InterruptedRunError
from linrnn.train import Config
from linrnn.train._config import to_json
from linrnn.train._processes import environment_for, reason


def train_in_process(folder: Path, config: Config) -> str | None:
    """Train, or go on with, one run; None where it came to its end, else why it did not.

    The first Ctrl-C or SIGTERM is handed on: the run finishes its step and saves. A second one
    ends it at once.

    Raises:
        InterruptedRunError: asked to stop.
    """
    asked: list[int] = []
    running: list[subprocess.Popen[str]] = []

    def hand_on(number: int, *_: Any) -> None:
        asked.append(number)
        for process in running:
            process.send_signal(signal.SIGTERM if len(asked) == 1 else signal.SIGKILL)

    with ExitStack() as held:
        held.enter_context(stop_signals(hand_on))
        process = _start(folder, held, environment_for(config))
        running.append(process)
        if asked:
            process.terminate()
        try:
            _, errors = process.communicate(json.dumps(to_json(config)))
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if asked or code == InterruptedRunError.exit_code:
        raise InterruptedRunError(f"compare: stopped in {folder}; the same command goes on there.")
    return reason(code, errors.strip().splitlines()) if code else None


def _start(folder: Path, held: ExitStack, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """The process, and in ``held`` a pipe that ends with this process: nothing is written to it."""
    command = [sys.executable, "-m", "linrnn.compare._worker", str(folder)]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options["env"] = environment
    if os.name == "nt":
        return held.enter_context(subprocess.Popen(command, **options))
    read, write = os.pipe()
    held.callback(os.close, write)
    try:
        # a session of its own: Ctrl-C on the terminal comes to us alone, who hand it on once
        return held.enter_context(
            subprocess.Popen(
                [*command, str(read)], pass_fds=[read], start_new_session=True, **options
            )
        )
    finally:
        os.close(read)

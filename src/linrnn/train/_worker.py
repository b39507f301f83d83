"""One of the processes that train a run, other than the first: ``-m linrnn.train._worker``."""

import json
import os
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path

from linrnn import learn
from linrnn._process.allocator import keep_memory
from linrnn._process.signals import NoStopRequest
from linrnn.errors import LinrnnError
from linrnn.train._recover import usable_checkpoint
from linrnn.train._report import Silent
from linrnn.train._run import steps
from linrnn.train.config import TrainConfig
from linrnn.train.context import Run
from linrnn.train.folder import RunFolder
from linrnn.train.metrics import NoRecords
from linrnn.train.model import build_model, build_task
from linrnn.train.processes import READY, Job, joined
from linrnn.train.seeding import process_settings


def main() -> None:
    """Read the run, say so, and train until it is done or the first process is no more."""
    keep_memory()
    stop = NoStopRequest()  # the first process says when
    stop.renew()
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    code = 0
    try:
        run = read_run(job)
        threads = run.plan.threads  # the plan counts the data, which may fail
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        os.dup2(2, 1)  # nobody reads the one any more
        with process_settings(threads), joined(job) as group:
            steps(run, group, NoRecords(), stop)
    except LinrnnError as error:
        code = 1
        sys.stderr.write(f"{error}\n")
    except Exception:  # noqa: BLE001  whatever it is, the first process says it
        code = 1
        sys.stderr.write(traceback.format_exc())
    sys.stderr.flush()
    os._exit(code)  # a thread waits for the end of the first process


def read_run(job: Job) -> Run:
    """The run as its folder has it, with the settings of this training."""
    folder = RunFolder(Path(job.folder))
    config = replace(folder.load_config(), train=TrainConfig(**job.train))
    start = usable_checkpoint(folder, Silent(), fallback=False)
    task = build_task(config, folder)
    model = build_model(config, task)
    return Run(
        config=config,
        task=task,
        model=model,
        folder=folder,
        splits=task.datasets(),
        learner=learn.build(config.learner, config.learner_options),
        start=start,
        reporter=Silent(),
    )


def _end_with_the_first() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()

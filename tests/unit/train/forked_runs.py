"""The command line in processes that can be killed at any place, without an import for each.

Run as a script this is a server: it imports everything once, on one thread, and forks for every
job that a line on its standard input asks for. `Server` is its client.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

SCRIPT = __file__
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# which argument of these events is the folder that the first is looked up in
HANDLE = {"os.rename": 2, "os.link": 2, "os.remove": 1, "os.mkdir": 2}
CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.chmod", "shutil.copyfile"}


class Server:
    """Starts commands in forked processes and waits for them."""

    def __enter__(self):
        one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | one,
        )
        assert json.loads(self._process.stdout.readline()) == "ready"
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def start(self, argv, **job):
        """The process id of ``linrnn ARGV``; see `work` for what else a job can ask for."""
        return self._ask({"argv": [str(a) for a in argv], **job})

    def wait(self, pid):
        """The exit code of a process that was started, or minus the signal that ended it."""
        return self._ask({"wait": pid})

    def run(self, argv, **job):
        return self.wait(self.start(argv, **job))

    def _ask(self, job):
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def below(handle, path):
    """A path in an open folder as one that begins at the root."""
    if handle is None or handle < 0:
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{handle}"), path)


class Boundaries:
    """Counts the places where a process could be killed, and at one of them does it.

    Args:
        folder: only what happens to files in it counts.
        at: which of them, from 1; 0 for none.
        number: of the signal sent there.
        names: file that gets a line for each.
    """

    def __init__(self, folder, at, number, names):
        self.folder, self.at, self.number = folder, at, number
        self.names = names and os.open(names, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.count = 0

    def __call__(self, name):
        self.count += 1
        if self.names:
            os.write(self.names, f"{name}\n".encode())
        if self.count == self.at:
            os.kill(os.getpid(), self.number)

    def audit(self, event, args):
        """Before Python changes a file, whichever module asks for it."""
        if event == "open":
            path, _, flags = args
            change = isinstance(flags, int) and flags & WRITING
        else:
            path, change = (args or [None])[0], event in CHANGES
            if change and (handle := HANDLE.get(event)):
                path = below(args[handle], path)
        if event == "os.mkdir":
            change = not os.path.isdir(path)
        elif event == "os.remove":
            change = os.path.exists(path)
        if change and isinstance(path, str | os.PathLike):
            name = os.path.relpath(os.fspath(path), self.folder)
            if not name.startswith(".."):
                self(f"before {event} {name}")

    def before(self, owner, name):
        """Whenever a function is about to be called."""
        function = getattr(owner, name)

        def wrapped(*args, **options):
            self(f"before {name}")
            return function(*args, **options)

        setattr(owner, name, wrapped)


class Torn:
    """A file whose every write is two, with a boundary between them."""

    def __init__(self, file, boundary):
        self._file, self._boundary = file, boundary

    def write(self, data):
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._boundary("inside write")
        self._file.write(data[half:])

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


def hook(boundary):
    """Pass a boundary wherever files, or the weights in memory, are about to change."""
    import torch

    from linrnn.train._bookkeeping import Bookkeeping
    from linrnn.train._run_module import RunModule

    sys.addaudithook(boundary.audit)
    fdopen, opening = os.fdopen, os.open

    def torn(handle, mode="r", **options):
        file = fdopen(handle, mode, **options)
        return file if mode == "rb" else Torn(file, boundary)

    def open_below(path, flags, *args, dir_fd=None):
        if dir_fd is not None:  # which the event of this call does not say
            boundary.audit("open", (below(dir_fd, path), None, flags))
        return opening(path, flags, *args, dir_fd=dir_fd)

    os.fdopen, os.open = torn, open_below
    boundary.before(os, "fsync")  # of a file before it is renamed, of its folder after that
    boundary.before(RunModule, "training_step")
    boundary.before(RunModule, "validation_step")
    boundary.before(torch.nn.utils, "clip_grads_with_norm_")
    boundary.before(Bookkeeping, "on_train_batch_end")


def write_order(path):
    """A line for each step that is taken: its number, and a hash of its batch."""
    from linrnn.train._run_module import RunModule

    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = RunModule.training_step

    def training_step(self, batch, batch_idx):
        digest = hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in batch))
        os.write(file, f"{self.done_steps} {digest.hexdigest()}\n".encode())
        return step(self, batch, batch_idx)

    RunModule.training_step = training_step


def break_it(how, boundary):
    """Take a precaution away, to see that it is missed."""
    from linrnn._files import storage
    from linrnn.train import _recover, metrics
    from linrnn.train import folder as _folder

    def in_place(path, data, *, keep=None, inside=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        with Torn(open(path, "wb"), boundary) as file:
            file.write(data)

    if how == "written in place":
        for module in (storage, _folder, metrics):
            module.write_atomically = in_place
    elif how == "best not completed":
        _recover._complete_best = lambda *_: None
    else:
        raise ValueError(how)


def slow_down(seconds):
    """Let every step take so long."""
    from linrnn.train._run_module import RunModule

    step = RunModule.training_step

    def training_step(self, batch, batch_idx):
        time.sleep(seconds)
        return step(self, batch, batch_idx)

    RunModule.training_step = training_step


def work(job):
    """Run a job in a forked process; return the exit code.

    Keys of a job: ``argv``; ``log``, a file for what is printed; ``folder``, in which boundaries
    are counted; ``at``, which of them to stop at; ``signal``, how; ``names``, a file for them;
    ``order``, a file for the data seen; ``step_seconds``, how long a step takes at least;
    ``broken``, see `break_it`.
    """
    from linrnn import cli

    log = os.open(job.get("log", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    boundary = Boundaries(
        os.path.realpath(job.get("folder", os.devnull)),
        job.get("at", 0),
        job.get("signal", signal.SIGKILL),
        job.get("names"),
    )
    if "step_seconds" in job:
        slow_down(job["step_seconds"])
    if "order" in job:
        write_order(job["order"])
    if "folder" in job:
        hook(boundary)
    if "broken" in job:
        break_it(job["broken"], boundary)
    return cli.main(job["argv"])


def fork(job):
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work(job)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 71)


def wait(pid):
    end = time.monotonic() + 300
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "too slow"


def warm_up():
    """Train once, so that what is imported or built at first use is there for every job."""
    from linrnn import recipes, train
    from linrnn.train import _plots

    _plots.draw_plots = lambda *_: None  # plots take most of the time of so small a run
    tiny = train.ModelConfig(d_model=4, n_layers=1)
    config = recipes.load("digits").config
    short = train.TrainConfig(epochs=1, batch_size=2000, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        train.run(replace(config, model=tiny, train=short), out=os.path.join(folder, "run"))


def serve():
    import torch
    import torch.utils.tensorboard

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    warm_up()

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer("ready")
    for line in sys.stdin:
        job = json.loads(line)
        answer(wait(job["wait"]) if "wait" in job else fork(job))
    os._exit(0)  # there is nothing to tidy up


if __name__ == "__main__":
    serve()

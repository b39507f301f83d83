"""Fixtures for every test: the seed, the share of the processor, fresh interpreters."""

import gc
import getpass
import importlib.util
import json
import logging
import os
import pkgutil
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import annotation_checks  # noqa: F401 - before linrnn is imported

# isort: split
import pytest
import torch
from hypothesis import settings

import linrnn
import quick_sample
from warm import Warm

ROOT = Path(__file__).parents[1]

# An editable install keeps the sources in one folder and the native kernels in another; the
# shape checker's import hook only sees the first.
linrnn.__path__ = pkgutil.extend_path(linrnn.__path__, "linrnn")

# as in an environment that was activated: commands in messages have their short names
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])

# What lies in the system's folder for temporary files ends with the session, whoever leaves it:
# loggers of Stable-Baselines3, and processes that tests kill. Caches and pytest's folders stay.
SYSTEM_FOLDER = tempfile.gettempdir()
USER = getpass.getuser()
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", SYSTEM_FOLDER)
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{SYSTEM_FOLDER}/torchinductor_{USER}")
# a kernel whose sources and compiler are the same has the same machine code
os.environ.setdefault("TRITON_CACHE_DIR", f"{SYSTEM_FOLDER}/triton_{USER}")
tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="linrnn-")
os.chmod(tempfile.tempdir, 0o711)  # tests give up the rights of root, and still go through it

# what commands say is computed, and not what an earlier run of the tests kept
os.environ["LINRNN_ANSWERS"] = "0"

# the same examples everywhere: a failure on one machine can be repeated on another
settings.register_profile("linrnn", derandomize=True, deadline=None)
settings.load_profile("linrnn")


# torch.manual_seed leaves word for devices that may come, each time with the stack of its caller as
# a text: a millisecond, and tests call it some hundred thousand times
for devices in (torch.cuda, torch.xpu, torch.mtia):
    if not devices.is_available():
        devices.manual_seed_all = lambda seed: None

# What a disk would lose shows where flushes are recorded, in tests/unit/power_cut.py; elsewhere
# they only wait for it. A short training run has 25 of them, which took a fifth of its time.
os.fsync = lambda handle: os.fstat(handle) and None


def pytest_configure(config):
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    gc.disable()  # next to nothing of what collecting makes is garbage


def pytest_unconfigure(config):
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)


def pytest_ignore_collect(collection_path, config):
    """Leave out files in which no test is ``unchecked`` where -m asks for these alone."""
    expression = config.option.markexpr
    if "unchecked" not in expression or "not unchecked" in expression:
        return None
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and b"unchecked" not in collection_path.read_bytes() else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    """Leave cases of tests marked ``sampled`` to the slow tests, unless -k names them."""
    for item in () if config.option.keyword else quick_sample.left_out(items):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Look for garbage more rarely, and not among the million objects that collecting made.

    A tenth of the time went into that. Tests that ask for what is alive see what came afterwards.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def warnings_logged():
    """Texts of warnings that are logged from here on.

    pytest's caplog would put its handlers at every logger three times a test, of which libraries
    have hundreds: half of what a small test takes. So pyproject.toml leaves it out.
    """
    texts = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    yield texts
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def root():
    """The root of the repository."""
    return ROOT


@pytest.fixture
def python():
    """Run code in a fresh interpreter; the value of its variable ``result`` comes back."""

    def run(code: str, **environment: str):
        script = f"{code}\nimport json\nprint('\\n' + json.dumps(result))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | environment,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def _warm_processes():
    processes = {}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture
def warm(_warm_processes, tmp_path_factory):
    """As ``python`` does, in an interpreter that had imported PyTorch, Triton and the laws.

    Whether Triton interprets its kernels is decided then; other variables are set behind it.
    """

    def run(code: str, *, TRITON_INTERPRET: str, **environment: str):
        if TRITON_INTERPRET not in _warm_processes:
            process = Warm({"TRITON_INTERPRET": TRITON_INTERPRET})
            _warm_processes[TRITON_INTERPRET] = process
        script = f"{code}\nimport json\nprint('\\n' + json.dumps(result))"
        folder = tmp_path_factory.mktemp("warm")
        status, out, err = _warm_processes[TRITON_INTERPRET].run(script, folder, environment)
        assert status == 0, err
        return json.loads(out.splitlines()[-1])

    return run


@pytest.fixture
def packages(python):
    """Which packages, but for the standard library, code imports in a fresh interpreter.

    What a start takes follows from that; a clock would judge how busy the machine is.
    """

    def imported(code: str, before: str = "import sys") -> list[str]:
        return python(f"""
import sys
{before}
begun = set(sys.modules)
{code}
tops = {{name.partition(".")[0] for name in set(sys.modules) - begun}}
standard = set(sys.stdlib_module_names)
result = sorted(top for top in tops - standard if not top.startswith("_sysconfigdata"))
""")

    return imported


@pytest.fixture
def command():
    """Run the command ``linrnn`` in a fresh interpreter."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "linrnn", *args],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def hooks():
    """The functions of the site's hook file, imported as mkdocs imports it."""
    pytest.importorskip("mkdocs")
    path = ROOT / "docs" / "hooks.py"
    spec = importlib.util.spec_from_file_location("docs_hooks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Whatever value a sealed file of a run holds, a command ends with its answer or one line."""

import socket

import fuzzing
import pytest
import sealed
from fuzzing import quick_and_small, share
from sealed import CASES, COMPARED, WATCH

from linrnn._process import signals

pytestmark = pytest.mark.unchecked

QUICK = {"sealed runs": 170, "sealed comparisons": 5}
SLOW = 10_000
for NAME, COUNT in QUICK.items():
    share(NAME, COUNT)
BUDGETS = pytest.mark.parametrize(
    "times", [1, pytest.param(SLOW / sum(QUICK.values()), marks=pytest.mark.slow)], ids=str
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs of every kind, and the data they are of."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        (place / "data").mkdir()
        patch.setenv("LINRNN_DATA", str(place / "data"))
        patch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)
        sealed.make(place)
        yield place


@pytest.fixture(autouse=True)
def _no_more_than(monkeypatch):
    """Fix the memory limits, so that they are the same on every machine."""
    for module in ("linrnn.train.model", "linrnn.train.data"):
        monkeypatch.setattr(f"{module}.available", lambda: 1 << 30)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """A task that a file names may want to download its data."""

    def refuse(*args):
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def one_step(monkeypatch):
    """A run that goes on stops after one step: a file may ask for any number."""

    class Asked(signals.StopRequest):
        def __init__(self):
            super().__init__()
            self.requested = True

    monkeypatch.setattr("linrnn.train._run.StopRequest", Asked)


def check(made, place, case, files):
    argv = sealed.sandbox(made, place, case, files)
    # a state lies beside the run; nothing else is written but the run and what tasks keep
    own = place if "--state" in case.verb else place / case.kind
    with quick_and_small(seconds=5), WATCH(own, made / "data"):
        answer = sealed.command(argv, case.stdin)
    assert answer.code in (0, 1, 2, 130), answer
    assert "Traceback" not in answer.err
    if answer.code in (1, 2):
        *_, last = answer.err.splitlines()  # before it may stand that something is downloaded
        assert last.startswith("linrnn: "), answer


@BUDGETS
def test_commands_on_runs(times, made, tmp_path, one_step):
    cases = sealed.damage(made, CASES)
    fuzzing.run("sealed runs", times, cases, lambda c: check(made, tmp_path / "x", *c))


@pytest.mark.parametrize(
    ("name", "broken", "files"),
    [
        ("_options.schema._fits", lambda hint, value: True, ["result.json"]),
        (
            "_files.reading._is_about_content",
            lambda reason: False,
            ["checkpoints/last.safetensors"],
        ),
    ],
)
def test_what_is_not_checked_is_caught(name, broken, files, made, tmp_path, monkeypatch, one_step):
    monkeypatch.setattr(f"linrnn.{name}", broken)
    cases = sealed.damage(made, [c for c in CASES if c.file in files])
    with pytest.raises(BaseException, match=r"."):
        fuzzing.run(
            "sealed runs", 1, cases, lambda c: check(made, tmp_path / "x", *c), shrink=False
        )


def test_a_file_outside_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="files outside were touched"), WATCH(tmp_path / "run"):
        (tmp_path / "other").write_text("x")
    assert WATCH.inside is None


@BUDGETS
def test_comparisons(times, made, tmp_path, monkeypatch):
    monkeypatch.setattr("linrnn.compare._runs.train_in_process", lambda *args: "not here")
    cases = sealed.damage(made, COMPARED)
    fuzzing.run("sealed comparisons", times, cases, lambda c: check(made, tmp_path / "x", *c))

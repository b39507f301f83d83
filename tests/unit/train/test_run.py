import json
import math
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from linrnn import train
from linrnn.errors import InterruptedRunError, NonFiniteError, RunFolderError
from linrnn.tasks.digits import Digits
from linrnn.train.seeding import process_settings

FILES = (
    "config.json",
    "environment.json",
    "metrics.csv",
    "model.safetensors",
    "checkpoints/last.safetensors",
    "checkpoints/best.safetensors",
    "result.json",
    "curves.png",
    "curves.svg",
    "eigenvalues.png",
    "eigenvalues.svg",
    "memory.png",
    "memory.svg",
    "samples.png",
    "samples.svg",
)


def same_weights(folder, other):
    """Best weights, last weights and optimiser state are the same bits."""
    for file in ("model.safetensors", "checkpoints/last.safetensors"):
        ours, theirs = load_file(folder / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        for name, x in ours.items():
            assert x.dtype == theirs[name].dtype
            assert torch.equal(x, theirs[name]), (file, name)


def rows(folder):
    """metrics.csv without the column of seconds."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [line.rsplit(",", 1)[0] for line in lines]


@pytest.mark.parametrize(
    "step", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 10)), 8, 14]
)
def test_resume_after_ctrl_c_gives_the_same_bits(tiny, finished, signal_at, tmp_path, step):
    with pytest.raises(InterruptedRunError):
        train.run(tiny, out=tmp_path / "run", reporter=signal_at(step))
    result = train.resume(tmp_path / "run")
    same_weights(tmp_path / "run", finished.folder)
    assert rows(tmp_path / "run") == rows(finished.folder)
    assert result.test_metric == finished.test_metric
    assert result.test_loss == finished.test_loss


def test_resume_twice_in_one_epoch_gives_the_same_bits(tiny, finished, signal_at, tmp_path):
    with pytest.raises(InterruptedRunError):
        train.run(tiny, out=tmp_path / "run", reporter=signal_at(6))
    with pytest.raises(InterruptedRunError):
        train.resume(tmp_path / "run", reporter=signal_at(8))
    train.resume(tmp_path / "run")
    same_weights(tmp_path / "run", finished.folder)
    assert rows(tmp_path / "run") == rows(finished.folder)


@pytest.mark.parametrize("step", [7, 10])
def test_resume_after_a_kill_gives_the_same_bits(tiny, finished, crash_at, tmp_path, step):
    with pytest.raises(ConnectionAbortedError):
        train.run(tiny, out=tmp_path / "run", reporter=crash_at(step))
    train.resume(tmp_path / "run")
    same_weights(tmp_path / "run", finished.folder)
    assert rows(tmp_path / "run") == rows(finished.folder)


def test_resume_after_a_kill_with_checkpoints_inside_an_epoch(
    every_step, finished, crash_at, tmp_path
):
    with pytest.raises(ConnectionAbortedError):
        train.run(every_step, out=tmp_path / "run", reporter=crash_at(9))
    train.resume(tmp_path / "run")
    same_weights(tmp_path / "run", finished.folder)


def test_resume_drops_rows_written_after_the_checkpoint(tiny, finished, crash_at, tmp_path):
    with pytest.raises(ConnectionAbortedError):
        train.run(tiny, out=tmp_path / "run", reporter=crash_at(7))
    with open(tmp_path / "run" / "metrics.csv", "a") as file:
        file.write("2,10,0.5,0.5,0.5,0.5,0.001,9.0\n3,15,0.")  # the second cut off by a crash
    train.resume(tmp_path / "run")
    assert rows(tmp_path / "run") == rows(finished.folder)


def test_resume_of_a_run_trained_to_the_end_only_finishes_it(tiny, finished, monkeypatch, tmp_path):
    def fail(self, y, target):
        raise ConnectionAbortedError

    class FailAfterTraining(train.Reporter):
        def trained(self):
            monkeypatch.setattr(Digits, "scores", fail)

    with pytest.raises(ConnectionAbortedError):
        train.run(tiny, out=tmp_path / "run", reporter=FailAfterTraining())
    monkeypatch.undo()
    result = train.resume(tmp_path / "run")
    assert result.test_metric == finished.test_metric
    assert (tmp_path / "run" / "result.json").is_file()


def test_resume_of_a_finished_run_returns_its_result(finished):
    before = finished.folder.stat().st_mtime_ns
    assert train.resume(finished.folder) == finished
    assert finished.folder.stat().st_mtime_ns == before


@pytest.mark.unchecked
def test_interruption_says_how_to_continue(tiny, signal_at, tmp_path):
    with pytest.raises(
        InterruptedRunError,
        match=rf"stopped after step 2 of 15.*linrnn train --resume {tmp_path}/run$",
    ) as caught:
        train.run(tiny, out=tmp_path / "run", reporter=signal_at(2, signal.SIGTERM))
    assert caught.value.exit_code == 130


def test_run_leaves_every_file(finished):
    for name in FILES:
        assert (finished.folder / name).stat().st_size > 0, name
    assert list((finished.folder / "tensorboard").glob("events.*"))


def test_run_records_what_it_was(finished, tiny):
    record = json.loads((finished.folder / "config.json").read_text())
    assert record["config"]["mixer_options"] == {"d_state": 4}
    assert record["config"]["train"]["threads"] == torch.get_num_threads()
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["seed"] == tiny.seed
    result = json.loads((finished.folder / "result.json").read_text())
    assert result["test_metric"] == finished.test_metric
    # 4 complex modes; pooling adds the sum of 6 channels and a count
    assert result["n_state"] == 2 * 4 + 6 + 1


def test_run_learns(finished):
    lines = rows(finished.folder)
    first, last = (float(lines[i].split(",")[4]) for i in (1, -1))
    assert last < first
    assert finished.best_step in (5, 10, 15)


def test_seed_changes_weights_and_nothing_else_does(tiny, finished, tmp_path):
    torch.manual_seed(123)
    again = train.run(tiny, out=tmp_path / "again")
    same_weights(again.folder, finished.folder)
    other = train.run(replace(tiny, seed=1), out=tmp_path / "other")
    name = "checkpoints/last.safetensors"
    ours, theirs = load_file(finished.folder / name), load_file(other.folder / name)
    assert not all(torch.equal(x, theirs[n]) for n, x in ours.items())


def test_run_leaves_the_process_as_it_was(tiny, tmp_path):
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    torch.manual_seed(7)
    random = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    config = replace(tiny, train=replace(tiny.train, epochs=1, threads=threads + 1))
    train.run(config, out=tmp_path / "run")
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert torch.full((), 1e-40).mul(1.0) > 0
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_numbers_that_vanish_count_as_zero_in_a_run():
    with process_settings(None):
        assert torch.full((), 1e-30).mul(1e-10) == 0
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert torch.full((), 1e-30).mul(1e-10) > 0


def test_run_prints_nothing(tiny, tmp_path, capfd):
    train.run(replace(tiny, train=replace(tiny.train, epochs=1)), out=tmp_path / "run")
    assert capfd.readouterr() == ("", "")


def test_reporter_hears_every_step_and_epoch(tiny, tmp_path):
    heard = []

    class Listener(train.Reporter):
        def started(self, plan):
            heard.append(("started", plan.steps))

        def stepped(self, report):
            heard.append(("step", report.step))

        def epoch_done(self, report):
            heard.append(("epoch", report.epoch))

        def trained(self):
            heard.append(("trained", None))

        def closed(self):
            heard.append(("closed", None))

    config = replace(tiny, train=replace(tiny.train, epochs=2, batch_size=800))
    train.run(config, out=tmp_path / "run", reporter=Listener())
    assert heard == [
        ("started", 4),
        *[("step", 1), ("step", 2), ("epoch", 1), ("step", 3), ("step", 4), ("epoch", 2)],
        ("trained", None),
        ("closed", None),
    ]


@pytest.mark.unchecked
def test_nan_in_the_loss_stops_and_keeps_the_last_checkpoint(tiny, finished, monkeypatch, tmp_path):
    calls = []
    loss = Digits.loss

    def fails_later(self, y, target):
        calls.append(y)
        return loss(self, y, target) * (math.nan if len(calls) == 8 else 1)

    monkeypatch.setattr(Digits, "loss", fails_later)
    # call 6 is the validation after five steps, so call 8 is step 7
    with pytest.raises(NonFiniteError, match=r"the loss must be finite, got nan at step 7 of 15"):
        train.run(tiny, out=tmp_path / "run")
    monkeypatch.undo()
    train.resume(tmp_path / "run")
    same_weights(tmp_path / "run", finished.folder)


@pytest.mark.unchecked
def test_nan_in_the_gradient_reaches_no_weight(tiny, monkeypatch, tmp_path):
    loss = Digits.loss
    # the value is finite; the derivative of the square root at 0 is not
    monkeypatch.setattr(
        Digits, "loss", lambda self, y, t: loss(self, y, t) + (y * 0).square().sum().sqrt()
    )
    with pytest.raises(NonFiniteError, match="norm of the gradient must be finite, got nan at st"):
        train.run(tiny, out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precision_is_used_and_evaluated(tiny, tmp_path, precision):
    config = replace(tiny, train=replace(tiny.train, epochs=1, precision=precision))
    result = train.run(config, out=tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert weights["head.weight"].dtype == dtype
    assert train.evaluate(tmp_path / "run")[0].metric == result.test_metric


def test_run_without_clip_takes_other_steps(tiny, finished, tmp_path):
    other = replace(tiny, optim=replace(tiny.optim, clip=0.0, weight_decay=0.0))
    train.run(other, out=tmp_path / "run")
    ours = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    theirs = load_file(finished.folder / "checkpoints" / "last.safetensors")
    assert not all(torch.equal(x, theirs[n]) for n, x in ours.items())


@pytest.mark.unchecked
def test_resume_of_a_run_killed_before_its_first_checkpoint(tiny, finished, crash_at, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ConnectionAbortedError):
        train.run(tiny, out=run, reporter=crash_at(2))
    with pytest.raises(
        RunFolderError,
        match=r"must hold model\.safetensors, got none: the run ended before its first epoch did\. "
        rf"Go on with: linrnn train --resume {run}$",
    ):
        train.evaluate(run)
    train.resume(run)
    same_weights(run, finished.folder)
    assert rows(run) == rows(finished.folder)

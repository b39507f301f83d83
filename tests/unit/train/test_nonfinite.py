"""Numbers that go wrong in training: named, and left out where that is asked for."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from linrnn import train
from linrnn.compute.finite import first_bad
from linrnn.errors import InterruptedRunError, NonFiniteError, UnknownNameError
from linrnn.tasks.digits import Digits
from linrnn.train import TrainConfig
from linrnn.train._nonfinite import bad_gradient, bad_state, watch

pytestmark = pytest.mark.unchecked


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    """Nothing here looks at them, and they take most of the time of so small a run."""
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)


def on_nan(config, what, **others):
    return replace(config, train=replace(config.train, on_nan=what, **others))


class Notes(train.Reporter):
    def __init__(self):
        self.texts = []

    def noticed(self, text):
        self.texts.append(text)


@pytest.fixture
def fault(monkeypatch):
    """Put NaN into the training input of chosen steps, counted from 1, each time they come."""

    def at(*steps):
        from linrnn.train._run_module import RunModule

        augment = Digits.augment
        now = {}
        prepare = RunModule.prepare

        def counted(self, batch):
            now["step"] = self.done_steps + 1
            return prepare(self, batch)

        def spoiled(self, x, generator):
            x = augment(self, x, generator).clone()
            if now["step"] in steps:
                x[2, 5] = math.nan
            return x

        monkeypatch.setattr(RunModule, "prepare", counted)
        monkeypatch.setattr(Digits, "augment", spoiled)

    return at


def weights(folder, name="checkpoints/last.safetensors"):
    return load_file(folder / name)


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[n]) for n, x in ours.items())


def test_stop_names_the_step_and_the_first_bad_tensor(tiny, tmp_path, fault):
    fault(7)
    with pytest.raises(
        NonFiniteError,
        match=r"the loss must be finite, got nan at step 7 of 15: the input of the model of shape "
        r"\(256, 64, 1\) has nan at \(2, 5, 0\), the only such value\. .*--resume .*--on-nan skip",
    ):
        train.run(tiny, out=tmp_path / "run")


def test_stop_names_a_module_inside_the_model(tiny, tmp_path, monkeypatch):
    from linrnn.nn import GLU

    forward = GLU.forward
    calls = []

    def spoiled(self, x):
        y = forward(self, x)
        calls.append(1)
        return y * (math.inf if len(calls) >= 3 else 1)

    monkeypatch.setattr(GLU, "forward", spoiled)
    with pytest.raises(NonFiniteError, match=r"at step 3 of 15: the output of \S*glu of shape"):
        train.run(tiny, out=tmp_path / "run")


def test_stop_names_a_parameter(tiny, tmp_path, monkeypatch):
    from linrnn.train._run_module import RunModule

    prepare = RunModule.prepare

    def spoil(self, batch):
        if self.done_steps == 3:
            with torch.no_grad():
                self.model.head.weight[1, 2] = -math.inf
        return prepare(self, batch)

    monkeypatch.setattr(RunModule, "prepare", spoil)
    with pytest.raises(
        NonFiniteError, match=r"step 4 of 15: the parameter head.weight .* has -inf at \(1, 2\)"
    ):
        train.run(tiny, out=tmp_path / "run")


def test_stop_names_where_a_gradient_went_wrong(tiny, tmp_path, monkeypatch):
    loss = Digits.loss
    monkeypatch.setattr(
        Digits, "loss", lambda self, y, t: loss(self, y, t) + (y * 0).square().sum().sqrt()
    )
    with pytest.raises(
        NonFiniteError,
        match=r"norm of the gradient must be finite, got nan at step 1 of 15: the gradient with "
        r"respect to the output of .+ of shape .*; the gradient of encoder.* as have 14 of 14 "
        r"gradients\. Correct the data, .*, or leave such steps out with --on-nan skip\.$",
    ):
        train.run(tiny, out=tmp_path / "run")


def test_stop_says_when_a_fault_does_not_come_again(tiny, tmp_path, monkeypatch):
    loss = Digits.loss
    calls = []

    def once(self, y, target):
        calls.append(1)
        return loss(self, y, target) * (math.nan if len(calls) == 2 else 1)

    monkeypatch.setattr(Digits, "loss", once)
    with pytest.raises(NonFiniteError, match="computed once more, it is finite: this is a fault"):
        train.run(tiny, out=tmp_path / "run")


def test_validation_stops_and_names_the_first_bad_tensor(tiny, tmp_path, monkeypatch):
    from linrnn.train._run_module import RunModule

    begin = RunModule.on_validation_epoch_start

    def spoil(self):
        begin(self)
        self.model.head.bias.data[0] = math.nan

    monkeypatch.setattr(RunModule, "on_validation_epoch_start", spoil)
    for action in ("stop", "skip"):
        with pytest.raises(
            NonFiniteError,
            match=r"validation loss must be finite, got nan in batch 1 after step 5 of 15: the "
            r"parameter head.bias of shape \(10,\) has nan at \(0,\)",
        ):
            train.run(on_nan(tiny, action), out=tmp_path / action)


def test_no_checkpoint_is_written_of_weights_that_are_not_finite(tiny, tmp_path, monkeypatch):
    from linrnn.train._bookkeeping import Bookkeeping

    end = Bookkeeping.on_train_epoch_end

    def spoil(self, trainer, module):
        if module.done_steps == 10:
            module.model.head.weight.data[0, 0] = math.nan
        end(self, trainer, module)

    monkeypatch.setattr(Bookkeeping, "on_train_epoch_end", spoil)
    with pytest.raises(NonFiniteError, match=r"what a checkpoint keeps must be .* step 10"):
        train.run(tiny, out=tmp_path / "run")
    monkeypatch.undo()
    assert all(x.isfinite().all() for x in weights(tmp_path / "run").values())
    train.resume(tmp_path / "run")


def test_skip_leaves_the_step_out_and_counts_it(tiny, tmp_path, fault):
    fault(3, 7)
    notes = Notes()
    result = train.run(on_nan(tiny, "skip"), out=tmp_path / "run", reporter=notes)
    assert (result.skipped, result.rollbacks) == (2, 0)
    assert [text.split(":")[0] for text in notes.texts] == [
        f"the loss must be finite, got nan at step {step} of 15" for step in (3, 7)
    ]
    assert notes.texts[1].endswith("the step is left out (2 so far)")
    assert all(x.isfinite().all() for x in weights(tmp_path / "run").values())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["skipped"] == 2


def test_skipped_step_changes_no_weight_and_no_statistic(tiny, tmp_path, fault, monkeypatch):
    from linrnn.train._bookkeeping import Bookkeeping

    fault(3)
    seen = {}
    end = Bookkeeping.on_train_batch_end

    def look(self, trainer, module, *args):
        end(self, trainer, module, *args)
        optimizer = module.optimizers(use_pl_optimizer=False)
        moments = [m for s in optimizer.state.values() for m in s.values()]
        seen[module.done_steps] = [
            x.detach().clone() for x in (*module.model.state_dict().values(), *moments)
        ]

    monkeypatch.setattr(Bookkeeping, "on_train_batch_end", look)
    train.run(on_nan(tiny, "skip", epochs=1), out=tmp_path / "run")
    assert all(map(torch.equal, seen[2], seen[3]))
    assert not all(map(torch.equal, seen[3], seen[4]))


@pytest.mark.parametrize(("action", "step"), [("skip", 9), ("rollback", 2), ("rollback", 8)])
def test_resume_around_a_step_left_out_gives_the_same_bits(
    tiny, tmp_path, fault, signal_at, action, step
):
    fault(3, 9)
    config = on_nan(tiny, action)
    whole = train.run(config, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(step))
    cut = train.resume(tmp_path / "cut")
    same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert (cut.skipped, cut.rollbacks) == (whole.skipped, whole.rollbacks)
    assert cut.test_loss == whole.test_loss


def test_skip_gives_up_after_ten_in_a_row(tiny, tmp_path, fault):
    fault(*range(1, 16))
    with pytest.raises(NonFiniteError, match=r"step 11 of 15: .*; 10 steps before it were left"):
        train.run(on_nan(tiny, "skip"), out=tmp_path / "run")


def test_rollback_takes_the_weights_of_the_end_of_the_epoch_before(
    tiny, finished, tmp_path, fault, monkeypatch
):
    from linrnn.train._bookkeeping import Bookkeeping

    fault(9)
    seen = {}
    end = Bookkeeping.on_train_batch_end

    def look(self, trainer, module, *args):
        end(self, trainer, module, *args)
        seen[module.done_steps] = {n: x.clone() for n, x in module.model.state_dict().items()}

    monkeypatch.setattr(Bookkeeping, "on_train_batch_end", look)
    notes = Notes()
    result = train.run(on_nan(tiny, "rollback"), out=tmp_path / "run", reporter=notes)
    same(seen[9], seen[5])
    assert not all(torch.equal(x, seen[8][n]) for n, x in seen[9].items())
    assert result.rollbacks == 1
    assert "the weights go back to those before this epoch" in notes.texts[0]


def test_rollback_without_a_fault_trains_the_same_bits(tiny, finished, tmp_path):
    train.run(on_nan(tiny, "rollback"), out=tmp_path / "run")
    same(
        weights(tmp_path / "run", "model.safetensors"),
        weights(finished.folder, "model.safetensors"),
    )


def test_rollback_gives_up_after_three_in_an_epoch(tiny, tmp_path, fault):
    fault(1, 2, 3, 4)
    with pytest.raises(NonFiniteError, match=r"step 4 of 15: .*went back 3 times in this epoch"):
        train.run(on_nan(tiny, "rollback"), out=tmp_path / "run")


def test_a_run_that_stopped_goes_on_with_skip(tiny, tmp_path, fault):
    fault(7)
    with pytest.raises(NonFiniteError, match="--on-nan skip"):
        train.run(tiny, out=tmp_path / "run")
    with pytest.raises(NonFiniteError):
        train.resume(tmp_path / "run")
    assert train.resume(tmp_path / "run", on_nan="skip").skipped == 1


def test_on_nan_must_be_known():
    with pytest.raises(UnknownNameError, match="on_nan"):
        train.Config(task="digits", train=TrainConfig(on_nan="ignore"))


def test_first_bad_and_bad_state():
    good = torch.ones(3)
    assert first_bad([("a", good), ("b", torch.arange(3))]) is None
    complex_ = torch.tensor([1j, complex(0, math.inf)])
    assert "c of shape (2,)" in first_bad([("a", good), ("c", complex_)])
    log_weight = torch.tensor([-math.inf])
    assert bad_state("s", {"w": log_weight}) is None
    assert "part 0 of s" in bad_state("s", {"w": -log_weight})
    assert "the first of 2" in bad_state("s", [torch.full((2,), math.nan)])


def test_gradients_whose_norm_overflows():
    large = torch.full((4,), 2e38)
    text = bad_gradient([("the gradient of a", torch.ones(1)), ("the gradient of b", large)])
    assert text == (
        "each is finite, but their norm overflows: the gradient of b has values up to 2e+38"
    )


def test_watch_leaves_no_hooks():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with watch(model) as found:
        model(torch.tensor([[1.0, math.nan]]))
    assert found[0].startswith("the input of the model")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

"""`TrainingModule` in a trainer, with a model, a loss and loaders of somebody else."""

import copy
import importlib
import math
import re
import sys
from pathlib import Path

import lightning
import pytest
import torch
from learners import averaged_in
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from linrnn import SequenceModel, learn
from linrnn.errors import ArgumentError, MissingExtraError, NonFiniteError, UnknownNameError
from linrnn.mixers import LRU
from linrnn.state import leaves
from linrnn.train import ContiguousBatches, OptimConfig, TrainingModule

ROOT = Path(__file__).parents[3]
mse = nn.functional.mse_loss


class Theirs(nn.Module):
    """Not one of our models: a state, two calls, and that is all."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 1)

    def init_state(self, batch_size):
        return {"h": torch.zeros(batch_size, 3)}

    def forward(self, x, state=None):
        h = None if state is None else state["h"][None]
        y, h = self.layer(x, h)
        return self.head(y), {"h": h[0]}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Theirs()


@pytest.fixture
def batches():
    """Five batches of three rows that go on."""
    x = torch.randn(15, 8, 1, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.cumsum(1))
    return DataLoader(data, sampler=ContiguousBatches(15, 3), batch_size=None)


def trainer(tmp_path, **options):
    known = {
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
        "enable_model_summary": False,
        "accelerator": "cpu",
        "max_epochs": 1,
        "default_root_dir": tmp_path,
    }
    return lightning.Trainer(**(known | options))


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def by_hand(model, batches, *, window, carry, clip=math.inf):
    """The same training as a plain loop."""
    model, optimizer = copy.deepcopy(model), None
    optimizer, state = sgd(model), None
    for x, target in batches:
        state = state if carry else None
        optimizer.zero_grad()
        for a, b in zip(x.split(window, 1), target.split(window, 1), strict=True):
            y, state = model(a, state)
            state = {"h": state["h"].detach()}
            (mse(y, b) * (a.shape[1] / x.shape[1])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


@pytest.mark.parametrize(("update", "updates"), [("batch", 5), ("window", 10)])
def test_mixers_hear_of_every_update(batches, tmp_path, update, updates):
    heard = []

    class Listener(LRU):
        def after_update(self):
            heard.append(None)

    model = SequenceModel(1, 1, mixer=Listener, d_model=4, n_layers=2, pool="none", norm="none")
    options = {"window": 4, "update": update}
    module = TrainingModule(model, mse, learner="tbptt", learner_options=options, optim=sgd)
    trainer(tmp_path).fit(module, batches)
    assert len(heard) == 2 * updates


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("window", [3, 8])
def test_it_trains_as_a_loop_by_hand(model, batches, tmp_path, carry, clip, window):
    expected = by_hand(model, batches, window=window, carry=carry, clip=clip or math.inf)
    options = {"window": window}
    module = TrainingModule(
        model, mse, learner="tbptt", learner_options=options, optim=sgd, carry_state=carry
    )
    trainer(tmp_path, gradient_clip_val=clip).fit(module, batches)
    assert module.done_steps == 5
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_several_batches_make_one_step(model, batches, tmp_path):
    expected = copy.deepcopy(model)
    optimizer = sgd(expected)
    for i, (x, target) in enumerate(batches):
        (mse(expected(x)[0], target) / 2).backward()
        if i in (1, 3, 4):
            optimizer.step()
            optimizer.zero_grad()
    module = TrainingModule(model, mse, optim=sgd)
    trainer(tmp_path, accumulate_grad_batches=2).fit(module, batches)
    assert module.done_steps == 3
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


#: Those that take this model, with an answer a step and a state that moves on.
ANY_MODEL = [name for name in learn.names() if name not in ("gtf", "rbp")]
REMEMBER = {"averaged", "fptt", "ridge", "rtrl", "stagewise"}


@pytest.mark.parametrize("name", [*ANY_MODEL, "averaged"])
def test_a_checkpoint_holds_rows_and_what_the_learner_remembers(model, batches, tmp_path, name):
    options = {"frozen": True} if name == "ridge" else {}
    given = {"learner": name, "learner_options": options, "carry_state": True}
    with averaged_in(tmp_path):
        module = TrainingModule(model, mse, **given)
        first = trainer(tmp_path, max_steps=3)
        first.fit(module, batches)
        first.save_checkpoint(tmp_path / "mine.ckpt")
        other = TrainingModule(Theirs(), mse, **given)
        found = {}

        class Look(lightning.Callback):
            def on_train_start(self, trainer, pl_module):
                found["carried"] = pl_module.carried
                found["learner"] = pl_module.learner.state_dict()

        second = trainer(tmp_path, max_steps=4, max_epochs=2, callbacks=[Look()])
        second.fit(other, batches, ckpt_path=tmp_path / "mine.ckpt")
    assert other.done_steps == 4
    assert all(map(torch.equal, leaves(found["carried"]), leaves(module.carried)))
    remembered = module.learner.state_dict()
    assert found["learner"].keys() == remembered.keys()
    assert all(torch.equal(x, found["learner"][n]) for n, x in remembered.items())
    assert bool(remembered) == (name in REMEMBER)


def test_resume_at_the_end_of_an_epoch_gives_the_same_bits(model, batches, tmp_path):
    def make(start):
        return TrainingModule(
            copy.deepcopy(start), mse, learner="tbptt", learner_options={"window": 3},
            optim=OptimConfig(schedule="constant", warmup_fraction=0), carry_state=True,
        )  # fmt: skip

    whole = make(model)
    trainer(tmp_path, max_epochs=2).fit(whole, batches)
    cut = make(model)
    first = trainer(tmp_path)
    first.fit(cut, batches)
    first.save_checkpoint(tmp_path / "mine.ckpt")
    again = make(Theirs())
    trainer(tmp_path, max_epochs=2).fit(again, batches, ckpt_path=tmp_path / "mine.ckpt")
    for ours, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_losses_and_scores_are_logged(model, batches, tmp_path):
    module = TrainingModule(model, mse, scores=lambda y, t: (y - t).square().mean((1, 2)))
    fit = trainer(tmp_path)
    fit.fit(module, batches, batches)
    metrics = fit.callback_metrics
    assert metrics.keys() == {
        f"{stage}_{what}" for stage in ("train", "validation") for what in ("loss", "metric")
    }
    loss, metric = (metrics[f"validation_{what}"].item() for what in ("loss", "metric"))
    assert loss == pytest.approx(metric, rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precision_is_the_trainers(model, batches, tmp_path, precision):
    module = TrainingModule(model, mse, learner="tbptt", learner_options={"window": 3})
    trainer(tmp_path, precision=precision).fit(module, batches)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert model.head.weight.dtype == dtype
    assert model.head.weight.isfinite().all()


def test_backward_and_optimiser_are_outside_the_autocast(batches, tmp_path):
    torch.manual_seed(0)
    options = {"mixer": "tanh_rnn", "d_model": 8, "n_layers": 1, "norm": "layer", "pool": "none"}
    model = SequenceModel(1, 1, **options)
    expected = copy.deepcopy(model)
    optimizer = sgd(expected)
    for x, target in batches:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = mse(expected(x)[0], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module = TrainingModule(model, mse, optim=sgd)
    trainer(tmp_path, precision="bf16-mixed").fit(module, batches)
    assert all(map(torch.equal, model.parameters(), expected.parameters()))


def test_a_step_inside_a_batch_is_outside_the_default_dtype(model, batches, tmp_path):
    options = {"window": 3, "update": "window"}
    module = TrainingModule(
        model,
        mse,
        learner="tbptt",
        learner_options=options,
        optim=lambda m: torch.optim.AdamW(m.parameters()),
    )
    trainer(tmp_path, precision="64-true").fit(module, batches)
    counts = [state["step"] for state in module.optimizer_in_use().state.values()]
    assert {(x.item(), x.dtype) for x in counts} == {(15.0, torch.float32)}


@pytest.fixture
def spoiled():
    """The second of five batches has a NaN."""
    x = torch.randn(15, 8, 1, generator=torch.Generator().manual_seed(1))
    target = x.cumsum(1)
    x[6, 7] = math.nan  # the second piece of the second row
    return DataLoader(TensorDataset(x, target), sampler=ContiguousBatches(15, 3), batch_size=None)


@pytest.mark.parametrize("learner", ANY_MODEL)
def test_skip_leaves_a_step_out(model, spoiled, tmp_path, learner):
    options = {"frozen": True} if learner == "ridge" else {}
    given = {"learner": learner, "learner_options": options, "on_nan": "skip"}
    module = TrainingModule(model, mse, **given, carry_state=True)
    trainer(tmp_path).fit(module, spoiled)
    assert module.guard.counts["skipped"] == 1
    assert all(p.isfinite().all() for p in model.parameters())
    assert all(h.isfinite().all() for h in leaves(module.carried))


@pytest.mark.unchecked
def test_stop_names_step_and_tensor(model, spoiled, tmp_path):
    module = TrainingModule(model, mse)
    with pytest.raises(
        NonFiniteError,
        match=r"training: the loss must be finite, got nan at step 2: the input of shape "
        r"\(3, 8, 1\) has nan at \(1, 7, 0\), the only such value",
    ):
        trainer(tmp_path).fit(module, spoiled)


@pytest.mark.unchecked
def test_what_it_cannot_do_is_refused(model, batches, tmp_path):
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(3, 8, 1), torch.zeros(3, 8, 1)

    module = TrainingModule(model, mse)
    with pytest.raises(ArgumentError, match="number of steps must be known to the schedule"):
        trainer(tmp_path, max_epochs=-1).fit(module, DataLoader(Endless(), batch_size=None))
    options = {"window": 3, "update": "window"}
    module = TrainingModule(model, mse, learner="tbptt", learner_options=options)
    with pytest.raises(ArgumentError, match="accumulate_grad_batches must be 1, and devices too"):
        trainer(tmp_path, accumulate_grad_batches=2).fit(module, batches)
    module, half = TrainingModule(model, mse), trainer(tmp_path)
    half.strategy.precision_plugin.precision = "16-mixed"  # which CPUs do not have
    with pytest.raises(ArgumentError, match="a precision other than 16-mixed, got that"):
        half.fit(module, batches)
    clips = trainer(tmp_path, gradient_clip_val=1.0, gradient_clip_algorithm="value")
    with pytest.raises(ArgumentError, match="gradient_clip_algorithm must be norm, got value"):
        clips.fit(module, batches)
    with pytest.raises(UnknownNameError, match="on_nan named 'rollback'"):
        TrainingModule(model, mse, on_nan="rollback")
    with pytest.raises(UnknownNameError, match="learner named 'btt'"):
        TrainingModule(model, mse, learner="btt")


@pytest.mark.unchecked
def test_without_lightning_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "linrnn.train._module")
    with pytest.raises(MissingExtraError, match=r"pip install 'linrnn\[train\]'"):
        importlib.import_module("linrnn.train._module")


def test_the_documented_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "learners.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(compile(block, "learners.md", "exec"), names)
    assert names["trainer"].callback_metrics["train_loss"] < 0.1  # 0.125 is the target's variance
    assert (tmp_path / "mine.ckpt").is_file()
    assert all(x.isfinite().all() for x in names.values() if isinstance(x, torch.Tensor))
    assert "torch.Size([4, 32, 1])" in capsys.readouterr().out

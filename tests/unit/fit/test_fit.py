"""`linrnn.fit`: models, datasets, loaders, callbacks and loggers of somebody else."""

import contextlib
import copy
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import lightning
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import linrnn
from linrnn import SequenceModel, fit
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    NonFiniteError,
    RunFolderError,
    ShapeError,
    UnknownNameError,
)
from linrnn.lightning import RecurrentModule, TaskDataModule
from linrnn.train.folder import InUseError, locked_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
]
QUIET = {"enable_progress_bar": False}


@pytest.fixture
def data():
    x = torch.randn(48, 12, 2, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x.sum((1, 2)) > 0).long())


@pytest.fixture
def model():
    return SequenceModel(2, 2, d_model=8, n_layers=1, norm="layer", dropout=0.1)


class Theirs(nn.Module):
    """A plain module, as people write one."""

    def __init__(self, width=6):
        super().__init__()
        self.rnn, self.head = nn.GRU(2, width, batch_first=True), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def train(model, loader, *rest, **options):
    options = {
        "loss": "cross_entropy",
        "epochs": 1,
        "trainer": QUIET,
        "accelerator": "cpu",
    } | options
    return fit(model, loader, *rest, **options)


def test_it_learns_and_keeps_the_best_weights(model, data):
    loader = DataLoader(data, 8, shuffle=True)
    found = train(model, loader, DataLoader(data, 16), metrics=["accuracy"], epochs=6,
                  optim={"lr": 2e-2}, monitor="val_accuracy", mode="max")  # fmt: skip
    assert [row["epoch"] for row in found.history] == [1, 2, 3, 4, 5, 6]
    best = max(row["val_accuracy"] for row in found.history)
    assert best > 0.85
    assert found.best["val_accuracy"] == best
    assert found.model is model
    assert not model.training
    x, y = data.tensors
    assert (model(x)[0].argmax(1) == y).double().mean().item() == pytest.approx(best)


def test_a_plain_module_trains_as_a_loop_by_hand(data):
    model = Theirs()
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    losses = []
    for start in range(0, 48, 8):
        x, y = data[start : start + 8]
        loss = nn.functional.cross_entropy(expected(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = train(model, DataLoader(data, 8), optim=lambda m: torch.optim.SGD(m.parameters(), 0.1))
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert found.history[0]["train_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert set(model.state_dict()) == set(expected.state_dict())


def test_recurrent_parameters_have_a_rate_of_their_own_and_no_decay(model, data):
    groups = {}

    class Look(lightning.Callback):
        def on_train_start(self, trainer, pl_module):
            for group in trainer.optimizers[0].param_groups:
                groups[group["name"]] = group["initial_lr"], group["weight_decay"]

    train(model, DataLoader(data, 8), optim={"lr": 0.01, "weight_decay": 0.2}, callbacks=[Look()])
    assert groups["recurrent"] == (0.005, 0.0)
    assert groups["weights"] == (0.01, 0.2)


class Ragged(Dataset):
    def __init__(self, per_step=False, classes=True):
        g = torch.Generator().manual_seed(0)
        self.x = [torch.randn(n, 2, generator=g) for n in (3, 9, 5, 7)]
        self.per_step, self.classes = per_step, classes

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if not self.per_step:
            return x, int(x.sum() > 0)
        return x, (x.sum(1) > 0).long() if self.classes else x.cumsum(0)


def collate(rows):
    x, y = zip(*rows, strict=True)
    lengths = torch.tensor([len(row) for row in x])
    y = pad_sequence(y, batch_first=True) if isinstance(y[0], torch.Tensor) else torch.tensor(y)
    return pad_sequence(x, batch_first=True), y, lengths


@pytest.mark.parametrize("form", ["tuple", "dict", "named"])
def test_lengths_reach_the_model(form):
    def as_form(rows):
        x, y, lengths = collate(rows)
        if form == "tuple":
            return x, y, lengths
        if form == "dict":
            return {"inputs": x, "labels": y, "lengths": lengths}
        return {"signal": x, "class": y, "n": lengths}

    prepare = (lambda b: (b["signal"], b["class"], b["n"])) if form == "named" else None
    model = SequenceModel(2, 2, d_model=4, n_layers=1, norm="layer")
    expected = copy.deepcopy(model)
    found = train(model, DataLoader(Ragged(), 4, collate_fn=as_form), prepare_batch=prepare)
    x, y, lengths = collate([Ragged()[i] for i in range(4)])
    right = nn.functional.cross_entropy(expected(x, lengths=lengths)[0], y).item()
    wrong = nn.functional.cross_entropy(expected(x)[0], y).item()
    assert found.history[0]["train_loss"] == pytest.approx(right, rel=1e-5)
    assert abs(right - wrong) > 1e-4


@pytest.mark.parametrize("classes", [True, False])
def test_padded_steps_have_no_part_in_loss_and_metric(classes):
    data = Ragged(per_step=True, classes=classes)
    model = SequenceModel(2, 2, d_model=4, n_layers=1, norm="layer", pool="none")
    expected = copy.deepcopy(model)
    name, metric = ("cross_entropy", "accuracy") if classes else ("mse", "mse")
    loader = DataLoader(data, 4, collate_fn=collate)
    found = train(model, loader, loss=name, metrics=[metric])
    apart = [(expected(x[None])[0][0], y) for x, y in (data[i] for i in range(4))]
    y, target = (torch.cat(parts) for parts in zip(*apart, strict=True))
    loss = nn.functional.cross_entropy if classes else nn.functional.mse_loss
    score = (y.argmax(1) == target).double().mean() if classes else loss(y, target)
    assert found.history[0]["train_loss"] == pytest.approx(loss(y, target).item(), rel=1e-4)
    assert found.history[0][f"train_{metric}"] == pytest.approx(score.item(), rel=1e-4)


class Answers(nn.Module):
    """Answers of one shape, whatever it reads; ``lengths`` are not its own business."""

    def __init__(self, shape):
        super().__init__()
        self.y = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(3)))

    def forward(self, x, lengths):
        return self.y


PADDED = torch.tensor([1, 4, 6, 2])
LOSSES = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
    "mae": nn.functional.l1_loss,
    "huber": nn.functional.huber_loss,
    "bce": nn.functional.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("shape", [(), (1,), (3,), (9, 2), (6,), (6, 1), (6, 3), (6, 3, 2)])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in LOSSES
        for kind in (torch.int64, torch.float32, torch.bool)
        if kind == torch.int64 or name != "cross_entropy"
    ],
    ids=str,
)
def test_a_named_loss_counts_each_target_that_is_no_padding_once(name, shape, kind):
    """Six steps: a shape that begins with six has a target for each."""
    classes = name == "cross_entropy"
    g = torch.Generator().manual_seed(1)
    model = Answers((4, *shape, *([5] if classes else [])))
    target = torch.randint(0, 2, (4, *shape), generator=g).to(kind)
    x = torch.randn(4, 6, 2, generator=g)
    kept = torch.ones(4, *shape, dtype=torch.bool)
    if shape[:1] == (6,):
        kept = (torch.arange(6) < PADDED[:, None]).reshape(4, 6, *[1] * (len(shape) - 1))
        kept = kept.expand(4, *shape)
    expected = LOSSES[name](
        model.y[kept], target[kept] if classes else target[kept].to(model.y.dtype)
    ).item()
    for padding in (0, 1):
        given = target.masked_fill(~kept, padding)
        loader = DataLoader([(x, given, PADDED)], batch_size=None)
        metrics = [name] if name in ("mse", "mae") else []
        found = train(copy.deepcopy(model), loader, loss=name, metrics=metrics).history[0]
        assert found["train_loss"] == pytest.approx(expected, rel=1e-5)
        assert all(found[f"train_{m}"] == pytest.approx(expected, rel=1e-5) for m in metrics)


def test_a_model_that_pools_has_no_target_of_padding():
    """As many outputs as steps: their shape alone looks like one answer for each step."""
    data = [(torch.randn(n, 2), torch.randn(9)) for n in (3, 9, 5, 7)]
    model = SequenceModel(2, 9, d_model=4, n_layers=1, norm="layer", pool="mean")
    expected = copy.deepcopy(model)

    def stacked(rows):
        x, lengths = pad_sequence([x for x, _ in rows], batch_first=True), [len(x) for x, _ in rows]
        return x, torch.stack([y for _, y in rows]), torch.tensor(lengths)

    found = train(model, DataLoader(data, 4, collate_fn=stacked), loss="mse")
    x, y, lengths = stacked(data)
    right = nn.functional.mse_loss(expected(x, lengths=lengths)[0], y).item()
    assert found.history[0]["train_loss"] == pytest.approx(right, rel=1e-5)


def test_a_loss_and_metrics_of_their_own(data):
    seen = []

    def loss(y, target, lengths):
        seen.append(lengths)
        return nn.functional.cross_entropy(y, target)

    metrics = {
        "f1": torchmetrics.F1Score("multiclass", num_classes=2),
        "margin": lambda y, target: (y[:, 0] - y[:, 1]).abs(),
    }
    found = train(Theirs(), DataLoader(data, 8), DataLoader(data, 48), loss=loss, metrics=metrics)
    x, y = data.tensors
    answers = found.model(x)
    row = found.history[0]
    assert row["val_margin"] == pytest.approx((answers[:, 0] - answers[:, 1]).abs().mean().item())
    f1 = torchmetrics.functional.f1_score(answers, y, "multiclass", num_classes=2)
    assert row["val_f1"] == pytest.approx(f1.item())
    assert "train_f1" in row
    assert set(seen) == {None}


def test_the_weights_of_a_loss_that_is_a_module_count(data):
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]))
    model = Theirs()
    expected = weighted(model(data.tensors[0]), data.tensors[1]).item()
    found = train(model, DataLoader(data, 48), loss=weighted)
    assert found.history[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


def test_callbacks_and_loggers_of_lightning(model, data, tmp_path):
    stop = EarlyStopping("val_loss", patience=0, min_delta=10.0)
    save = ModelCheckpoint(tmp_path / "theirs", monitor="val_loss")
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")]
    found = train(model, DataLoader(data, 8), DataLoader(data, 16), epochs=5,
                  callbacks=[stop, save], logger=loggers)  # fmt: skip
    assert len(found.history) == 2
    rows = list(csv.DictReader((tmp_path / "csv/version_0/metrics.csv").open()))
    written = [float(row["val_loss"]) for row in rows if row["val_loss"]]
    assert written == pytest.approx([row["val_loss"] for row in found.history], rel=1e-5)
    assert list((tmp_path / "board").glob("**/events*"))
    stored = torch.load(save.best_model_path, weights_only=True)["state_dict"]
    assert {f"model.{name}" for name in model.state_dict()} == set(stored)


def test_random_numbers_follow_from_the_seed_and_are_as_before(data):
    start = SequenceModel(2, 2, d_model=4, n_layers=1, dropout=0.5)
    found = []
    for _ in range(2):
        torch.randn(len(found) + 1)
        before = torch.random.get_rng_state()
        model = copy.deepcopy(start)
        train(model, DataLoader(data, 8, shuffle=True), seed=7, epochs=2, threads=1)
        assert torch.equal(torch.random.get_rng_state(), before)
        found.append(model.state_dict().values())
    assert all(map(torch.equal, *found))


class Interrupt(lightning.Callback):
    """Ends the training in the middle of an epoch."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            raise KeyboardInterrupt


def test_an_interrupted_training_goes_on_to_the_same_bits(model, data, tmp_path):
    shared = {"epochs": 4, "seed": 1, "metrics": ["accuracy"], "threads": 1}
    loaders = DataLoader(data, 8, shuffle=True), DataLoader(data, 48)
    other = copy.deepcopy(model)
    whole = train(model, *loaders, out=tmp_path / "whole", **shared)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(
            copy.deepcopy(other),
            *loaders,
            out=tmp_path / "cut",
            callbacks=[Interrupt(14)],
            **shared,
        )
    assert signal.getsignal(signal.SIGINT) is before
    found = train(other, *loaders, out=tmp_path / "cut", **shared)
    assert [row["step"] for row in found.history] == [6, 12, 18, 24]
    for one, two in zip(whole.history, found.history, strict=True):
        assert one | {"seconds": 0} == two | {"seconds": 0}
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_a_training_goes_on_with_the_threads_that_it_has_found(data, tmp_path, monkeypatch):
    """Another trial may find another number, which gives other bits."""
    numbers, before = iter([1, 2]), []

    class Look(lightning.Callback):
        def on_train_epoch_start(self, *args):
            before.append(torch.get_num_threads())

    monkeypatch.setattr(
        "linrnn.lightning._fit.trial_of_training", lambda *args: (next(numbers), "so")
    )
    for stop in ([Interrupt(9)], []):
        with pytest.raises(KeyboardInterrupt) if stop else contextlib.nullcontext():
            train(Theirs(), DataLoader(data, 8), out=tmp_path, epochs=3, callbacks=[Look(), *stop])
    assert before == [1, 1, 1, 1]


PROGRAM = """
import sys, time, torch, lightning
from torch.utils.data import DataLoader, TensorDataset
from linrnn import SequenceModel, fit

class Slow(lightning.Callback):
    def on_train_batch_end(self, *args):
        time.sleep(float(sys.argv[2]))

torch.manual_seed(0)
x = torch.randn(48, 12, 2)
data = TensorDataset(x, (x.sum((1, 2)) > 0).long())
model = SequenceModel(2, 2, d_model=8, n_layers=1, dropout=0.2)
found = fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 48), loss="cross_entropy",
            epochs=4, seed=1, out=sys.argv[1], callbacks=[Slow()], accelerator="cpu",
            trainer={"enable_progress_bar": False})
torch.save([found.history, found.best, model.state_dict()], sys.argv[1] + ".pt")
"""


def run_program(out, wait, **options):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(out), str(wait)], **options)


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run_program(whole, 0).wait(120) == 0
    process = run_program(cut, 0.3)
    history = cut / "history.json"
    until = time.monotonic() + 100
    while time.monotonic() < until and not (
        history.exists() and len(json.loads(history.read_text())["epochs"]) >= 2
    ):
        time.sleep(0.05)
    time.sleep(0.4)  # inside of the next epoch
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut.pt").exists()
    assert run_program(cut, 0).wait(120) == 0
    one, other = (torch.load(f"{path}.pt") for path in (whole, cut))
    assert [row | {"seconds": 0} for row in one[0]] == [row | {"seconds": 0} for row in other[0]]
    assert one[1] == other[1]
    assert all(torch.equal(x, other[2][name]) for name, x in one[2].items())
    assert (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()


def test_a_complete_folder_is_read_and_another_setting_refused(data, tmp_path):
    out, loader = tmp_path / "out", DataLoader(data, 8)
    first = train(Theirs(), loader, epochs=2, out=out)
    again = Theirs()
    second = train(again, loader, epochs=2, out=out)
    assert second.trainer is None
    assert second.history == first.history
    assert all(map(torch.equal, first.model.state_dict().values(), again.state_dict().values()))
    with pytest.raises(RunFolderError, match="epochs must be as when the folder was begun, 2, got"):
        train(Theirs(), loader, epochs=3, out=out)
    with pytest.raises(RunFolderError, match="model must be as when the folder was begun"):
        train(Theirs(width=3), loader, epochs=2, out=out)


def test_a_complete_folder_of_double_precision_is_read(data, tmp_path):
    for _ in range(2):
        train(Theirs(), DataLoader(data, 8), out=tmp_path, precision="64-true")


def test_its_folder_is_no_run_folder_and_says_how_to_use_the_weights(data, tmp_path):
    out = tmp_path / "out"
    trained = train(Theirs(), DataLoader(data, 8), out=out).model
    with pytest.raises(RunFolderError, match=r"a folder of linrnn\.fit.*load_file\(") as caught:
        linrnn.load(out)
    assert str(out / "model.safetensors") in str(caught.value)
    again = Theirs()
    again.load_state_dict(load_file(out / "model.safetensors"))
    assert all(map(torch.equal, trained.state_dict().values(), again.state_dict().values()))


def test_a_metric_may_have_any_name(data):
    f1 = torchmetrics.F1Score("multiclass", num_classes=2)
    names = {"per_step": lambda y, target: y[:, 0], "f1.macro": f1, "dataloader": f1.clone()}
    row = train(Theirs(), DataLoader(data, 8), metrics=names).history[0]
    assert set(row) == {"epoch", "step", "seconds", "train_loss", *(f"train_{n}" for n in names)}


def test_a_loader_of_a_module_of_data_may_leave_validation_out(data):
    class Bundle(lightning.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(data, 8)

    assert "train_loss" in train(Theirs(), Bundle()).best


@pytest.mark.unchecked
def test_a_model_whose_shapes_are_not_known_yet(data):
    with pytest.raises(ArgumentError, match=r"got 1\.weight without\. Call it once"):
        train(nn.Sequential(nn.Flatten(), nn.LazyLinear(2)), DataLoader(data, 8))


def test_a_folder_is_trained_into_by_one_process_at_a_time(data, tmp_path):
    out, loader = tmp_path / "runs" / "out", DataLoader(data, 8)
    train(Theirs(), loader, out=out)
    with locked_folder(out), pytest.raises(InUseError, match="one process at a time"):
        train(Theirs(), loader, out=out)


def test_what_a_kill_left_half_written_is_removed_by_the_next_call(data, tmp_path):
    out, loader = tmp_path / "out", DataLoader(data, 8)
    train(Theirs(), loader, out=out)
    whole = sorted(os.listdir(out))
    for name in ("model.safetensors", "last.safetensors", "history.json", "fit.json"):
        (out / f".{name}.0badcafe").write_bytes(b"half")
    train(Theirs(), loader, out=out)
    assert sorted(os.listdir(out)) == whole


def test_a_damaged_checkpoint_is_an_error(data, tmp_path):
    out, loader = tmp_path / "out", DataLoader(data, 8)
    train(Theirs(), loader, out=out)
    (out / "complete").unlink()
    path = out / "last.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunFolderError, match=r"last\.safetensors: the file must be as it was"):
        train(Theirs(), loader, out=out)


def test_a_folder_of_something_else_is_refused(data, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="out must be new, empty, or a folder of fit, got one"):
        train(Theirs(), DataLoader(data, 8), out=tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_state_is_carried_and_windows_are_learned_from(data):
    loader = DataLoader(data, 8)
    model = SequenceModel(2, 2, d_model=4, n_layers=1, pool="last", norm="layer")
    options = {"learner": "tbptt", "learner_options": {"window": 4}, "carry_state": True}
    found = train(model, loader, **options)
    assert math.isfinite(found.history[0]["train_loss"])
    with pytest.raises(ArgumentError, match=r"model must have init_state.*got Theirs without"):
        train(Theirs(), loader, **options)


def test_what_is_not_finite_stops_or_is_skipped(data):
    x, y = data.tensors
    spoiled = TensorDataset(x.clone().index_put((torch.tensor(9),), torch.tensor(math.nan)), y)
    with pytest.raises(NonFiniteError, match=r"got nan at step 2: the input of shape \(8, 12, 2\)"):
        train(Theirs(), DataLoader(spoiled, 8))
    found = train(Theirs(), DataLoader(spoiled, 8), on_nan="skip")
    assert found.module.guard.counts["skipped"] == 1
    assert all(p.isfinite().all() for p in found.model.parameters())


def test_the_data_of_a_task():
    data = TaskDataModule("digits", batch_size=256)
    model = SequenceModel(1, 10, d_model=8, n_layers=1)
    module = RecurrentModule.of_task(model, data.task, optim={"lr": 1e-2})
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False,
                                enable_model_summary=False, accelerator="cpu", **QUIET)  # fmt: skip
    trainer.fit(module, data)
    assert {"train_loss", "val_loss", "val_accuracy"} <= set(trainer.callback_metrics)
    trainer.test(module, data, verbose=False)
    splits = data.task.datasets()
    x, y = (torch.stack(part) for part in zip(*splits.test, strict=True))
    accuracy = (model.eval()(x)[0].argmax(1) == y).double().mean().item()
    assert trainer.callback_metrics["test_accuracy"].item() == pytest.approx(accuracy, abs=1e-6)
    answers = torch.cat(trainer.predict(module, DataLoader(x, 100)))
    torch.testing.assert_close(answers, model(x)[0].detach())


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(5, 2), 1


def test_data_without_an_end_needs_a_number_of_steps():
    with pytest.raises(ArgumentError, match="number of steps must be known to the schedule"):
        train(Theirs(), DataLoader(Endless(), 4))
    found = train(Theirs(), DataLoader(Endless(), 4), trainer=QUIET | {"limit_train_batches": 3})
    assert found.history[0]["step"] == 3


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"loss": "crossentropy"}, UnknownNameError, "Did you mean 'cross_entropy'"),
        ({"metrics": ["acuracy"]}, UnknownNameError, "Did you mean 'accuracy'"),
        ({"metrics": "accuracy"}, ArgumentTypeError, r"Write metrics=\['accuracy'\]"),
        ({"optim": {"learning_rate": 1}}, UnknownNameError, "optim.learning_rate"),
        ({"optim": {"lr": "high"}}, ArgumentError, "optim.lr must be"),
        ({"epochs": 0}, ArgumentError, "epochs must be an integer of at least 1, got 0"),
        ({"threads": 0}, ArgumentError, "threads must be"),
        ({"threads": "all"}, ArgumentError, "threads must be"),
        ({"trainer": {"max_epochs": 3}}, ArgumentError, r"Write fit\(\.\.\., epochs=\.\.\.\)"),
        ({"monitor": "val_f1"}, ArgumentError, "monitor must be something that is logged"),
        ({"loss": lambda y, target: (y[:, 0] - target) ** 2}, ArgumentError, "one number"),
        ({"loss": "mse"}, ShapeError, r"shape of the target \(8,\), got \(8, 2\)"),
        ({"prepare_batch": lambda b: b[0]}, ArgumentTypeError, r"a batch must be \(x, y\)"),
        ({"prepare_batch": lambda b: {"x": b[0], "z": b[1]}}, ArgumentError, "no target in x, z"),
        (
            {"prepare_batch": lambda b: {"x": b[0], "y": b[1], "mask": b[1]}},
            ArgumentError,
            "got 'mask' too in x, y, mask",
        ),
        ({"prepare_batch": lambda b: (b[0], b[1], b[1], b[1])}, ArgumentError, "at most one part"),
        ({"prepare_batch": lambda b: (b[0], b[1][:3])}, ArgumentError, "as many rows"),
        ({"prepare_batch": lambda b: (*b, torch.ones(8, dtype=torch.long))}, ArgumentError,
         "it must take lengths where batches have such"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(data, options, error, text):
    with pytest.raises(error, match=text):
        train(Theirs(), DataLoader(data, 8), **options)


@pytest.mark.unchecked
def test_a_model_that_is_none_or_answers_nothing(data):
    with pytest.raises(ArgumentTypeError, match=r"must be a torch\.nn\.Module, got a str"):
        train("lru", DataLoader(data, 8))

    class Silent(Theirs):
        def forward(self, x):
            return None

    with pytest.raises(ArgumentTypeError, match=r"Silent\.forward: it must return a tensor"):
        train(Silent(), DataLoader(data, 8))


def test_the_package_offers_fit_without_importing_lightning(python):
    code = "import sys, linrnn; linrnn.lightning; result = 'lightning.pytorch' in sys.modules"
    assert python(code) is False
    assert linrnn.fit is fit


@pytest.mark.unchecked
@pytest.mark.parametrize("threads", ["auto", None])
@pytest.mark.parametrize("which", ["train_loader", "val_loader"])
def test_loaders_that_give_no_batch_are_named_before_a_folder_is_made(
    data, which, threads, tmp_path
):
    rows = torch.utils.data.Subset(data, range(3))
    wrong = {
        "must give at least one batch, got none": [[], DataLoader(rows, 4, drop_last=True)],
        "must give batches, got a TensorDataset, which gives rows": [data],
    }
    for text, loaders in wrong.items():
        for loader in loaders:
            whole = DataLoader(data, 8)
            given = (loader, None) if which == "train_loader" else (whole, loader)
            with pytest.raises(ArgumentError, match=f"fit: {which} {text}"):
                train(Theirs(), *given, threads=threads, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.unchecked
@pytest.mark.parametrize("named", [{"loss": name} for name in ("mse", "mae", "huber", "bce")])
def test_losses_of_numbers_name_themselves_and_no_other(data, named):
    rows = TensorDataset(data.tensors[0], data.tensors[1].float())
    with pytest.raises(ShapeError, match=r"mse, mae, huber and bce .* got \(8, 2\)") as caught:
        train(Theirs(), DataLoader(rows, 8), **named)
    assert "cross_entropy" not in str(caught.value)


@pytest.mark.unchecked
@pytest.mark.parametrize("named", [{}, {"loss": "bce", "metrics": ["accuracy"]}])
def test_what_needs_classes_names_itself_and_no_other(data, named):
    x, y = data.tensors
    two = torch.stack([1.0 - y, y.float()], 1)
    with pytest.raises(DTypeError, match="for cross_entropy and accuracy y of a batch") as caught:
        train(Theirs(), DataLoader(TensorDataset(x, two), 8), **named)
    assert "bce" not in str(caught.value)

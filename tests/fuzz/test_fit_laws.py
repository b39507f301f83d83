"""`linrnn.fit`: whatever is in the place of an argument, a finite answer or an error of ours."""

import itertools
import math

import numpy as np
import pytest
import torch
from entries import try_argument, values
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from linrnn import SequenceModel, fit
from linrnn.errors import ArgumentError, LinrnnError, RunFolderError
from linrnn.lightning import RecurrentModule

X = torch.randn(8, 5, 2, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(X, (X.sum((1, 2)) > 0).long())
ARGUMENTS = (
    *("model", "train_loader", "val_loader", "loss", "metrics", "epochs", "optim", "learner"),
    *("learner_options", "carry_state", "on_nan", "prepare_batch", "monitor", "mode"),
    *("callbacks", "logger", "out", "seed", "threads", "accelerator", "devices", "strategy"),
    *("precision", "trainer"),
)


def trained(**options):
    """The history of a small training, as rows of numbers."""
    torch.manual_seed(0)
    usual = {
        "model": SequenceModel(2, 2, d_model=2, n_layers=1, mixer="mingru"),
        "train_loader": DataLoader(DATA, 4),
        "loss": "cross_entropy",
        "epochs": 1,
        "accelerator": "cpu",
        "threads": None,
        "trainer": {"enable_progress_bar": False},
    }
    result = fit(**{**usual, **options})
    # what a metric of the caller's gives is the caller's, NaN too
    return [[row[name] for name in row if not name.endswith("_m")] for row in result.history]


def takes_long_or_is_their_own(name, value):
    """Many epochs take their time, several devices are processes, their functions raise at will."""
    long = name == "epochs" and isinstance(value, int) and value > 10
    several = name == "devices" and isinstance(value, int) and value > 1
    return long or several or callable(value)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ARGUMENTS)
def test_argument(name):
    try_argument(
        lambda value: trained(**{name: value}),
        name,
        without=lambda value: takes_long_or_is_their_own(name, value),
    )


RETURNED = {
    "loss": lambda value: {"loss": lambda y, target: value},
    "metrics": lambda value: {"metrics": {"m": lambda y, target: value}},
    "optim": lambda value: {"optim": lambda model: value},
    "prepare_batch": lambda value: {"prepare_batch": lambda batch: value},
    "a batch": lambda value: {"train_loader": [value]},
    "a batch of validation": lambda value: {"val_loader": [value]},
    "a name of a metric": lambda value: {"metrics": {value: lambda y, target: y[:, 0]}},
    "a setting of the optimiser": lambda value: {"optim": {"lr": value}},
    "a metric": lambda value: {"metrics": {"m": value}},
}


@pytest.mark.unchecked
@pytest.mark.parametrize("what", RETURNED)
def test_what_a_function_or_a_loader_gives(what):
    def unhashable(value):
        return what == "a name of a metric" and type(value).__hash__ is None

    try_argument(
        lambda value: trained(**RETURNED[what](value)),
        what,
        without=lambda value: unhashable(value) or (what == "a metric" and callable(value)),
    )


BATCH = {"x": X[:4], "target": (X[:4].sum((1, 2)) > 0).long()}
SHAPES = [(4,), (4, 5), (4, 5, 2), (4, 1), (4, 0), (0, 5), (4, 5, 2, 1), ()]
KINDS = [torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64, torch.complex64]


def parts():
    """Values of every kind, and tensors of every dtype in the shapes that a part may have."""
    yield from values()
    for shape, kind in itertools.product(SHAPES, KINDS):
        fills = {torch.int64: (1, 6, -1), torch.float64: (1, -1, 1e30, math.nan)}.get(kind, (1,))
        for fill in fills:
            yield torch.full(shape, fill, dtype=kind)
    yield np.ma.masked_array(np.ones((4, 5, 2), "float32"), np.eye(4, 10).reshape(4, 5, 2))
    yield np.ma.masked_array([0, 1, 0, 1], [0, 1, 0, 0])


# Half of the values meet one kind of loss, half the other; all values meet both among slow tests.
TURNS = [pytest.param(2, id="in turns"), pytest.param(1, id="all", marks=pytest.mark.slow)]


@pytest.mark.unchecked
@pytest.mark.parametrize("every", TURNS)
@pytest.mark.parametrize(
    ("turn", "pool", "loss"), [(0, "mean", "cross_entropy"), (1, "none", "mse")]
)
@pytest.mark.parametrize("part", ["x", "target", "lengths", "reset", "dt"])
def test_part_of_a_batch(part, turn, pool, loss, every):
    mixer = "cfc" if part == "dt" else "mingru"

    def call(value):
        model = SequenceModel(2, 2, d_model=2, n_layers=1, mixer=mixer, pool=pool)
        batch = {**BATCH, part: value}
        return trained(
            model=model, train_loader=[batch], loss=loss, metrics=["mse"][loss != "mse" :]
        )

    try_argument(call, part, among=lambda: itertools.islice(parts(), turn % every, None, every))


@pytest.mark.unchecked
@pytest.mark.parametrize("place", ["x", "target"])
def test_masked_values_are_not_read(place):
    masked = np.ma.masked_array(BATCH[place].numpy(), np.zeros(BATCH[place].shape))
    masked[1] = np.ma.masked
    for batch in ({**BATCH, place: masked}, {**BATCH, place: list(masked)}):
        with pytest.raises(ArgumentError, match="must have no masked values"):
            trained(train_loader=[batch])


@pytest.mark.unchecked
def test_batches_in_a_list_are_those_of_a_loader():
    pairs = [tuple(part[start : start + 4] for part in DATA.tensors) for start in (0, 4)]
    loaded = trained(val_loader=DataLoader(DATA, 4))
    plain = [tuple(part.numpy() for part in pair) for pair in pairs]
    named = [dict(zip(("x", "y"), pair, strict=True)) for pair in pairs]
    for batches in (pairs, tuple(pairs), [list(pair) for pair in pairs], plain, named):
        for row, expected in zip(
            trained(train_loader=batches, val_loader=batches), loaded, strict=True
        ):
            assert row[1:-1] == expected[1:-1]  # but for the seconds


class Ends(IterableDataset):
    """Says that it has more rows than it gives."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 8

    def __iter__(self):
        return iter([DATA[i] for i in range(self.rows)])


class Short:
    """Says that it has two batches."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return 2

    def __iter__(self):
        return iter([DATA[:4]] * self.batches)


class Unsized(IterableDataset):
    def __iter__(self):
        return iter(())


def module(**options):
    return {"model": nn.Sequential(nn.Flatten(), nn.Linear(10, 2)), **options}


def without_gradient(y, target):
    return nn.functional.cross_entropy(y.detach(), target)


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


ZEROS = torch.zeros(4, 0, 2)
Y = BATCH["target"]
REFUSED = {
    "a loss without gradient": (module(loss=without_gradient), "the loss must have a gradient"),
    "a complex loss": (module(loss=lambda y, t: y.sum() + 0j), "the loss must be real"),
    "a model that learns nothing": (module(model=nn.Flatten()), "model must have parameters"),
    "rows of no steps": ({"train_loader": [(ZEROS, Y)]}, "rows of x must have at least one step"),
    "a length of 0": (
        {"train_loader": [(X[:4], Y, torch.tensor([0, 1, 5, 5]))]},
        "lengths must be in 1..5, the steps of x, got 0",
    ),
    "a length beyond": (
        {"train_loader": [(X[:4], Y, torch.tensor([6, 1, 5, 5]))]},
        "lengths must be in 1..5, the steps of x, got 6",
    ),
    "no rows": ({"train_loader": [(X[:0], Y[:0])]}, "a batch must have at least one row"),
    "no rows to validate": ({"val_loader": [(X[:0], Y[:0])]}, "a batch must have at least one row"),
    "padding alone": ({"train_loader": [(X[:4], Y * 0 - 100)]}, "at least one target"),
    "padding alone to validate": ({"val_loader": [(X[:4], Y * 0 - 100)]}, "at least one target"),
    "a class beyond": ({"train_loader": [(X[:4], Y + 2)]}, "classes of y must be in 0..1"),
    "a class below": ({"train_loader": [(X[:4], Y - 1)]}, "classes of y must be in 0..1"),
    "a loader that ends": (
        {"train_loader": DataLoader(Ends(4), 4)},
        "train_loader must give the 2 batches of its length, got 1",
    ),
    "a loader of none": (
        {"train_loader": DataLoader(Ends(0), 4)},
        "train_loader must give at least one batch",
    ),
    "an object that ends": (
        {"train_loader": Short(1)},
        "train_loader must give the 2 batches of its length, got 1",
    ),
    "validation that ends": (
        {"val_loader": DataLoader(Ends(4), 4)},
        "val_loader must give the 2 batches of its length, got 1",
    ),
    "validation of none": (
        {"val_loader": DataLoader(Unsized(), 4)},
        "val_loader must give at least one batch",
    ),
    "validation from a generator": (
        {"val_loader": iter([]), "epochs": 2},
        "val_loader must give its batches anew",
    ),
    "training that is used up": (
        lambda: {"train_loader": iter([DATA[:4]] * 2), "optim": sgd},
        "train_loader must give at least one batch .*none in epoch 2",
    ),
    "several loaders of validation": (
        {"val_loader": [DataLoader(DATA, 4)] * 2},
        "val_loader must be one loader",
    ),
    "no name of a metric": ({"metrics": {"": without_gradient}}, "a name of metrics must"),
    "a number as name of a metric": ({"metrics": {1: without_gradient}}, "a name of metrics must"),
    "the loss as a metric": ({"metrics": {"loss": without_gradient}}, "must not be 'loss'"),
    "a metric twice": ({"metrics": ["accuracy"] * 2}, "must name each once"),
    "a class of metrics": ({"metrics": {"m": nn.MSELoss}}, "an object of MSELoss"),
    "a class of losses": ({"loss": nn.MSELoss}, "an object of MSELoss"),
    "a metric that is a text": ({"metrics": {"m": lambda y, t: "high"}}, "the metric m must"),
    "a negative rate": ({"optim": {"lr": -1.0}}, r"optim\.lr must be"),
    "no optimiser": ({"optim": lambda model: "adam"}, "optim must give a torch.optim.Optimizer"),
    "no device": ({"devices": []}, "devices must"),
    "no whole device": ({"devices": 0.5}, "devices must"),
    "an unknown strategy": ({"strategy": "fast"}, "lightning.Trainer"),
    "an unknown accelerator": ({"accelerator": "abacus"}, "lightning.Trainer"),
    "an unknown argument": ({"trainer": {"speed": 1}}, "lightning.Trainer"),
    "a wrong logger": ({"logger": "csv"}, "logger must"),
    "a monitor that is NaN": (
        {"metrics": {"m": lambda y, t: math.nan}, "monitor": "train_m"},
        "train_m must be finite in at least one epoch",
    ),
    "a wrong monitor": ({"monitor": "val_f1"}, "monitor must"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("logger", [False, True], ids=["", "logged"])
@pytest.mark.parametrize("case", REFUSED)
def test_after_a_call_that_is_refused_a_corrected_one_of_any_settings_works(case, logger, tmp_path):
    wrong, text = REFUSED[case]
    wrong = wrong() if callable(wrong) else wrong
    out = tmp_path / "out"
    with pytest.raises(LinrnnError, match=text):
        trained(**{"out": out, "seed": 1, "epochs": 3, "logger": logger, **wrong})
    before = sorted(path.name for path in out.iterdir()) if out.exists() else []
    assert logger or set(before) <= {".lock"} or "last.safetensors" in before
    if "last.safetensors" not in before:
        assert len(trained(out=out, seed=2, epochs=1, loss="cross_entropy")) == 1


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "wrong",
    [{"devices": []}, {"strategy": "fast"}, {"accelerator": "abacus"}, {"trainer": {"speed": 1}}],
    ids=str,
)
def test_what_can_be_refused_without_a_batch_makes_no_folder(wrong, tmp_path):
    with pytest.raises(LinrnnError):
        trained(out=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["fit.json", "history.json"])
@pytest.mark.parametrize("text", ["[]", "{}", "3", "null", '"x"', "[1", "", '{"epochs": 1}'])
def test_a_record_that_was_changed(name, text, tmp_path):
    trained(out=tmp_path / "out")
    (tmp_path / "out" / name).write_text(text)
    with pytest.raises(RunFolderError, match=f"{name}|must be as when the folder was begun"):
        trained(out=tmp_path / "out")


@pytest.mark.unchecked
def test_weights_of_another_model(tmp_path):
    for width in (2, 3):
        trained(model=SequenceModel(2, 2, d_model=width, n_layers=1), out=tmp_path / f"{width}")
    (tmp_path / "3" / "model.safetensors").replace(tmp_path / "2" / "model.safetensors")
    with pytest.raises(RunFolderError, match="the weights must be of the model that was given"):
        trained(model=SequenceModel(2, 2, d_model=2, n_layers=1), out=tmp_path / "2")


@pytest.mark.unchecked
def test_task_of_a_module():
    model = SequenceModel(2, 2, d_model=2, n_layers=1)
    try_argument(lambda task: RecurrentModule.of_task(model, task) and 0, "task")

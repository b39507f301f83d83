"""Series by a model that is trained end to end, in memory, for a number of steps."""

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from linrnn._process.memory import available, check_fits, within
from linrnn._process.signals import StopRequest
from linrnn.backbone import SequenceModel
from linrnn.errors import ArgumentError
from linrnn.estimators._bank import class_targets, softmax, temperature
from linrnn.estimators._series import Series
from linrnn.nn.gaps import centre_and_spread
from linrnn.train import OptimConfig, TrainingModule
from linrnn.train.lightning import quiet

_LAYER = 10_000  # bytes that the objects of a layer take at least
_SMALLER = "Lower d_model, n_layers or batch_size."
_CHECKS = 40  # how often a held-out part is asked


class Training(NamedTuple):
    """The training settings that a user chooses; see `linrnn.RecurrentClassifier`."""

    mixer: Any
    mixer_options: Any
    d_model: int
    n_layers: int
    max_steps: int
    batch_size: int
    learning_rate: float
    early_stopping: bool
    validation_fraction: float
    patience: int
    verbose: bool


class TrainedReadout:
    """A `SequenceModel` of standardised series, with the weights of the best check.

    Where a value of the training series is missing, the model reads 0 and, for each channel,
    whether there was one.

    Args:
        training: its size, and for how long.
        seed: of all random numbers.
    """

    def __init__(self, training: Training, seed: int) -> None:
        self.training, self.seed = training, seed
        self.temperature = 1.0

    def classify(
        self, series: Series, codes: np.ndarray, importance: np.ndarray | None = None
    ) -> "TrainedReadout":
        """Fit to class numbers."""
        target = torch.from_numpy(codes).long()
        n_classes, loss = int(target.max()) + 1, F.cross_entropy
        if importance is not None:
            loss, target = weighted(loss, target[:, None], importance)
        self._fit(series, target, n_classes, loss, codes)
        return self

    def regress(
        self, series: Series, y: np.ndarray, importance: np.ndarray | None = None
    ) -> "TrainedReadout":
        """Fit to numbers, (series,) or (series, targets)."""
        self.flat = y.ndim == 1
        numbers = torch.tensor(y, dtype=torch.float64, device="cpu").reshape(len(y), -1)
        centre, spread = centre_and_spread(numbers[None])
        self.centre, self.spread = centre.numpy(), spread.numpy()
        target, loss = ((numbers - centre) / spread).float(), F.mse_loss
        if importance is not None:
            loss, target = weighted(loss, target, importance)
        self._fit(series, target, numbers.shape[1], loss, None)
        return self

    def decide(self, series: Series) -> np.ndarray:
        """A score for each class, or one number for two; positive is the second."""
        scores = self._answers(series)
        decision: np.ndarray = scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores
        return decision

    def predict(self, series: Series) -> np.ndarray:
        """The numbers."""
        numbers: np.ndarray = self._answers(series) * self.spread + self.centre
        return numbers[:, 0] if self.flat else numbers

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, from their scores."""
        return softmax(scores, self.temperature)

    def _fit(
        self, series: Series, target: Tensor, d_output: int, loss: Any, strata: np.ndarray | None
    ) -> None:
        self._standardise(series)
        chosen, data = self.training, self._tensors(series)
        train, valid = self._split(len(target), strata)
        self._check_size(*data[0].shape[:2])
        with torch.random.fork_rng(), quiet(), StopRequest() as stop:
            torch.manual_seed(self.seed)
            self.model = self._build(data[0].shape[2], d_output)
            module = TrainingModule(self.model, loss, optim=OptimConfig(lr=chosen.learning_rate))
            best = _Best(chosen.patience, stop)
            loaders = [self._loader(data, target, rows, rows is train) for rows in (train, valid)]
            trainer = self._trainer(best, len(loaders[0]), bool(len(valid)))
            trainer.fit(module, loaders[0], loaders[1] if len(valid) else None)
        if best.weights is not None:
            self.model.load_state_dict(best.weights)
        self.model.eval()
        if strata is not None and len(valid):
            self._temper(series.rows(valid), strata[valid], d_output)
        self.steps = trainer.global_step
        if stop.requested:
            warnings.warn(
                f"interrupted after {self.steps} of {chosen.max_steps} steps; the best weights "
                "until then are kept",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _temper(self, series: Series, codes: np.ndarray, n_classes: int) -> None:
        """Choose the temperature by series that were held out."""
        scores = self.decide(series).reshape(len(codes), -1)
        self.temperature = temperature(scores, class_targets(codes, np.arange(n_classes)))

    def _check_size(self, rows: int, steps: int) -> None:
        """One square matrix and the objects of each layer, and what a batch leaves behind them."""
        layers, width = self.training.n_layers, self.training.d_model
        batch = min(rows, self.training.batch_size)
        needed = layers * (4 * width**2 + _LAYER) + 4 * batch * steps * width * layers
        check_fits("d_model, n_layers", "the model and a batch", needed, _SMALLER)

    def _build(self, d_input: int, d_output: int) -> SequenceModel:
        chosen, limit = self.training, available()
        message = (
            f"d_model, n_layers: the model must fit into {limit:,} bytes of memory. {_SMALLER}"
        )
        with within(limit, ArgumentError, message):
            return SequenceModel(
                d_input,
                d_output,
                mixer=chosen.mixer,
                mixer_options=chosen.mixer_options,
                d_model=chosen.d_model,
                n_layers=chosen.n_layers,
                norm="layer",
                dtype=torch.float32,
            )

    def _trainer(self, best: Callback, batches: int, validates: bool) -> Trainer:
        chosen = self.training
        # where nothing is held out the interval is of no use, and must not exceed the epoch
        every = max(1, math.ceil(chosen.max_steps / _CHECKS)) if validates else batches
        return Trainer(
            max_steps=chosen.max_steps,
            max_epochs=-1,
            devices=1,
            accelerator="auto",
            callbacks=[best],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=chosen.verbose,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            val_check_interval=every,
            check_val_every_n_epoch=None,
        )

    def _loader(
        self, data: list[Tensor], target: Tensor, rows: np.ndarray, shuffle: bool
    ) -> DataLoader[Any]:
        x, *more = (part[rows] for part in data)
        generator = torch.Generator().manual_seed(self.seed)
        dataset = TensorDataset(x, target[rows], *more)
        size = self.training.batch_size
        return DataLoader(dataset, size, shuffle=shuffle, generator=generator)

    def _split(self, count: int, strata: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(count)
        n_valid = min(math.ceil(count * self.training.validation_fraction), count - 1)
        if not self.training.early_stopping or not n_valid:
            return rows, rows[:0]
        if strata is not None:
            counts = np.bincount(strata)
            # every class must have a series on both sides, else chance decides
            if counts.min() < 2 or not len(counts) <= n_valid <= count - len(counts):
                strata = None
        parts = train_test_split(rows, test_size=n_valid, stratify=strata, random_state=self.seed)
        return parts[0], parts[1]

    def _standardise(self, series: Series) -> None:
        x = series.x
        self.mean, self.scale = centre_and_spread(x)
        inside = torch.arange(x.shape[1], device="cpu") < series.lengths[:, None]
        self.marked = bool((x.isnan() & inside[..., None]).any())

    def _tensors(self, series: Series) -> list[Tensor]:
        """The inputs of the model: series, lengths, and times if there are any."""
        x = (series.x - self.mean) / self.scale
        present = x.isnan().logical_not()
        x = torch.cat([x.nan_to_num(nan=0.0), present], 2) if self.marked else x.nan_to_num(nan=0.0)
        times = [] if series.dt is None else [series.dt.float()]
        return [x.float(), series.lengths, *times]

    @torch.no_grad()
    def _answers(self, series: Series) -> np.ndarray:
        outputs, size = [], self.training.batch_size
        x, lengths, *times = self._tensors(series)
        for k in range(0, len(x), size):
            rows = slice(k, k + size)
            intervals = {"dt": times[0][rows]} if times else {}
            outputs.append(self.model(x[rows], lengths=lengths[rows], **intervals)[0])
        return torch.cat(outputs).double().numpy()


def weighted(loss: Any, target: Tensor, importance: np.ndarray) -> tuple[Any, Tensor]:
    """A loss whose rows count as much as their importance, which is the last column of its target.

    Args:
        loss: of ``(y, target)`` with ``reduction``.
        target: (rows, targets), of integers where they are classes.
        importance: (rows,), 1 in the mean.
    """
    classes = not target.is_floating_point()

    def of(y: Tensor, both: Tensor) -> Tensor:
        target = both[:, 0].long() if classes else both[:, :-1]
        values = loss(y, target, reduction="none").reshape(len(y), -1).mean(1)
        mean: Tensor = (values * both[:, -1]).mean()
        return mean

    return of, torch.cat([target.float(), torch.from_numpy(importance).float()[:, None]], 1)


class _Best(Callback):
    """Keeps the weights with the smallest held-out loss, and ends what does not get better."""

    def __init__(self, patience: int, stop: StopRequest) -> None:
        self.patience, self.stop = patience, stop
        self.loss, self.since = math.inf, 0
        self.weights: dict[str, Tensor] | None = None

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        """Compare."""
        loss = float(trainer.callback_metrics["validation_loss"])
        self.since += 1
        if loss < self.loss:
            weights = module.model.state_dict()
            self.weights = {name: value.detach().cpu().clone() for name, value in weights.items()}
            self.loss, self.since = loss, 0
        trainer.should_stop = trainer.should_stop or self.since >= self.patience

    def on_train_batch_end(self, trainer: Trainer, *more: Any) -> None:
        """Heed Ctrl-C."""
        trainer.should_stop = trainer.should_stop or self.stop.requested

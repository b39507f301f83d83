"""One small training: a system on an ability at one value of its dial."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.atlas._abilities import Ability
from linrnn.atlas._systems import LAYERS, System
from linrnn.backbone import SequenceModel
from linrnn.errors import NonFiniteError
from linrnn.tasks import Task
from linrnn.train import OptimConfig, lr_factor
from linrnn.train.optim import make_optimizer

STEPS, BATCH = 600, 32
"""Updates of a training, and new sequences of each."""
_LOOK = 50
"""Updates between two looks at validation."""
_DONE = 0.97
"""Part of the way at which training ends early."""
ENOUGH = 0.6
"""Part of the way at which a training is put down while harder values are tried."""
HALF = 0.5
"""Part of the way from chance to perfect at which a system has an ability."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A row of the atlas: one training, to its end or until it was put down.

    Args:
        value: of the dial.
        rate: largest learning rate.
        steps: updates that were taken.
        reached: updates after which validation was half of the way; None if it never was.
        score: of the test, in the task's metric.
        fraction: of the way from chance to perfect.
        longer: the same of sequences four times as long; None where the task has no length, and of
            a training that was put down.
        loss: of validation, at the end.
        seconds: of a processor, for training and tests.
    """

    value: int
    rate: float
    steps: int
    reached: int | None
    score: float
    fraction: float
    longer: float | None
    loss: float
    seconds: float


class Training:
    """A training of a system from new weights, which can be put down and taken up.

    AdamW with warm-up and cosine, on sequences that are never read twice; a training that is
    nearly perfect on validation ends. Weights and data depend on the seed alone, so one that was
    put down ends as if it never had been.

    Args:
        system, ability, value: what is trained on what.
        rate: largest learning rate.
        seed: of weights and data.
        steps: most updates.
        watch: called with the number of updates done, the model, the task and the next batch: at
            the start and wherever validation is looked at.
    """

    def __init__(
        self,
        system: System,
        ability: Ability,
        value: int,
        *,
        rate: float,
        seed: int,
        steps: int = STEPS,
        watch: Callable[[int, SequenceModel, Task, Sequence[Tensor]], Any] | None = None,
    ) -> None:
        started = time.process_time()
        self.ability, self.value, self.rate, self.steps = ability, value, rate, steps
        self.watch = watch
        self.task = ability.build(value, examples=steps * BATCH, seed=seed)
        self.data = self.task.datasets()
        self.model = _model(system, ability, self.task, seed)
        self.config = OptimConfig(lr=rate)
        self.optimizer = make_optimizer(self.model, self.config)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: lr_factor(n, steps, self.config)
        )
        self.step = 0
        self.reached: int | None = None
        self.fraction, self.loss, self.ended = 0.0, float("nan"), False
        self.seconds = time.process_time() - started

    def run(self, until: float = _DONE) -> None:
        """Update until validation has come a part of the way, or the training has ended.

        Args:
            until: part of the way.
        """
        started = time.process_time()
        while not self.ended and self.fraction < until:
            self._update()
            if not self.ended and (self.step % _LOOK == 0 or self.step == self.steps):
                self._look()
        self.seconds += time.process_time() - started

    def row(self, *, longer: bool = True) -> Trained:
        """Test what was trained so far.

        Args:
            longer: also test sequences four times as long, once the training has ended.
        """
        started = time.process_time()
        score, _ = _test(self.model, self.task, self.data.test)
        four_times = _longer(self.model, self.ability, self.task) if longer and self.ended else None
        return Trained(
            value=self.value,
            rate=self.rate,
            steps=self.step,
            reached=self.reached,
            score=score,
            fraction=self.ability.fraction(self.task, score),
            longer=four_times,
            loss=self.loss,
            seconds=round(self.seconds + time.process_time() - started, 2),
        )

    def _update(self) -> None:
        batch = self.data.train[range(self.step * BATCH, (self.step + 1) * BATCH)]
        if self.watch is not None and self.step % _LOOK == 0:
            self.watch(self.step, self.model, self.task, batch)
        if _update(self.model, self.task, self.optimizer, batch, self.config.clip):
            self.schedule.step()
            self.step += 1
        else:
            self.ended = True

    def _look(self) -> None:
        score, self.loss = _test(self.model, self.task, self.data.validation)
        self.fraction = self.ability.fraction(self.task, score)
        if self.reached is None and self.fraction >= HALF:
            self.reached = self.step
        self.ended = self.fraction >= _DONE or self.step == self.steps


def train(
    system: System,
    ability: Ability,
    value: int,
    *,
    rate: float,
    seed: int,
    steps: int = STEPS,
    extrapolate: bool = True,
    watch: Callable[[int, SequenceModel, Task, Sequence[Tensor]], Any] | None = None,
) -> Trained:
    """Train a system to the end and test it: see `Training`.

    Args:
        system, ability, value, rate, seed, steps, watch: of the training.
        extrapolate: also test sequences four times as long.
    """
    training = Training(system, ability, value, rate=rate, seed=seed, steps=steps, watch=watch)
    training.run()
    return training.row(longer=extrapolate)


def tune(system: System, ability: Ability, rates: Sequence[float], *, seed: int) -> float:
    """The best of some learning rates, by halving: all on a third of the steps, two on all.

    Args:
        system, ability: of which the second is not on the map.
        rates: to choose from.
        seed: of weights and data.
    """

    def rank(steps: int) -> Callable[[float], tuple[float, float]]:
        def key(rate: float) -> tuple[float, float]:
            value = ability.values[0]
            run = train(
                system, ability, value, rate=rate, seed=seed, steps=steps, extrapolate=False
            )
            return -run.fraction, run.loss if run.loss == run.loss else float("inf")

        return key

    finalists = sorted(rates, key=rank(STEPS // 3))[:2]
    return min(finalists, key=rank(STEPS))


def _model(system: System, ability: Ability, task: Task, seed: int) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SequenceModel(
            task.d_input,
            task.d_output,
            mixer=system.name,
            mixer_options=dict(system.options),
            d_model=system.width,
            n_layers=LAYERS,
            norm="layer",
            pool=ability.pool,
            encoder=task.encoder,
        )


def _update(
    model: nn.Module, task: Task, optimizer: Any, batch: Sequence[Tensor], clip: float
) -> bool:
    """Whether a step could be taken: a loss or gradient that is not finite ends a training."""
    model.train()
    optimizer.zero_grad()
    try:
        loss = task.loss(_answer(model, batch), batch[1])
        loss.backward()
    except NonFiniteError:
        return False
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    if not (loss.isfinite() and norm.isfinite()):
        return False
    optimizer.step()
    return True


def _answer(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """Outputs for a batch; real numbers behind the target are the times between steps."""
    times = [part for part in batch[2:] if part.is_floating_point()]
    y: Tensor = model(batch[0], **({"dt": times[0]} if times else {}))[0]
    return y


@torch.no_grad()
def _test(model: nn.Module, task: Task, data: Any) -> tuple[float, float]:
    """The mean score, and the loss; the score of chance where outputs are not finite."""
    model.eval()
    scores, losses = [], []
    for start in range(0, len(data), 128):
        batch = data[range(start, min(start + 128, len(data)))]
        try:
            y = _answer(model, batch)
        except NonFiniteError:
            return task.chance, float("inf")
        scores.append(task.scores(y, batch[1]))
        losses.append(float(task.loss(y, batch[1])))
    score = float(task.contributions(torch.cat(scores)).mean())
    return (score if score == score else task.chance), sum(losses) / len(losses)


def _longer(model: nn.Module, ability: Ability, task: Task) -> float | None:
    """Part of the way at four times the length, where the task has one."""
    if not hasattr(task.options, "length") or ability.task == "delay":
        return None
    longer = task.at_length(4 * task.options.length)
    score, _ = _test(model, longer, longer.datasets().test)
    return ability.fraction(longer, score)

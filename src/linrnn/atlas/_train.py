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
from linrnn.train import OptimConfig, lr_factor, param_groups

STEPS, BATCH = 600, 32
"""Updates of a training, and new sequences of each."""
_LOOK = 50
"""Updates between two looks at validation."""
_DONE = 0.97
"""Part of the way at which training ends early."""
HALF = 0.5
"""Part of the way from chance to perfect at which a system has an ability."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A row of the atlas: one training.

    Args:
        value: of the dial.
        rate: largest learning rate.
        steps: updates that were taken.
        reached: updates after which validation was half of the way; None if it never was.
        score: of the test, in the task's metric.
        fraction: of the way from chance to perfect.
        longer: the same of sequences four times as long; None where the task has no length.
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
    """Train a system from new weights and test it.

    AdamW with warm-up and cosine, on sequences that are never read twice; a training that is
    nearly perfect on validation ends. Weights and data depend on the seed alone.

    Args:
        system, ability, value: what is trained on what.
        rate: largest learning rate.
        seed: of weights and data.
        steps: most updates.
        extrapolate: also test sequences four times as long.
        watch: called with the number of updates done, the model, the task and the next batch: at
            the start and wherever validation is looked at.
    """
    started = time.process_time()
    task = ability.build(value, examples=steps * BATCH, seed=seed)
    model = _model(system, ability, task, seed)
    config = OptimConfig(lr=rate)
    optimizer = torch.optim.AdamW(param_groups(model, config), betas=config.betas)
    data = task.datasets()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: lr_factor(n, steps, config))
    reached, fraction, loss, step = None, 0.0, float("nan"), 0
    while step < steps:
        batch = data.train[range(step * BATCH, (step + 1) * BATCH)]
        if watch is not None and step % _LOOK == 0:
            watch(step, model, task, batch)
        if not _update(model, task, optimizer, batch, config.clip):
            break
        schedule.step()
        step += 1
        if step % _LOOK == 0 or step == steps:
            score, loss = _test(model, task, data.validation)
            fraction = ability.fraction(task, score)
            reached = step if reached is None and fraction >= HALF else reached
            if fraction >= _DONE:
                break
    score, _ = _test(model, task, data.test)
    longer = _longer(model, ability, task) if extrapolate else None
    return Trained(
        value=value,
        rate=rate,
        steps=step,
        reached=reached,
        score=score,
        fraction=ability.fraction(task, score),
        longer=longer,
        loss=loss,
        seconds=round(time.process_time() - started, 2),
    )


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

"""A delay that a learning rule has to find: one loop, rates by validation, errors step by step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.learn import Batch
from linrnn.reproductions._base import Table

ROWS, ASKED = 16, 256
"""Sequences of a batch, and of validation and of test."""
EVERY = 25
"""Steps between two looks at validation."""
_VALIDATION, _TEST = 1 << 20, 1 << 21  # seeds of data, far from those of runs


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row: a learner, and what of the layer stays as it was drawn."""

    learner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    held: Sequence[str] = ()
    """Names of parameters of the layer."""


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Signs to be given back some steps later, the layer that is to do it, and its training."""

    name: str
    lag: int
    length: int
    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 1
    steps: int
    rates: Sequence[float]

    def model(self, seed: int) -> SequenceModel:
        """One layer between maps of which the first passes the input on and does not learn.

        What stands below a layer is outside of what rules without a past are exact for.
        """
        torch.manual_seed(seed)
        model = SequenceModel(
            1,
            1,
            mixer=self.mixer,
            mixer_options=self.options,
            d_model=self.width,
            n_layers=1,
            block="bare",
            norm="none",
            skip=False,
            pool="none",
        )
        assert isinstance(model.encoder, nn.Linear)
        nn.init.ones_(model.encoder.weight)
        nn.init.zeros_(model.encoder.bias)
        model.encoder.requires_grad_(False)
        return model


class Run(NamedTuple):
    """What came of a run."""

    curve: list[tuple[int, float]]
    """Steps, and the error on validation after them."""
    error: float
    """Of the test."""


Runs = Mapping[str, Sequence[Run]]
"""By rule, one for each seed."""


def signs(rows: int, length: int, lag: int, generator: torch.Generator) -> Batch:
    """Independent signs (rows, length, 1), and the same ``lag`` steps later after zeros."""
    x = torch.randint(2, (rows, length, 1), generator=generator) * 2.0 - 1
    target = torch.zeros_like(x)
    target[:, lag:] = x[:, : length - lag]
    return Batch(x, target, None, None)


def error(model: nn.Module, batch: Batch, lag: int) -> float:
    """Mean squared, of the steps with something to give back; 1: that of answering 0."""
    with torch.no_grad():
        y, _ = model(batch.x)
        return float((y - batch.target)[:, lag:].square().mean())


def descend(
    model: nn.Module,
    learner: learn.Learner,
    *,
    steps: int,
    rate: float,
    draw: Callable[[], Batch],
    look: Callable[[int], Any],
) -> None:
    """Adam with gradients of a norm up to 1; ``look`` is told of 0 steps, and of each after.

    Args:
        model, learner: of which the second finds gradients for the first.
        steps, rate: of Adam.
        draw: gives the next batch.
        look: is told how many steps are done.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer, loop = torch.optim.Adam(parameters, rate), learn.Loop(mse_loss)
    learner.check(model)
    look(0)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        learner.step(model, draw(), None, loop)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        look(step)


def trained(delay: Delay, rule: Rule, rate: float, seed: int) -> Run:
    """Learn a delay by a rule: the gradient of whole batches, however it is found."""
    model = delay.model(seed)
    for name, parameter in model.mixers[0].named_parameters():
        parameter.requires_grad_(name not in rule.held)
    draw = partial(signs, length=delay.length, lag=delay.lag)
    validation, test = (draw(ASKED, generator=_generator(s)) for s in (_VALIDATION, _TEST))
    curve: list[tuple[int, float]] = []

    def look(step: int) -> None:
        if step % EVERY == 0 or step == delay.steps:
            curve.append((step, error(model, validation, delay.lag)))

    generator = _generator(seed)
    descend(
        model,
        learn.build(rule.learner, rule.options),
        steps=delay.steps,
        rate=rate,
        draw=lambda: draw(ROWS, generator=generator),
        look=look,
    )
    return Run(curve, error(model, test, delay.lag))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tuned(
    delay: Delay, rules: Mapping[str, Rule], seeds: Sequence[int], say: Callable[[str], Any]
) -> tuple[Runs, Table]:
    """Every rule at each rate with the first seed, and at the best on validation with all.

    Returns:
        Runs at the best rates, and what was tried.
    """
    found, tried = {}, []
    for label, rule in rules.items():
        first = {rate: trained(delay, rule, rate, seeds[0]) for rate in delay.rates}
        best = min(first, key=lambda rate: _rank(first[rate].curve[-1][1]))
        others = [trained(delay, rule, best, seed) for seed in seeds[1:]]
        found[label] = [first[best], *others]
        cells = [f"{run.curve[-1][1]:.3g} at {rate:g}" for rate, run in first.items()]
        tried.append([label, *cells, f"{best:g}"])
        say(f"{delay.name}, {label}: {errors(found[label])} at {best:g}")
    title = f"{delay.name}: error on validation of seed {seeds[0]} while tuning"
    head = ["rule", *(f"rate {i}" for i in range(1, len(delay.rates) + 1)), "taken"]
    return found, Table(title, head, tried)


def _rank(value: float) -> float:
    """Errors in their order, those that are no number last."""
    return value if value == value else float("inf")


def errors(runs: Sequence[Run]) -> str:
    """Of the test, seed by seed."""
    return ", ".join(f"{run.error:.3g}" for run in runs)


def solved_readout(delay: Delay, seed: int, penalty: float) -> float:
    """Error of the best read-out of an LRU as it is drawn, solved for in float64.

    Of independent signs the error of a linear model is the squared distance of its response to
    a single one from what it should be; a state answers with powers of its eigenvalue.

    Args:
        delay: of an LRU.
        seed: of the model.
        penalty: on the squared weights of the read-out, where states have the variance 1.
    """
    layer: Any = delay.model(seed).mixers[0]
    with torch.no_grad():
        lam = layer.eigenvalues().to(torch.complex128)
    powers = lam ** torch.arange(delay.length)[:, None]
    basis = torch.cat([powers.real, powers.imag, torch.eye(delay.length, 1).double()], 1)
    basis = basis / basis.norm(dim=0)
    wanted = torch.eye(delay.length, dtype=basis.dtype)[delay.lag]
    gram = basis.T @ basis + penalty * torch.eye(basis.shape[1], dtype=basis.dtype)
    weights = torch.linalg.solve(gram, basis.T @ wanted)
    return float((basis @ weights - wanted).square().sum())


def stacked(runs: Sequence[Run]) -> tuple[list[int], Tensor]:
    """Steps, and the errors (seeds, steps) on validation after them."""
    steps = [step for step, _ in runs[0].curve]
    return steps, torch.tensor([[value for _, value in run.curve] for run in runs])

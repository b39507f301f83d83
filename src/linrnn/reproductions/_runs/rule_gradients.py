"""Gradients of learning rules beside the true ones: by layer along a training, and by draw."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from linrnn import SequenceModel, learn
from linrnn.learn import Batch, alignment
from linrnn.reproductions._runs.delays import signs
from linrnn.reproductions._runs.lessons import ROWS, Rule, descend

LAG, LENGTH, WIDTH, RATE = 12, 32, 16, 3e-3
"""Settings of the stacks whose gradients are compared, and of their training."""
COMPARED = 64
"""Sequences that gradients are compared on."""
NOISE_LAG, NOISE_LENGTH = 4, 12
"""Sizes of the task on which estimates of `uoro` are averaged."""
_COMPARISON_SEED, _TRAINING_SEED = 1, 2  # seeds of data, that of a run apart

Angles = dict[tuple[str, int], list[float]]
"""By rule and step: the cosine of the mixer of each layer, the first first, and that of all."""


class Noise(NamedTuple):
    """Errors of an estimate of a gradient."""

    spread: float
    """Standard deviation of one estimate over the norm of the gradient."""
    miss: float
    """Bias of the mean estimate along the gradient, in standard errors."""
    error: float
    """One such standard error over the norm of the gradient: less of a bias does not show."""


def angles(
    depth: int,
    ring: tuple[float, float],
    rules: Mapping[str, Rule],
    steps: Sequence[int],
    seed: int,
) -> Angles:
    """Cosines between gradients of rules and those of back-propagation, which is what trains.

    Args:
        depth: layers, each an LRU in the block of its paper.
        ring: r_min and r_max.
        rules: by label.
        steps: of training after which to look, the last after all of it.
        seed: of the model and of the data.
    """
    torch.manual_seed(seed)
    model = SequenceModel(
        1,
        1,
        mixer="lru",
        mixer_options={"d_state": WIDTH, "r_min": ring[0], "r_max": ring[1]},
        d_model=WIDTH,
        n_layers=depth,
        norm="layer",
        pool="none",
    )
    heard = torch.Generator().manual_seed(10 * seed + _TRAINING_SEED)
    batch = signs(
        COMPARED, LENGTH, LAG, torch.Generator().manual_seed(10 * seed + _COMPARISON_SEED)
    )
    similarities: Angles = {}

    def look(step: int) -> None:
        if step in steps:
            for label, rule in rules.items():
                similarities[label, step] = cosines(model, rule, batch)

    descend(
        model,
        learn.build("bptt"),
        steps=steps[-1],
        rate=RATE,
        draw=lambda: signs(ROWS, LENGTH, LAG, heard),
        look=look,
    )
    return similarities


def cosines(model: SequenceModel, rule: Rule, batch: Batch) -> list[float]:
    """Cosines with the true gradient: of each layer's mixer, and of all parameters together."""
    measured = alignment(model, learn.build(rule.learner, rule.options), batch, mse_loss)
    layers = [f"blocks.{i}.mixer" for i in range(len(model.mixers))]
    return [measured[name].cosine for name in (*layers, "")]


def noise(size: int, seed: int, *, rows: int, draws: int) -> Noise:
    """Measure the estimates of `uoro` for a randomly initialised layer of dense tanh cells.

    Rows of a batch have noise of their own, so a batch of one sequence many times is a mean of
    as many estimates, and batches differ by its error.

    Args:
        size: cells.
        seed: of the layer and of the sequence.
        rows: copies of the sequence in a batch.
        draws: batches.
    """
    torch.manual_seed(seed)
    model = SequenceModel(
        1, 1, mixer="tanh_rnn", d_model=size, n_layers=1, block="bare", norm="none",
        skip=False, pool="none",
    )  # fmt: skip
    single = signs(1, NOISE_LENGTH, NOISE_LAG, torch.Generator().manual_seed(seed))
    repeated = Batch(single.x.expand(rows, -1, -1), single.target.expand(rows, -1, -1), None, None)
    true = _gradient(model, learn.build("bptt"), single)
    # (draws, parameters)
    means = torch.stack([_gradient(model, learn.build("uoro"), repeated) for _ in range(draws)])
    variance = float((means - means.mean(0)).square().sum() / (draws - 1))
    norm = float(true.norm())
    # in many dimensions a bias would drown in the noise of all, and not in that of one
    along = means @ true / norm**2
    error = float(along.std()) / draws**0.5
    return Noise((rows * variance) ** 0.5 / norm, (float(along.mean()) - 1) / error, error)


def _gradient(model: SequenceModel, learner: learn.Learner, batch: Batch) -> Tensor:
    """Return the gradient of the layer, in float64."""
    model.zero_grad(set_to_none=True)
    learner.step(model, batch, None, learn.Loop(mse_loss))
    parts = [p.grad for p in model.mixers[0].parameters() if p.grad is not None]
    return torch.cat([part.flatten() for part in parts]).double()

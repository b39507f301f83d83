"""A continuous Hopfield network that holds an image in mind, and its training by any learner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss

from linrnn import learn, tasks
from linrnn.errors import NonFiniteError
from linrnn.learn import Batch

DIGITS = 10
PUBLISHED, SPREAD = 0.5, 1e-3  # slope, and deviation of the first weights
INK = 0.5
"""Threshold, as a fraction of the brightest pixel: brighter pixels are ink, 1, the others 0."""
EVERY = 25
"""Steps between two looks."""


class Hopfield(nn.Module):
    """Units that see one another, among them those of an image that is held.

    Equation::

        h_t = A sigmoid(slope h_{t-1}) + B sigmoid(slope u),   y = the last units of h

    with A and B blocks of one symmetric matrix without a diagonal, ``W + W^T``. The units of u are
    clamped; as many answer, and between them stand hidden ones.

    Args:
        pixels: of u, and units that answer.
        hidden: units that do neither.
        slope: of every unit.

    Shapes:
        x (batch, time, pixels), h (batch, hidden + pixels), y (batch, pixels) after the last step.
    """

    def __init__(self, pixels: int, hidden: int, slope: float) -> None:
        super().__init__()
        self.pixels, self.slope = pixels, slope
        size = 2 * pixels + hidden
        self.W = nn.Parameter(SPREAD * torch.randn(size, size))

    def blocks(self) -> tuple[Tensor, Tensor]:
        """A and B."""
        symmetric = self.W + self.W.T
        symmetric = symmetric - torch.diag(symmetric.diagonal())
        return symmetric[self.pixels :, self.pixels :], symmetric[self.pixels :, : self.pixels]

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the values of the last units, and the state; without one it begins at 0."""
        A, B = self.blocks()
        h = x.new_zeros(len(x), len(A)) if h is None else h
        drive = torch.sigmoid(self.slope * x) @ B.T  # (batch, time, hidden + pixels)
        for u in drive.unbind(1):
            h = torch.sigmoid(self.slope * h) @ A.T + u
        return h[:, -self.pixels :], h

    @torch.no_grad()
    def radius(self, x: Tensor, steps: int) -> float:
        """The largest eigenvalue of a step's Jacobian after some steps, of all rows, in magnitude.

        Args:
            x: images (batch, pixels).
            steps: that they are held.
        """
        A, _ = self.blocks()
        _, h = self(x[:, None].expand(-1, steps, -1))  # (batch, units)
        s = torch.sigmoid(self.slope * h)
        # D A with D >= 0 has the eigenvalues of the symmetric D^1/2 A D^1/2
        root = (self.slope * s * (1 - s)).sqrt()
        values = torch.linalg.eigvalsh(root[:, :, None] * A * root[:, None, :])  # (batch, units)
        return float(values.abs().max())


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Images to be kept, the network that is to keep them, and its training."""

    images: Literal["digits", "mnist"] = "digits"
    hidden: int = 80
    slope: float = PUBLISHED
    updates: int = 60
    """Updates of all units before the answer is read."""
    steps: int = 500
    """Steps of Adam, each with all images."""

    def pictures(self, seed: int) -> Tensor:
        """One image of each digit, (10, pixels) of 0 and 1: another for each seed.

        Raises:
            DataError: the files are not there.
        """
        if self.images == "digits":
            data: Any = tasks.load("digits")().datasets().train
            pixels = torch.stack([data[i][0].flatten() for i in range(len(data))])
            labels = torch.tensor([int(data[i][1]) for i in range(len(data))])
        else:
            task: Any = tasks.load("smnist")()
            read = [torch.from_numpy(part) for part in task.images("train")]
            pixels, labels = read[0].flatten(1) / 255, read[1]
        rows = [(labels == digit).nonzero()[seed, 0] for digit in range(DIGITS)]
        return (pixels[torch.stack(rows)] > INK).float()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A learner, and how long it reads."""

    learner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    unrolled: bool = False
    """Whether it is given as many inputs as there are updates, or one, which it holds."""


class Training(NamedTuple):
    """Results of one training run."""

    curve: list[tuple[int, float]]
    """Steps, and the loss of whole images after them."""
    left_out: list[int]
    """Steps whose gradient did not come to anything, so that no weight moved."""
    wrong: float
    """Part of the pixels that are wrong where half the ink was missing."""
    damaged: float
    """Part of the pixels that are wrong in those damaged images."""
    radius: float
    """Spectral radius of an update, at the end."""

    @property
    def loss(self) -> float:
        """The last one of the curve."""
        return self.curve[-1][1]


def without_half(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Remove half of each picture's ink."""
    damaged = pictures.clone()
    for picture in damaged:
        ink = picture.nonzero()[:, 0]
        removed = torch.randperm(len(ink), generator=generator)[: len(ink) // 2]
        picture[ink[removed]] = 0
    return damaged


def wrong(answer: Tensor, pictures: Tensor) -> float:
    """Part of the pixels that are not those of the pictures, once an answer is ink or none."""
    return float(((answer > INK).float() != pictures).float().mean())


def trained(memory: Memory, rule: Rule, rate: float, seed: int) -> Training:
    """Learn to answer with the image that is held, by Adam; the gradient is found by a rule.

    A step whose gradient the learner refuses, or whose gradient is not finite, is left out.
    """
    torch.manual_seed(seed)
    pictures = memory.pictures(seed)
    model = Hopfield(pictures.shape[1], memory.hidden, memory.slope)
    learner, loop = learn.build(rule.learner, rule.options), learn.Loop(l1_loss)
    learner.check(model)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    # (images, updates, pixels)
    inputs = pictures[:, None].expand(-1, memory.updates if rule.unrolled else 1, -1)
    batch = Batch(inputs, pictures, None, None)
    answer = _answering(model, memory.updates)
    curve, left_out = [(0, float(l1_loss(answer(pictures), pictures)))], []
    for step in range(1, memory.steps + 1):
        optimizer.zero_grad()
        try:
            learner.step(model, batch, None, loop)
        except NonFiniteError:
            left_out.append(step)
        else:
            if bool(torch.isfinite(_gradient(model)).all()):
                optimizer.step()
            else:
                left_out.append(step)
        if step % EVERY == 0 or step == memory.steps:
            curve.append((step, float(l1_loss(answer(pictures), pictures))))
    damaged = without_half(pictures, torch.Generator().manual_seed(seed))
    radius = model.radius(pictures, memory.updates)
    error, damaged_error = wrong(answer(damaged), pictures), wrong(damaged, pictures)
    return Training(curve, left_out, error, damaged_error, radius)


def _answering(model: Hopfield, updates: int) -> Callable[[Tensor], Tensor]:
    def answer(pictures: Tensor) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = model(pictures[:, None].expand(-1, updates, -1))[0]
        return outputs

    return answer


def _gradient(model: Hopfield) -> Tensor:
    gradient = model.W.grad
    assert gradient is not None
    return gradient

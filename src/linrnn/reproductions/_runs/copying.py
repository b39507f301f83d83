"""Copying with padding: bits that are the targets once all have been read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from linrnn import SequenceModel
from linrnn.learn import Batch
from linrnn.reproductions._runs.lessons import Lesson


@dataclass(frozen=True, kw_only=True)
class Copying(Lesson):
    """Patterns of random bits, blank steps, and the pattern again from a sign on.

    A step has a channel for each bit and one for the sign, which the first step with a target
    has. The loss is that of those steps alone. Each bit is the target ``pattern + pad`` steps after
    it was read.
    """

    pattern: int
    """Steps of a pattern."""
    pad: int
    """Blank steps behind it."""
    bits: int
    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int
    depth: int = 1
    bare: bool = False
    """A single layer that reads the channels as they are, with nothing below it that learns."""

    @property
    def lag(self) -> int:
        """Steps from a bit to its question."""
        return self.pattern + self.pad

    def model(self, seed: int) -> SequenceModel:
        """A stack in the block of the LRU paper, or a layer alone."""
        torch.manual_seed(seed)
        around: dict[str, Any] = {"norm": "layer"}
        if self.bare:
            around = {"norm": "none", "block": "bare", "skip": False, "identity_ends": "in"}
        return SequenceModel(
            self.bits + 1,
            self.bits,
            mixer=self.mixer,
            mixer_options=self.options,
            d_model=self.width,
            n_layers=self.depth,
            pool="none",
            **around,
        )

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """Inputs (rows, 2 pattern + pad, bits + 1), and bits where they are the targets."""
        bits = torch.randint(2, (rows, self.pattern, self.bits), generator=generator).float()
        x = torch.zeros(rows, self.lag + self.pattern, self.bits + 1)
        x[:, : self.pattern, : self.bits] = bits
        x[:, self.lag, self.bits] = 1
        target = torch.zeros(rows, self.lag + self.pattern, self.bits)
        target[:, self.lag :] = 2 * bits - 1
        return Batch(x, target, None, None)

    def loss(self, y: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of a target bit; that of guessing is 1.

        Targets are -1 or 1 there, else 0. A window has the mean over all steps, scaled so that
        windows add up to that.
        """
        mask = target.abs()
        losses = binary_cross_entropy_with_logits(y, (target + 1) / 2, reduction="none")
        part = self.pattern / (self.lag + self.pattern)
        return (mask * losses).mean() / (part * log(2))

    def error(self, model: nn.Module, batch: Batch) -> float:
        """The loss."""
        with torch.no_grad():
            return float(self.loss(model(batch.x)[0], batch.target))

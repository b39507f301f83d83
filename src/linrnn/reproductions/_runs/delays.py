"""A delay that a learning rule has to find, and what the layer could hold of it as it is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from linrnn import SequenceModel
from linrnn.learn import Batch
from linrnn.reproductions._runs.lessons import Lesson


@dataclass(frozen=True, kw_only=True)
class Delay(Lesson):
    """Signs to be given back some steps later, by one layer."""

    lag: int
    length: int
    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 1

    def model(self, seed: int) -> SequenceModel:
        """One layer between maps of which the first passes the input on and does not learn.

        Rules without a past are not exact for parts below a layer.
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

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """Signs, and the same later."""
        return signs(rows, self.length, self.lag, generator)

    def error(self, model: nn.Module, batch: Batch) -> float:
        """See `error`."""
        return error(model, batch, self.lag)


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


def solved_readout(delay: Delay, seed: int, penalty: float) -> float:
    """Error of the best read-out of an LRU as it is drawn, solved for in float64.

    For independent signs the error of a linear model is the squared distance of its response to
    a single one from what it should be; a state answers with powers of its eigenvalue.

    Args:
        delay: of an LRU.
        seed: of the model.
        penalty: on the squared weights of the read-out, where states have the variance 1.
    """
    layer: Any = delay.model(seed).mixers[0]
    with torch.no_grad():
        lam = layer.eigenvalues().to(torch.complex128)
    powers = lam ** torch.arange(delay.length)[:, None]  # (T, N)
    basis = torch.cat([powers.real, powers.imag, torch.eye(delay.length, 1).double()], 1)
    basis = basis / basis.norm(dim=0)  # (T, 2 N + 1)
    target = torch.eye(delay.length, dtype=basis.dtype)[delay.lag]
    gram = basis.T @ basis + penalty * torch.eye(basis.shape[1], dtype=basis.dtype)
    weights = torch.linalg.solve(gram, basis.T @ target)
    return float((basis @ weights - target).square().sum())

"""The interface of models that a run folder holds: they read sequences, answer, and can go on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.mixers import Mixer
from linrnn.nn.pool import Pool
from linrnn.typing import State


class Model(nn.Module, ABC):
    """A model that reads sequences and answers: layers that are trained, or none.

    `linrnn.SequenceModel` has layers. The models of `linrnn.frozen` have none, and their read-outs
    are solved for.

    Attributes:
        d_input, d_output: numbers of a step, and of an answer.
        d_model: numbers of a step inside.
        documents: 2 where a row is a pair of sequences, else 1.
        encoder: an ``nn.Embedding`` where tokens are read.
        pool: ``none`` where each step has an answer.
        head: gives the answers; its ``weight`` says dtype and device of the input.
    """

    d_input: int
    d_output: int
    d_model: int
    documents: int
    encoder: nn.Module
    pool: Pool
    head: Any

    @property
    def mixers(self) -> Sequence[Mixer]:
        """The mixer of every layer, first to last; models of `linrnn.frozen` have none."""
        return ()

    @property
    @abstractmethod
    def timed(self) -> bool:
        """Whether answers depend on the times between steps, ``dt``."""

    @abstractmethod
    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, x_t: Tensor, state: Any, *, dt: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read one time step; with pooling, the answer is to everything read so far."""

"""Language modelling: what every task has that predicts each token of a text from those before."""

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from linrnn import tokenizers
from linrnn._files.reading import reading
from linrnn._files.storage import read_json
from linrnn._options.schema import record
from linrnn.errors import DataError
from linrnn.tasks._kinds.base import Task
from linrnn.tokenizers import Tokenizer

_MEASURED = 1 << 20  # tokens the bytes per token are measured on at most


@dataclass(frozen=True, kw_only=True)
class _Text:
    """The checksum and size of the text, as a run folder stores them."""

    sha256: str
    tokens: int


class TextTask(Task):
    """Predict each token of a text from those before it.

    The loss is in nats per token, and its exponential the perplexity. The metric is the loss over
    ln 2 and over `unit`.
    """

    higher_is_better: ClassVar[bool] = False
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    perplexity: ClassVar[bool] = True
    short_options: ClassVar[Mapping[str, str]] = {
        "bptt": "task.length",
        "carry-state": "train.carry-state",
    }

    tokenizer: Tokenizer

    @property
    @abstractmethod
    def held_out(self) -> np.ndarray:
        """Tokens of text that is not for training."""

    @property
    @abstractmethod
    def unit(self) -> float:
        """How many of what the metric is per are in a token: 1 for bits per token."""

    @cached_property
    def bytes_per_token(self) -> float:
        """Mean over the held-out text."""
        if self.tokenizer.kind == "byte":
            return 1.0
        sample = self.held_out[:_MEASURED]
        return len(self.tokenizer.decode(sample).encode()) / len(sample)

    @cached_property
    def characters_per_token(self) -> float:
        """Mean over the held-out text."""
        sample = self.held_out[:_MEASURED]
        return len(self.tokenizer.decode(sample)) / len(sample)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Bits of each window: see the class."""
        nats = F.cross_entropy(y.flatten(0, 1).float(), target.flatten(), reduction="none")
        return nats.view_as(target).mean(1) / math.log(2) / self.unit


def kept_text_of(tokenizer: Tokenizer, sha256: str, tokens: int) -> dict[str, str]:
    """Files of a run folder with its tokenizer, and with the checksum and size of the text."""
    text = {"sha256": sha256, "tokens": tokens}
    return {
        "tokenizer.json": tokenizer.to_json(),
        "text.json": json.dumps(text, indent=2) + "\n",
    }


def read_kept_text(folder: Path) -> tuple[Tokenizer, str]:
    """The tokenizer and the checksum that `kept_text_of` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    tokenizer = tokenizers.load(folder / "tokenizer.json", inside=folder)
    file, fix = folder / "text.json", "Restore it from a copy."
    with reading(file, DataError, "hold the checksum of the text", fix):
        return tokenizer, _Text(**record("text", _Text, read_json(file, inside=folder))).sha256

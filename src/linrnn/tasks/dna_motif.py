"""DNA with planted motifs: the next base of a sequence that is random but for some words."""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.tasks._kinds.base import Splits, Task
from linrnn.tasks._kinds.drawing import (
    GeneratedOptions,
    check_options,
    integers,
    splits,
    to_tensors,
)
from linrnn.tasks._kinds.generated import Uniform, uniforms

BASES = "ACGT"
ORDER = 3
"""Bases that the distribution of the next one depends on, outside of motifs."""
_TABLES = 1 << 40  # key of the random numbers of table and motifs, far from those of sequences
_BASELINE_ORDERS = (0, 1, 2, 3, 6, 8)


@dataclass(frozen=True, kw_only=True)
class DNAMotifOptions(GeneratedOptions):
    """Options of the task `dna_motif`."""

    length: int = 512
    """Bases of a sequence."""
    motifs: int = 4
    """Words that are planted, the same in all sequences."""
    motif_length: int = 16
    """Bases of a word."""
    copies: int = 8
    """Words in a sequence, each in its own part of it."""
    mutation: float = 0.05
    """Probability that a base of a planted word is another one."""
    train_size: int = 4_000
    """Training sequences; an epoch is one pass through them."""
    validation_size: int = 250
    """Validation sequences."""
    test_size: int = 500
    """Test sequences."""


class DNAMotif(Task):
    """Predict the next base of DNA-like sequences in which known words turn up.

    The background is a Markov chain of order 3 over A, C, G and T: each of its 64 rows is uniform
    on the simplex of distributions. A sequence is cut into ``copies`` equal parts, and in each part
    one of ``motifs`` words of ``motif_length`` uniform bases is planted at a uniform place; each of
    its bases is replaced by another with probability ``mutation``. Table and words are drawn once,
    by ``data_seed``, and the same in all splits. A model learns both: the table needs three
    bases of memory, a word needs to be recognised by its first bases.

    The metric is the negative log-likelihood in bits a base; the perplexity is 2 to its power, 4
    for equally likely bases. `baselines` counts Markov models of several orders. A good model beats
    the best of them, since a count of order k needs 4^k rows, and cannot see a mutated base past.

    The task stands in for the human genome, which is not distributed with this library. There are
    no published numbers of it.

    Args:
        options: `DNAMotifOptions`.

    Raises:
        ArgumentError: a length, number of motifs or copies, or size below 1, words that do not fit
            into their parts, a mutation outside [0, 1], a negative data_seed.
    """

    Options: ClassVar[type] = DNAMotifOptions
    summary: ClassVar[str] = "next base of DNA-like sequences with planted words, bits per base"
    metric: ClassVar[str] = "bits per base"
    higher_is_better: ClassVar[bool] = False
    encoder: ClassVar[Literal["linear", "tokens"]] = "tokens"
    pools: ClassVar[tuple[str, ...]] = ("none",)
    perplexity: ClassVar[bool] = True

    chance = 2.0
    d_input = d_output = len(BASES)
    class_names = tuple(BASES)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        options = self.options
        check_options("DNAMotif", options, "length", "motifs", "motif_length", "copies")
        if options.length // options.copies < options.motif_length:
            raise ArgumentError(
                "DNAMotif: length must be at least copies * motif_length = "
                f"{options.copies * options.motif_length}, got {options.length}."
            )
        if not 0 <= options.mutation <= 1:
            raise ArgumentError(f"DNAMotif: mutation must be in [0, 1], got {options.mutation}.")
        self.sequence_length = options.length
        self.table, self.words = _language(options)

    def datasets(self) -> Splits:
        """Splits of x (time,) and target (time,), integers: see `Task.datasets`."""
        return splits(self.options, self._draw)

    def scores(self, y: Tensor, target: Tensor) -> Tensor:
        """Bits a base of each sequence."""
        nats = F.cross_entropy(y.transpose(1, 2).float(), target, reduction="none")
        return nats.mean(1) / log(2)

    def baselines(self) -> dict[str, float]:
        """Bits a base on the test sequences of predictions without a model.

        ``order k`` counts on the training sequences which base follows the k before it, with 1
        added for each. ``places known`` is told where words lie, which, and what the table is:
        nothing is better.
        """
        train, test = (
            part[list(range(size))]
            for part, size in zip(self._whole()[::2], self._sizes()[::2], strict=True)
        )
        (seen, _), (bases, planted) = ([v.numpy() for v in part] for part in (train, test))
        bits = {f"order {k}": _counted(seen, bases, k) for k in _BASELINE_ORDERS}
        background = -np.log2(self.table[_contexts(bases, ORDER), bases[:, 1:]])
        m = self.options.mutation
        with np.errstate(divide="ignore"):
            right, other = -np.log2(1 - m), -np.log2(m / 3)
        word = np.where(planted[:, 1:] == bases[:, 1:], right, other)
        known = np.where(planted[:, 1:] >= 0, word, background)
        return {**bits, "places known": float(known.mean())}

    def example(self) -> str:
        """The beginning of a sequence; planted bases are in capitals, others are not."""
        x, planted = (v[0, 1:161].tolist() for v in self._whole()[0][[0]])
        pairs = zip(x, planted, strict=True)
        text = "".join(BASES[i] if j >= 0 else BASES[i].lower() for i, j in pairs)
        return f"input {text} ...\ntarget each next base"

    def _sizes(self) -> tuple[int, int, int]:
        options = self.options
        return options.train_size, options.validation_size, options.test_size

    def _whole(self) -> Splits:
        return splits(self.options, self._simulate)

    def _draw(self, uniform: Uniform) -> tuple[Tensor, ...]:
        bases, _ = self._simulate(uniform)
        return bases[:, :-1], bases[:, 1:]

    def _simulate(self, uniform: Uniform) -> tuple[Tensor, ...]:
        """Bases (B, length + 1), the first from nowhere, and those of the words, else -1."""
        options = self.options
        planted = self._planted(uniform)
        u, mutates = uniform(options.length + 1), uniform(options.length) < options.mutation
        others = integers(uniform(options.length), 1, len(BASES))
        mutated = np.where(mutates, (planted + others) % len(BASES), planted)
        words = np.where(planted >= 0, mutated, -1)
        rows = np.cumsum(self.table, 1)[:, :-1]
        context = integers(uniform(1), 0, len(BASES) ** ORDER)[:, 0]
        bases = np.zeros(u.shape, np.int64)
        for t in range(options.length + 1):
            drawn = (u[:, t, None] >= rows[context]).sum(1)
            if t:
                drawn = np.where(words[:, t - 1] >= 0, words[:, t - 1], drawn)
            bases[:, t] = drawn
            context = (context * len(BASES) + drawn) % len(BASES) ** ORDER
        first = np.full((len(bases), 1), -1)
        return to_tensors(bases, np.concatenate([first, planted], 1))

    def _planted(self, uniform: Uniform) -> np.ndarray:
        """(B, length) bases of the words before mutation, and -1 where there is none."""
        options = self.options
        part = options.length // options.copies
        which = integers(uniform(options.copies), 0, options.motifs)
        start = integers(uniform(options.copies), 0, part - options.motif_length + 1)
        start += np.arange(options.copies) * part
        places = start[..., None] + np.arange(options.motif_length)  # (B, copies, motif_length)
        planted = np.full((len(which), options.length), -1)
        at, words = (v.reshape(len(which), -1) for v in (places, self.words[which]))
        np.put_along_axis(planted, at, words, 1)
        return planted


def _language(options: DNAMotifOptions) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (64, 4) of the next base, and words (motifs, motif_length)."""
    key = _TABLES + options.data_seed
    clocks = -np.log1p(-uniforms(key, np.arange(len(BASES) ** ORDER), 1, len(BASES)))
    words = uniforms(key, np.arange(options.motifs), 2, options.motif_length)
    return clocks / clocks.sum(1, keepdims=True), integers(words, 0, len(BASES))


def _contexts(bases: np.ndarray, order: int) -> np.ndarray:
    """Number (sequences, time - 1) of the ``order`` bases before each but the first.

    Before the beginning of a sequence there are As.
    """
    context = np.zeros_like(bases[:, 1:])
    for lag in range(order):
        earlier = bases[:, : bases.shape[1] - 1 - lag]
        context[:, lag:] += earlier * len(BASES) ** lag
    return context


def _counted(seen: np.ndarray, bases: np.ndarray, order: int) -> float:
    """Mean bits of bases by counts of what follows contexts of an order in the seen sequences."""
    n = len(BASES)
    pairs, here = (_contexts(v, order) * n + v[:, 1:] for v in (seen, bases))
    counts = np.bincount(pairs.ravel(), minlength=n ** (order + 1)).reshape(-1, n) + 1.0
    bits = -np.log2(counts / counts.sum(1, keepdims=True)).ravel()
    return float(bits[here].mean())

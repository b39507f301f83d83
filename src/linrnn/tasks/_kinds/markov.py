"""Markov chains as baselines of text: the next symbol from counts of what followed the last few."""

import math
from collections.abc import Mapping

import numpy as np

MOST = 1 << 24
"""Tokens of either part that are counted at most."""


def markov_bits(train: np.ndarray, test: np.ndarray, symbols: int, order: int) -> float:
    """Bits per symbol of a Markov chain that was counted on one text, on another.

    p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h)): c counts, t is how many different
    symbols follow h, and h' is h without its first symbol. Below order 0 all symbols are equally
    likely. A context that never occurred has the probabilities of the shorter one.

    Args:
        train: (tokens,) below ``symbols``; the first `MOST` are counted.
        test: (tokens,), of which the first ``order`` are given and the next `MOST` are scored.
        symbols: size of the vocabulary; symbols^(order + 1) must be below 2^63.
        order: symbols of a context.

    Reference:
        Witten and Bell, "The zero-frequency problem", IEEE Transactions on Information Theory
        1991, method C, interpolated as in Chen and Goodman 1998, section 2.5.

    Example:
        >>> text = np.array([0, 1] * 500)
        >>> round(markov_bits(text, text, 2, 0), 3), round(markov_bits(text, text, 2, 1), 3)
        (1.0, 0.001)
    """
    assert symbols ** (order + 1) < 1 << 63
    train, test = (np.asarray(part[:MOST], np.int64) for part in (train, test))
    probability = np.full(max(0, len(test) - order), 1 / symbols)
    for n in range(order + 1):
        # the key of a context or of it and the next symbol is a number of that many digits
        pairs = _keys(train, symbols, n + 1)
        keys, counts = np.unique(pairs, return_counts=True)
        contexts, firsts, kinds = np.unique(keys // symbols, return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, firsts) if len(firsts) else counts
        scored = _keys(test[order - n :], symbols, n + 1)
        count = _look_up(keys, counts, scored)
        total, kind = (_look_up(contexts, x, scored // symbols) for x in (totals, kinds))
        seen = total + kind > 0
        mixed = (count + kind * probability) / np.maximum(total + kind, 1)
        probability = np.where(seen, mixed, probability)
    return -float(np.log(probability).mean()) / math.log(2)


def markov_baselines(
    train: np.ndarray, test: np.ndarray, symbols: int, orders: Mapping[str, int]
) -> dict[str, float]:
    """`markov_bits` of several orders, by their names."""
    return {name: markov_bits(train, test, symbols, order) for name, order in orders.items()}


def _keys(tokens: np.ndarray, symbols: int, width: int) -> np.ndarray:
    """(tokens - width + 1,): each run of some symbols as one number."""
    count = max(0, len(tokens) - width + 1)
    keys = np.zeros(count, np.int64)
    for place in range(width):
        keys = keys * symbols + tokens[place : place + count]
    return keys


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The value of each key, 0 of one that is not among them; keys are sorted."""
    if not len(keys):
        return np.zeros(len(queries))
    places = np.searchsorted(keys, queries).clip(max=len(keys) - 1)
    return np.where(keys[places] == queries, values[places], 0).astype(np.float64)

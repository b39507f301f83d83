import itertools
import math

import numpy as np
import pytest

from linrnn.tasks._kinds import markov
from linrnn.tasks._kinds.markov import markov_bits


def by_hand(train, test, symbols, order):
    """The same probabilities, one symbol after the other."""

    def probability(context, symbol):
        shorter = probability(context[1:], symbol) if context else 1 / symbols
        n = len(context)
        runs = [tuple(train[i : i + n + 1]) for i in range(len(train) - n)]
        after = [run[n] for run in runs if run[:n] == tuple(context)]
        if not after:
            return shorter
        kinds = len(set(after))
        return (after.count(symbol) + kinds * shorter) / (len(after) + kinds)

    bits = [
        -math.log2(probability(tuple(test[i - order : i]), test[i]))
        for i in range(order, len(test))
    ]
    return sum(bits) / len(bits)


@pytest.mark.parametrize(("order", "symbols"), [*itertools.product((0, 1, 2, 3), (2, 5))])
def test_bits_are_those_of_the_equation(order, symbols):
    rng = np.random.RandomState(order)
    train, test = rng.randint(0, symbols, 60).tolist(), rng.randint(0, symbols, 40).tolist()
    expected = by_hand(train, test, symbols, order)
    assert markov_bits(np.array(train), np.array(test), symbols, order) == pytest.approx(expected)


def test_probabilities_of_all_symbols_sum_to_one():
    rng = np.random.RandomState(3)
    train = rng.randint(0, 4, 50)
    for context in itertools.product(range(4), repeat=2):
        bits = [markov_bits(train, np.array([*context, s]), 4, 2) for s in range(4)]
        assert sum(2.0**-b for b in bits) == pytest.approx(1)


def test_a_chain_is_found_by_its_order():
    rng = np.random.RandomState(0)
    text = list(rng.randint(0, 2, 2))
    for _ in range(20_000):
        text.append(int(text[-1] ^ text[-2] ^ (rng.rand() < 0.1)))
    train, test = np.array(text[:10_000]), np.array(text[10_000:])
    noise = -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert markov_bits(train, test, 2, 1) > 0.98
    assert markov_bits(train, test, 2, 2) == pytest.approx(noise, abs=0.03)


def test_what_is_beyond_the_limit_is_not_counted(monkeypatch):
    text = np.array([0, 1] * 50 + [1] * 900)
    monkeypatch.setattr(markov, "MOST", 100)
    assert markov_bits(text, text, 2, 1) == markov_bits(text[:100], text[:100], 2, 1)

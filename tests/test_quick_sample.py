"""The quick cases of sampled tests: every trait of a mixer is met, and every other argument."""

from collections import Counter

import pytest

import quick_sample
from linrnn import mixers

NAMES = list(mixers.names())


def cases(label, least=2):
    return {f"{label}[{n}]": {(t, least) for t in quick_sample.traits(n)} for n in NAMES}


@pytest.mark.parametrize("least", [1, 2, 3])
def test_every_trait_is_met_as_often_as_it_says(least):
    everything = Counter(t for name in NAMES for t in quick_sample.traits(name))
    quick = quick_sample.of_mixers(NAMES, least)
    met = Counter(t for name in quick for t in quick_sample.traits(name))
    assert all(met[trait] >= min(least, n) for trait, n in everything.items())
    assert len(quick) < len(NAMES) / 2


def test_tests_differ_in_their_mixers():
    """Forty tests that take two mixers of each trait take nearly all there are."""
    picked = [quick_sample.sample(cases(f"test {i}")) for i in range(40)]
    assert picked == [quick_sample.sample(cases(f"test {i}")) for i in range(40)]
    names = {name.partition("[")[2] for quick in picked for name in quick}
    assert len(names) > 0.9 * len(NAMES)


class Called:
    def __init__(self, **params):
        self.params, self.indices = params, dict.fromkeys(params, 0)


def test_each_other_argument_is_met_beside_every_trait():
    every = {
        f"t[{name}-{word}-{flag}]": quick_sample.features(Called(name=name, word=word, flag=flag))
        for name in NAMES
        for word in "abc"
        for flag in (False, True)
    }
    quick = quick_sample.sample(every)
    assert set().union(*(every[name] for name in quick)) == set().union(*every.values())
    assert len(quick) < len(every) / 5


def test_without_mixers_every_value_is_met():
    every = {f"t[{a}-{b}]": quick_sample.features(Called(a=a, b=b)) for a in "xyz" for b in (1, 2)}
    assert len(quick_sample.sample(every)) == 3

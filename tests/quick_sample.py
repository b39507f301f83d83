"""Which cases of a test marked ``sampled`` are quick; the others are slow.

A test that puts every mixer into the same surrounding, as a streaming model or a model of another
library, repeats for one mixer what the contract has shown of it and for the other what it showed of
the surrounding. What may differ is how a kind of mixer gets on with it.
"""

import functools
import itertools
from collections import Counter, defaultdict
from zlib import crc32

import mixer_pairs
from linrnn import mixers

MIXER_ARGUMENTS = ("name", "mixer")
MIXERS_OF_A_TRAIT = 2
FIRST = 12  # of which the best is taken: fewer leave more cases, more the same mixers to each test
_PLAIN = str, int, float, bool, tuple, type(None)


def left_out(items):
    """The items that are not among the quick ones of their tests.

    ``sampled(1)`` is content with one mixer of each trait, ``sampled()`` has two.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        least = (*cases[0].get_closest_marker("sampled").args, MIXERS_OF_A_TRAIT)[0]
        quick = sample({item.nodeid: features(item.callspec, least) for item in cases})
        yield from (item for item in cases if item.nodeid not in quick)


def sample(cases):
    """Names of few cases that have every feature as often as it says, or as often as any have.

    Cases come in an order that each test has for itself, so that tests differ in their mixers. Of
    the first few that add anything the one that adds most is taken.

    Args:
        cases: the features of each, as pairs of what it is and how often it is to be met.
    """
    available = Counter(feature for of in cases.values() for feature in of)
    missing = {feature: min(feature[1], n) for feature, n in available.items()}
    left, quick = sorted(cases, key=lambda name: (crc32(name.encode()), name)), set()
    while any(missing.values()):
        gains = ((sum(missing[f] > 0 for f in cases[name]), name) for name in left)
        first = itertools.islice((gain for gain in gains if gain[0]), FIRST)
        _, best = max(first, key=lambda gain: gain[0])
        left.remove(best)
        quick.add(best)
        for feature in cases[best]:
            missing[feature] = max(0, missing[feature] - 1)
    return quick


def of_mixers(names, least=MIXERS_OF_A_TRAIT):
    """Names of mixers among which each trait is met so often."""
    return sample({name: {(trait, least) for trait in traits(name)} for name in names})


def features(callspec, least=MIXERS_OF_A_TRAIT):
    """Each trait of a mixer beside each other argument; without mixers, each argument alone."""
    others = {
        (argument, value if isinstance(value, _PLAIN) else callspec.indices[argument])
        for argument, value in callspec.params.items()
        if not is_mixer(argument, value)
    }
    shared = [
        trait
        for argument, value in callspec.params.items()
        if is_mixer(argument, value)
        for trait in traits(value)
    ]
    if shared and others:
        return {(pair, 1) for pair in itertools.product(shared, others)}
    return {(trait, least) for trait in shared} or {(other, 1) for other in others}


def is_mixer(argument, value):
    """Whether an argument of a test is the name of a mixer."""
    return argument in MIXER_ARGUMENTS and value in mixers.names()


traits = functools.cache(mixer_pairs.traits)

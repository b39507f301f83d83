"""Which mixers meet which surroundings in the quick tests, where all of them are too many."""

from dataclasses import fields
from itertools import product

import pytest

from linrnn import mixers


def traits(name):
    """Traits that a mixer shares with others, which may decide how it works in its surroundings."""
    cls = mixers.load(name)
    chosen = {field.name: getattr(cls.choices, field.name) for field in fields(cls.choices)}
    whole = {"family": cls.family, "cost": cls.cost, "grows": "constant_memory" in cls.declared}
    return sorted((whole | chosen).items())


def pairs(names, surroundings, least=2):
    """Cases in which every trait meets every part of a surrounding, and every mixer ``least``.

    A surrounding is a tuple of parts that do not depend on one another. The choice depends on
    nothing but the arguments.
    """
    of = {name: traits(name) for name in names}

    def meetings(name, surrounding):
        return set(product(of[name], enumerate(surrounding)))

    missing = set().union(*(meetings(*case) for case in product(names, surroundings)))
    chosen, uses = {}, dict.fromkeys(surroundings, 0)

    def choose(cases):
        left = [case for case in cases if case not in chosen]
        case = max(left, key=lambda case: (len(meetings(*case) & missing), -uses[case[1]]))
        chosen[case] = None
        uses[case[1]] += 1
        missing.difference_update(meetings(*case))

    for name in list(names) * least:
        choose([(name, surrounding) for surrounding in surroundings])
    while missing:
        trait, part = min(missing, key=repr)
        choose(case for case in product(names, surroundings) if (trait, part) in meetings(*case))
    return set(chosen)


def cases(names, surroundings, least=2):
    """All mixers in all surroundings as arguments of a test; what `pairs` leaves out is slow."""
    quick = pairs(names, surroundings, least)
    return [
        pytest.param(
            *(name, *surrounding),
            marks=[] if (name, surrounding) in quick else [pytest.mark.slow],
            id="-".join(map(str, (name, *surrounding))),
        )
        for name, surrounding in product(names, surroundings)
    ]

"""Classes of mixers and learners are abstract or final, with few between them and a contract."""

import pytest

from linrnn import learn, mixers
from linrnn.learn import Learner
from linrnn.mixers import GRU, Mixer

FINAL = {name: mixers.load(name) for name in mixers.names()}


def families(cls):
    """The classes between a mixer and the contract, nearest first."""
    return [
        parent for parent in cls.__mro__[1:] if parent is not Mixer and issubclass(parent, Mixer)
    ]


def faults(cls):
    """Errors in the parents of a mixer."""
    between = families(cls)
    final = [parent.__name__ for parent in between if parent in FINAL.values()]
    return final + ["deep"] * (len(between) > 1)


@pytest.mark.parametrize("name", FINAL)
def test_a_mixer_has_one_family_at_most_and_no_other_mixer_as_a_parent(name):
    assert faults(FINAL[name]) == []


@pytest.mark.parametrize("name", learn.names())
def test_a_learner_derives_from_no_other_and_two_families_at_most(name):
    cls, final = learn.load(name), {learn.load(other) for other in learn.names()}
    between = [p for p in cls.__mro__[1:] if p is not Learner and issubclass(p, Learner)]
    assert not final & set(between)
    assert len(between) <= 2  # what has windows, and of that what has traces


def test_no_part_of_a_mixer_is_of_an_abstract_class():
    abstract = {family for cls in FINAL.values() for family in families(cls)}
    for name in FINAL:
        parts = {type(part) for part in mixers.build(name, 8, device="meta").modules()}
        assert not parts & abstract, name


def test_a_layer_below_another_is_found():
    class Further(GRU):
        pass

    assert faults(Further) == ["GRU", "deep"]

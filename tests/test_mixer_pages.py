"""The page of a mixer says what tells its relatives from it."""

import re

import pytest

from linrnn import mixers

NAMES = mixers.names()


def test_relatives_are_the_nearest_and_at_least_one(hooks):
    choices = {name: mixers.load(name).choices for name in NAMES}
    for name in NAMES:
        apart = {o: len(choices[name].differences(choices[o])) for o in NAMES if o != name}
        nearest = {o for o, n in apart.items() if n <= max(1, min(apart.values()))}
        found = hooks.mixer.choices.relatives(name)
        assert set(found) == nearest
        assert found
        assert [len(differences) for differences in found.values()] == sorted(
            apart[other] for other in found
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_has_a_line_that_names_a_difference(name, hooks):
    page = hooks.mixer.page(name)
    lines = dict(re.findall(r"^- \[\w+\]\((\w+)\.md\): (.*)$", page, re.MULTILINE))
    found = hooks.mixer.choices.relatives(name)
    assert list(lines) == list(found)
    for other, differences in found.items():
        for choice, (own, theirs) in differences.items():
            assert f"**{choice}** {theirs}, not {own}" in lines[other]
        told = mixers.load(other).__doc__.splitlines()[0]
        assert lines[other].endswith(told)
        assert told != mixers.load(name).__doc__.splitlines()[0]
        if not differences:
            unlike = mixers.load(other).timed != mixers.load(name).timed
            assert ("**times**" in lines[other]) == unlike


def test_systems_of_one_choice_are_told_apart_by_their_states(hooks):
    page = hooks.mixer.page("tanh_rnn")
    line = "[CoRNN](co_rnn.md): **state** `y` (d_state), `z` (d_state), here (d_state); **times**"
    assert line in page
    assert "[ReLURNN](relu_rnn.md): Recurrent network with ReLU" in page

"""The page of a mixer draws its own structure, and says what tells its relatives from it."""

import re

import pytest

from linrnn import mixers
from linrnn.nn import CausalConv
from linrnn.state_spec import complex_, describe, real

NAMES = mixers.names()
LETTER = 6.2  # of 12, the widest of what was measured of long lines in Chromium


def words(drawing):
    """Every text of a drawing: its place from the left, size and words."""
    found = re.findall(r'<text x="([\d.]+)" y="\d+" font-size="(\d+)"[^>]*>([^<]*)', drawing)
    return [(float(x), int(size), text) for x, size, text in found]


def tensors(drawing):
    """Name and shape of every tensor that is drawn."""
    parts = re.findall(r'<g class="part">.*?</g>', drawing)
    return [tuple(text for _, _, text in words(part)) for part in parts]


def declared(layer):
    """Name and shape of every tensor of the state, as the picture words them."""
    found = []
    for line in describe(layer.state_spec()):
        path, _, rest = line.partition(": (batch")
        axes, _, kind = rest.partition(") ")
        name = ".".join(re.findall(r"\w+", path)[1:]) or "state"
        found.append((name if kind == "real" else f"{name}, {kind}", axes.split(", ")[1:]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_draws_every_tensor_of_the_state(name, hooks):
    drawing, layer = hooks.mixer.picture.page(name), hooks.mixer.measures.built(name)
    assert sorted(found for found, _ in tensors(drawing)) == sorted(n for n, _ in declared(layer))
    shapes = dict(tensors(drawing))
    for found, axes in declared(layer):
        assert re.findall(r"([a-z]\w*) (?:\d+|\(grows\))", shapes[found]) == axes


def test_the_picture_follows_the_state_and_not_the_name(hooks, monkeypatch):
    layer, picture = hooks.mixer.measures.built("lru"), hooks.mixer.picture
    assert tensors(picture.page("lru")) == [("state, complex", "d_state 64")]
    spec = {"slow": complex_(ring=3), "seen": [real(entries=None, d_model=64)]}
    monkeypatch.setattr(type(layer), "state_spec", lambda self: spec)
    wanted = [("slow, complex", "ring 3"), ("seen.0", "entries (grows) × d_model 64")]
    assert tensors(picture.page("lru")) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_has_choices_weights_and_a_convolution_if_there_is_one(name, hooks):
    drawing, choices = hooks.mixer.picture.page(name), mixers.load(name).choices
    for word in (choices.transition, choices.memory, choices.steps, choices.gate):
        assert word in drawing
    layer = hooks.mixer.measures.built(name)
    taps = {module.width for module in layer.modules() if isinstance(module, CausalConv)}
    assert set(re.findall(r"causal convolution, (\d+) taps", drawing)) == set(map(str, taps))
    for path, _ in layer.named_parameters():
        assert re.sub(r"\.(weight|bias)$", "", path) + "\N{NO-BREAK SPACE}" in drawing
    assert ("times between steps" in drawing) == mixers.load(name).timed


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_is_legible_on_a_telephone(name, hooks):
    drawing = hooks.mixer.picture.page(name)
    assert int(re.search(r'viewBox="0 0 (\d+) ', drawing)[1]) <= 350
    for x, size, text in words(drawing):
        assert size >= 11
        assert x + LETTER * size / 12 * len(text) <= 300, text


def test_few_pictures_are_alike(hooks):
    """Those alone that differ in a function of one number, in noise, or in how a matrix is made."""
    alike = {}
    for name in NAMES:
        drawing = hooks.mixer.picture.page(name).replace(mixers.load(name).__name__, "")
        alike.setdefault(drawing, []).append(name)
    assert len(alike) >= 0.95 * len(NAMES)
    assert max(map(len, alike.values())) <= 2


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
    assert "[ReLURNN](relu_rnn.md): " in page

"""Declarations of mixers are true: how they compute, measured in float64."""

import re
from typing import get_args

import pytest
import torch

from linrnn import mixers
from linrnn.errors import UnknownNameError
from linrnn.mixers._contract.choices import WORDS, Choices
from linrnn.mixers._families.segments import SegmentMixer
from linrnn.state import flatten, leaves, unflatten
from linrnn.state_spec import describe

WIDTH, BATCH = 6, 16
each_mixer = pytest.mark.parametrize("name", mixers.names())


def layer(name):
    torch.manual_seed(0)
    short = {"d_shift": 4} if name == "h3" else {}  # so that it holds steps that are shared
    if issubclass(mixers.load(name), SegmentMixer):
        short = {"segment": 3}  # which ends with the ninth step
        short |= {"ratio": 3} if name == "compressive_transformer" else {}  # it divides that
    if mixers.load(name).family == "test-time":
        short = {"mini_batch": 3}
    made = mixers.build(name, WIDTH, short, dtype=torch.float64).eval()
    for p in made.parameters():  # gates that start at zero would look like constants
        p.data += 0.1 * torch.randn_like(p)
    return made


def after(mixer, seed):
    """The state after eight steps, of which the last four are the same for every seed.

    What only holds the last inputs, such as that of a short convolution, is then the same too.
    """
    torch.manual_seed(seed)
    own = 20 * torch.randn(BATCH, 4, WIDTH, dtype=torch.float64)  # on both sides of any kink
    torch.manual_seed(0)
    shared = torch.randn(BATCH, 4, WIDTH, dtype=torch.float64)
    return mixer(torch.cat([own, shared], 1))[1]


def parts(state):
    return [h for h in leaves(state) if h.is_floating_point() or h.is_complex()]


def middle(one, two):
    """A state between two, which have read as many steps."""
    a, b = flatten(one), flatten(two)
    between = {key: a[key] if a[key].equal(b[key]) else (a[key] + b[key]) / 2 for key in a}
    return unflatten(between, one)


def agree(some, others, size):
    """Whether numbers are the same but for roundings of what they differ by elsewhere."""
    gaps, sizes = ([float(h.abs().max()) for h in part] for part in (_minus(some, others), size))
    return max(gaps) <= 1e-6 * max(sizes) + 1e-15


def is_affine(mixer):
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
    one, two = after(mixer, 1), after(mixer, 2)
    ends = [parts(mixer.step(x, state)[1]) for state in (one, two)]
    got = parts(mixer.step(x, middle(one, two))[1])
    return agree(got, [(a + b) / 2 for a, b in zip(*ends, strict=True)], _minus(*ends))


def _minus(some, others):
    return [a - b for a, b in zip(some, others, strict=True)]


def sees_input(mixer):
    """Whether what becomes of the difference of two states depends on what is read."""
    one, two = after(mixer, 1), after(mixer, 2)
    gaps = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        x = torch.randn(BATCH, WIDTH, dtype=torch.float64)
        ends = [parts(mixer.step(x, state)[1]) for state in (one, two)]
        gaps.append(_minus(*ends))
    return not agree(*gaps, gaps[0])


@each_mixer
def test_every_mixer_says_what_it_chooses_in_known_words(name):
    choices = mixers.load(name).__dict__["choices"]  # its own, not one it inherits
    for field, words in WORDS.items():
        assert getattr(choices, field) in words


def in_plain_numbers(name):
    """Whether the state is kept as it is written, not as logarithms, quotients or past inputs."""
    parts = " ".join(describe(layer(name).state_spec()))
    return mixers.load(name).choices.memory != "past" and not re.search(r"log|'m'|'top'", parts)


@each_mixer
def test_steps_are_linear_where_a_mixer_says_so(name):
    if not in_plain_numbers(name):
        pytest.skip("the state holds logarithms, or inputs")
    assert is_affine(layer(name)) == (mixers.load(name).choices.steps == "linear")


@each_mixer
def test_the_input_gates_where_a_mixer_says_so(name):
    choices = mixers.load(name).choices
    if choices.steps != "linear" or not in_plain_numbers(name):
        pytest.skip("the state decides too, or holds logarithms or inputs")
    assert sees_input(layer(name)) == (choices.gate == "input")


@each_mixer
def test_memories_are_what_a_mixer_says(name):
    choices, mixer = mixers.load(name).choices, layer(name)
    assert (choices.memory == "past") == ("constant_memory" in mixer.declared)
    axes = max(h.ndim - 1 for h in leaves(mixer.init_state(1)))
    if choices.memory in ("matrix", "systems"):
        assert axes >= 2
    if choices.transition in ("delta", "decay and delta"):
        assert choices.memory == "matrix"
    if choices.steps == "nonlinear" and choices.memory == "vector":
        assert mixer.cost == "sequential"


def test_words_are_those_of_the_annotations():
    for field, words in WORDS.items():
        assert list(words) == list(get_args(Choices.__annotations__[field]))


def test_differences_are_named():
    one = Choices(transition="diagonal", gate="input", memory="vector")
    other = Choices(transition="diagonal", gate="learned", memory="vector")
    assert one.differences(other) == {"gate": ("input", "learned")}
    assert one.differences(one) == {}


@pytest.mark.unchecked
def test_an_unknown_word_is_an_error():
    with pytest.raises(UnknownNameError, match=r"Choices gate.*'inputs'"):
        Choices(transition="diagonal", gate="inputs", memory="vector")

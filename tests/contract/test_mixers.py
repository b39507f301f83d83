"""Every law of the mixer contract for every mixer in the catalogue."""

from functools import partial

import pytest
import torch

import quick_sample
from linrnn import mixers
from linrnn.state import leaves
from linrnn.testing import MIXER_PROPERTIES, check_property
from linrnn.testing._graph_laws import dynamic_shapes
from linrnn.testing._mixer_laws import LONG, finite_when_long, low_precision
from linrnn.testing._mixer_runs import in_laws
from linrnn.testing._state_laws import zeros_begin_anew

# tracers cannot look through the shape checker, which also words errors before we do
NEEDS_NO_CHECKER = {"compiles", "dynamic_shapes", "untraceable", "bad_input", "times"}
# Their many calls differ in numbers alone: `every_option` and `forms_agree` pass the same options,
# forms and shapes through the checker, which takes a third of the time of a law.
NEEDS_NO_CHECKER |= {"ranges", "finite_when_long", "higher_derivatives", "gradients"}
NEEDS_NO_CHECKER |= {"zeros_begin_anew", "causal", "trains", "low_precision"}
NEEDS_NO_CHECKER |= {"small", "meta_device"}


def laws(*, unchecked: bool) -> list[str]:
    return [n for n in MIXER_PROPERTIES if (n in NEEDS_NO_CHECKER) == unchecked]


def test_catalogue_is_not_empty():
    assert "lru" in mixers.names()


@pytest.mark.parametrize("name", mixers.names())
@pytest.mark.parametrize("law", laws(unchecked=False))
def test_mixer_keeps_law(name, law):
    check_property(law, mixers.load(name))


# A graph for every size is a quick test of one mixer of every trait, that of one size of another.
# That all read no number back, tests/contract/test_no_waiting.py says.
IN_GRAPHS = quick_sample.of_mixers(mixers.names(), least=1)
OF_ONE_SIZE = quick_sample.of_mixers([n for n in mixers.names() if n not in IN_GRAPHS], least=1)


# The laws that take most of the time are quick of a mixer of every trait, each law of others.
LONG_LAWS = ("ranges", "higher_derivatives", "finite_when_long")


def marks(law, name):
    if law in LONG_LAWS:
        return pytest.mark.sampled(1)
    among = {"dynamic_shapes": IN_GRAPHS, "compiles": OF_ONE_SIZE}.get(law)
    return pytest.mark.slow if among is not None and name not in among else ()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("law", "name"),
    [
        pytest.param(law, name, marks=marks(law, name))
        for law in laws(unchecked=True)
        for name in mixers.names()
    ],
)
def test_mixer_keeps_law_unchecked(law, name):
    check_property(law, mixers.load(name))


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("name", mixers.names())
def test_zeros_begin_anew_with_every_two_options(name):
    """The law itself has each value of an option once."""
    zeros_begin_anew(mixers.load(name), pairs=True)


def sequential():
    """Names of mixers that read step by step; those that overflow fail, and say why."""
    for name in mixers.names():
        if mixers.load(name).cost == "sequential":
            why = mixers.load(name).overflows
            yield pytest.param(
                name, marks=[pytest.mark.xfail(strict=True, reason=why)] if why else []
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", sequential())
def test_sequential_mixer_is_finite_over_the_whole_length(name):
    """Sequential mixers: for others, but attention, the law reads as long a sequence."""
    finite_when_long(mixers.load(name), LONG)


def parallel():
    """Names of mixers that read all steps at once; those that overflow fail, and say why."""
    for name in mixers.names():
        cls = mixers.load(name)
        if cls.cost == "parallel" and "finite_when_long" not in cls.declared:
            why = cls.overflows
            yield pytest.param(
                name, marks=[pytest.mark.xfail(strict=True, reason=why)] if why else []
            )


@pytest.mark.slow
@pytest.mark.parametrize("name", parallel())
def test_parallel_mixer_is_finite_whatever_the_seed(name):
    """The law has the initial weights of one seed."""
    cls, width = mixers.load(name), 8
    for seed in range(3):
        torch.manual_seed(seed)
        layer = mixers.build(name, width, cls.in_laws or {})
        x = torch.cat([torch.randn(1, LONG // 4, width), torch.ones(1, LONG // 4, width)])
        with torch.no_grad():
            y, state = layer(x)
        assert all(h.isfinite().all() for h in (y, *leaves(state))), seed


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in mixers.names() if mixers.load(name).cost == "parallel"]
)
def test_parallel_mixer_is_finite_over_the_whole_length_of_bfloat16(name):
    """The law itself reads an eighth of it."""
    if "finite_when_long" not in mixers.load(name).declared:
        finite_when_long(mixers.load(name), LONG)


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize(
    "name", [name for name in mixers.names() if "segment" in in_laws(mixers.load(name))]
)
def test_half_precision_goes_through_a_hundred_segments(name):
    """The law itself has 13 of them."""
    low_precision(partial(mixers.load(name), segment=2))


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("name", mixers.names())
def test_gradients_in_a_graph_serve_every_size(name):
    dynamic_shapes(mixers.load(name), "aot_eager")

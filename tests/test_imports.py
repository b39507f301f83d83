"""Imports: their cost, the names they offer, and annotations that are checked."""

import importlib
import inspect
import re

import jaxtyping
import pytest
import torch

import linrnn
from linrnn.errors import ShapeError, check_in
from linrnn.ops import fft_scan
from package_modules import MODULES

OPTIONAL = (
    *("lightning", "matplotlib", "sklearn", "transformers", "tyro", "rich", "tensorboard"),
    *("gymnasium", "sb3_contrib", "torchrl"),
)


@pytest.mark.parametrize(
    "name", ["linrnn", "linrnn.mixers", "linrnn.mixers.lru", "linrnn.ops", "linrnn.backbone"]
)
def test_import_needs_no_optional_package(python, name):
    found = python(f"import sys, {name}; result = [m for m in {OPTIONAL} if m in sys.modules]")
    assert found == []


def test_import_linrnn_leaves_torch_to_first_use(python):
    code = "import sys, linrnn; result = ['torch' in sys.modules]; linrnn.ops; "
    assert python(code + "result.append('torch' in sys.modules)") == [False, True]


def test_import_brings_no_package_but_those_of_torch(packages):
    code = "import linrnn.ops, linrnn.mixers.lru, linrnn.backbone"
    required = {"jaxtyping", "linrnn", "numpy", "safetensors", "wadler_lindig"}
    assert set(packages(code, before="import torch")) <= required


def test_there_are_modules_to_look_at():
    assert {"linrnn.ops.linear.linear_scan", "linrnn.mixers.lru", "linrnn.cli.doctor"} <= set(
        MODULES
    )


def test_every_public_name_resolves():
    missing = []
    for name in MODULES:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", ())
        missing += [f"{name}.{x}" for x in public if getattr(module, x, None) is None]
    assert missing == []


@pytest.mark.parametrize("name", linrnn.__all__)
def test_every_name_of_the_root_resolves_and_is_listed(name):
    assert getattr(linrnn, name) is not None
    assert name in dir(linrnn)


def test_unknown_name_of_the_root_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'linrnn' has no attribute 'nonsense'"):
        linrnn.nonsense  # noqa: B018


def test_no_module_postpones_its_annotations():
    # strings instead of types would switch the shape checker off without a sound
    for name in MODULES:
        assert "annotations" not in vars(importlib.import_module(name)), name


def test_annotations_are_checked_exactly_when_the_checker_is_on(request):
    wrong = torch.ones(2, 3, 4, 5)  # fft_scan wants (batch, time, channels)
    if request.config.getoption("jaxtyping_packages"):
        with pytest.raises(jaxtyping.TypeCheckError, match="fft_scan"):
            fft_scan(torch.ones(5), wrong)
    else:
        with pytest.raises(ShapeError, match="b must have shape"):
            fft_scan(torch.ones(5), wrong)


def test_annotations_without_axes_are_checked_too(request):
    if request.config.getoption("jaxtyping_packages"):
        with pytest.raises(Exception, match=r"check_in\(\) parameter what=3 violates type hint"):
            check_in("here", 3, "a", ["a"])
    else:
        check_in("here", 3, "a", ["a"])


def test_the_checker_reaches_methods_of_mixers(python):
    code = """
from jaxtyping import TypeCheckError, install_import_hook
install_import_hook("linrnn", "beartype.beartype")
import torch
from linrnn.mixers import LRU
try:
    LRU(d_model=4)(torch.ones(2, 4))
    result = "accepted"
except TypeCheckError as error:
    result = str(error)
"""
    assert "forward" in python(code)


def test_the_checker_hides_no_backend(python):
    code = "from linrnn.ops import backend_report; result = backend_report()"
    assert linrnn.ops.backend_report() == python(code)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("method", "shape", "fix"),
    [
        ("forward", (2, 4, 7), r"pass x\.transpose\(1, 2\)"),
        ("forward", (2, 4), r"Pass x\.unsqueeze\(0\)"),
        ("step", (2, 7, 4), "Call the layer itself"),
    ],
)
def test_axes_of_another_convention_are_an_error_with_its_fix(method, shape, fix):
    layer = linrnn.mixers.LRU(4)
    with pytest.raises(ShapeError, match=fix):
        getattr(layer, method)(torch.zeros(shape), layer.init_state(2))


@pytest.mark.unchecked
def test_without_the_checker_the_layer_words_the_error():
    with pytest.raises(ShapeError, match=r"LRU\.forward: x must have shape"):
        linrnn.mixers.LRU(d_model=4)(torch.ones(2, 4))


def test_public_functions_of_ops_are_annotated():
    for name in ("linear_scan", "fft_scan", "explain"):
        for parameter in inspect.signature(getattr(linrnn.ops, name)).parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty


@pytest.mark.parametrize(
    ("module", "name", "place"),
    [
        ("linrnn", "LRU", "linrnn.mixers.LRU"),
        ("linrnn", "MinGru", "linrnn.mixers.MinGRU"),
        ("linrnn", "GRU", "linrnn.RNN('gru', ...)"),
        ("linrnn", "SequenceModl", "linrnn.SequenceModel"),
        ("linrnn", "explain", "linrnn.ops.explain"),
        ("linrnn.mixers", "Mambaa", "linrnn.mixers.Mamba"),
    ],
)
def test_a_name_that_is_elsewhere(module, name, place):
    with pytest.raises(AttributeError, match=f"Did you mean {re.escape(place)}"):
        getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", ["__wrapped__", "_nothing", "xyzzyx"])
def test_a_name_that_is_nowhere(name):
    for module in (linrnn, linrnn.mixers):
        assert not hasattr(module, name)
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'$"):
            getattr(module, name)


def test_places_of_names_exist():
    for name, place in linrnn._PLACES.items():
        if "(" in place:
            assert linrnn.RNN(name.lower(), 2, 3)
            continue
        module, _, member = place.rpartition(".")
        assert hasattr(importlib.import_module(f"linrnn.{module}"), member), place
        assert name == member


def test_help_names_what_is_there():
    """Each name in the summary of the package, but commands and arguments, exists."""
    text = linrnn.__doc__
    for name in re.findall(r"^    ([\w.]+)", text, re.MULTILINE):
        thing = linrnn
        for part in name.split("."):
            thing = getattr(thing, part)

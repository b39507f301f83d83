"""Every argument of every public method: an answer, or an error of ours that names the argument."""

import inspect
import re
import warnings

import numpy as np
import pytest
import torch
from odd_data import KIND, SMALL, TABLE, WAVE, finite, in_time

from linrnn import (
    PanelForecaster,
    RecurrentClassifier,
    RecurrentDetector,
    RecurrentForecaster,
    RecurrentImputer,
    RecurrentRegressor,
    estimators,
)
from linrnn.errors import LinrnnError
from linrnn.estimators.early import EarlyStream

# the shape checker refuses what is wrong before the library can
pytestmark = pytest.mark.unchecked

WRONG = (
    None, True, 0, -1, 10**9, 10**30, 1.5, float("nan"), "", "x", b"x", (), (3,), [], [2, 5], {},
    {"x": 1}, object(), np.ones(2), np.ones((2, 2, 2, 2)), [[1.0], [1.0, 2.0]], torch.ones(1), 1j,
    np.array(["a", "b"]), np.arange(3).astype("datetime64[D]"),
)  # fmt: skip
NOT_ANSWERS = (bytes, complex, dict)
GAPS = np.where(np.arange(40) // 3 == 4, np.nan, WAVE[:40])[:, None]
LEARN = ("fit", "partial_fit", "update", "undo", "fit_transform", "fit_predict")
"""Methods that change an estimator, which is made anew for each call."""
OTHERS = ("get_params", "set_params", "get_metadata_routing", "set_output")
"""Methods of scikit-learn for its own use."""
IGNORED = {(name, "y") for name in ("RecurrentDetector", "RecurrentImputer")}
"""Arguments that scikit-learn's methods have and that are not read."""
OTHER_WORDS = {"classes": "class", "path": "file", "x": "X", "values": "x"}
USUAL = {
    "PanelForecaster": {"y": WAVE[:10], "X": None},
    "RecurrentClassifier": {"X": TABLE, "y": KIND, "classes": [0, 1], "x": TABLE[0]},
    "RecurrentRegressor": {"X": TABLE, "y": KIND, "x": TABLE[0]},
    "RecurrentDetector": {"X": WAVE[:, None], "row": [0.1]},
    "RecurrentForecaster": {"y": WAVE, "values": WAVE[:5], "coverage": 0.3},
    "RecurrentImputer": {"X": GAPS},
    "EarlyStream": {"values": [0.1]},
}


def fitted(name, method):
    """An estimator that is ready for a method."""
    if name == "RecurrentClassifier" and method == "partial_fit":
        return RecurrentClassifier(**SMALL)
    if name in ("RecurrentClassifier", "EarlyStream"):
        classifier = RecurrentClassifier(early=3, **SMALL).fit(TABLE, KIND)
        return classifier if name == "RecurrentClassifier" else classifier.stream()
    return {
        "PanelForecaster": lambda: PanelForecaster(2, 4).fit(WAVE[:10]),
        "RecurrentRegressor": lambda: RecurrentRegressor(**SMALL).fit(TABLE, KIND),
        "RecurrentDetector": lambda: RecurrentDetector(n_modes=4, memory=30, random_state=0).fit(
            WAVE[:, None]
        ),
        "RecurrentForecaster": lambda: RecurrentForecaster(horizon=3, season=6, n_modes=12).fit(
            np.tile(WAVE, 3)
        ),
        "RecurrentImputer": lambda: RecurrentImputer(n_modes=4, random_state=0).fit(GAPS),
    }[name]()


def arguments():
    """Class, method and argument, of all that are public."""
    for kind in (*(getattr(estimators, name) for name in estimators.__all__), EarlyStream):
        for method, function in inspect.getmembers(kind, _is_method):
            if method.startswith("_") or method.endswith("_request") or method in OTHERS:
                continue
            bound = int(inspect.isfunction(function))  # one of the class has its first
            for argument in list(inspect.signature(function).parameters.values())[bound:]:
                if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
                    yield kind.__name__, method, argument.name


def _is_method(member):
    return inspect.isfunction(member) or inspect.ismethod(member)


def fault(name, method, argument, value, estimator):
    """How a call breaks the law; None where it does not."""
    bound = getattr(estimator, method)
    usual = USUAL[name] | {argument: value}
    needed = [
        key
        for key, one in inspect.signature(bound).parameters.items()
        if one.default is one.empty or key in (argument, "classes")
    ]
    call = {key: usual[key] for key in needed if key in usual}
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = bound(**call)
    except LinrnnError as error:
        words = {argument, OTHER_WORDS.get(argument, argument)}
        said = any(re.search(rf"\b{word}\b", str(error)) for word in words)
        return None if said else f"{value!r:.40} is not named: {str(error)[:120]}"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{value!r:.40}: {type(error).__name__}: {str(error)[:120]}"
    if (name, argument) in IGNORED or value is None:
        return None
    if type(value) is object or isinstance(value, NOT_ANSWERS):
        return f"{value!r:.40} was read"
    of_numbers = isinstance(answer, (float, np.ndarray)) and method != "score"
    return None if not of_numbers or finite(answer) else f"{value!r:.40} gives {answer!r:.80}"


@pytest.mark.parametrize(("name", "method", "argument"), [*arguments()])
def test_an_error_names_the_argument_of_a_method(name, method, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where `save` may write
    if method.startswith("plot"):
        pytest.importorskip("matplotlib")
    once = None if method in LEARN else fitted(name, method)
    faults = [fault(name, method, argument, value, once or fitted(name, method)) for value in WRONG]
    assert not any(faults), "\n".join(filter(None, faults))

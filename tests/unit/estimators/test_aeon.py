"""Checks by aeon of our estimators; without aeon they are skipped."""

import pytest

pytest.importorskip("aeon", reason="aeon is not installed")

from aeon.testing.estimator_checking import parametrize_with_checks

from linrnn.estimators.aeon import AeonClassifier, AeonRegressor

# the shape checker wraps constructors, whose signatures aeon then reads as *args, **kwargs
pytestmark = pytest.mark.unchecked


@parametrize_with_checks([AeonClassifier, AeonRegressor])
def test_it_is_an_estimator_of_aeon(check):
    check()

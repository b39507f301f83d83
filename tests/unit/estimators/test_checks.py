"""Checks by scikit-learn of every estimator; two of them are left out."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from linrnn import RecurrentClassifier, RecurrentRegressor

LEFT_OUT = {
    "check_sample_weight_equivalence_on_dense_data": "leaving one out chooses the penalty, and a "
    "series that is there twice is not left out by that; RidgeCV fails for the same reason",
    "check_fit_score_takes_y": "it calls partial_fit after fit, which keeps no series",
}


@parametrize_with_checks(
    [RecurrentClassifier(n_modes=100), RecurrentRegressor(n_modes=1000)],
    expected_failed_checks=lambda estimator: {
        name: why
        for name, why in LEFT_OUT.items()
        if hasattr(estimator, "partial_fit") or name != "check_fit_score_takes_y"
    },
)
def test_it_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)

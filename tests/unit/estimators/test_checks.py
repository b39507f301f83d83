"""What scikit-learn asks of every estimator; none of its checks is left out."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from linrnn import RecurrentClassifier, RecurrentRegressor


@parametrize_with_checks([RecurrentClassifier(n_modes=100), RecurrentRegressor(n_modes=1000)])
def test_it_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)

"""scikit-learn, or the error that says how to get it."""

from linrnn.errors import MissingExtraError

try:
    import sklearn as sklearn
except ImportError as error:
    raise MissingExtraError("an estimator", "scikit-learn", "train") from error

"""The one place that imports transformers; says what to install where it is missing."""

from linrnn.errors import MissingExtraError

try:
    import transformers as transformers
except ImportError as error:
    raise MissingExtraError("linrnn.interop.hf", "transformers", "hf") from error

"""A trained run behind HTTP: text in OpenAI's form, and sessions of series that are fed for ever.

`application` makes an ASGI application, which needs FastAPI; ``linrnn serve`` runs it with uvicorn.
Requests that arrive while the model computes are read together in its next call.
"""

from linrnn.serve.app import application as application
from linrnn.serve.limits import Limits as Limits
from linrnn.serve.runs import open_runs as open_runs
from linrnn.serve.server import serve as serve

__all__ = [
    "Limits",
    "application",
    "open_runs",
    "serve",
]


def __dir__() -> list[str]:
    return sorted(__all__)

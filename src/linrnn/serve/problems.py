"""Errors of the service: each has a status of HTTP, and becomes JSON that says what is wrong."""

import json
from typing import Any

from linrnn.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    LinrnnError,
    NonFiniteError,
    StorageError,
)


class RequestError(LinrnnError):
    """A request that cannot be served.

    Args:
        status: of HTTP.
        message: what is wrong and how to put it right.
        code: a word for programs.
    """

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


def status_of(error: LinrnnError) -> int:
    """The status of HTTP that an error becomes."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, StorageError):
        return 507
    wrong = (ArgumentError, DTypeError, DataError, NonFiniteError)
    return 400 if isinstance(error, wrong) else 500


def as_json(error: LinrnnError) -> dict[str, Any]:
    """The error as OpenAI's clients expect it.

    Example:
        >>> as_json(RequestError(404, "serve: no such session.", "not_found"))["code"]
        'not_found'
    """
    codes = {507: "storage", 500: "internal"}
    code = getattr(error, "code", codes.get(status_of(error), "invalid_input"))
    kind = "server_error" if status_of(error) >= 500 else "invalid_request_error"
    return {"message": str(error), "type": kind, "param": None, "code": code}


def json_bytes(value: Any) -> bytes:
    r"""JSON as UTF-8, where lone surrogates stay as the escapes that they came as.

    Example:
        >>> json_bytes({"id": "\ud800 é"}).decode()
        '{"id":"\\ud800 é"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def internal() -> RequestError:
    """The error of a request on which the service itself has failed."""
    return RequestError(500, "serve: the request must succeed, got an error here.", "internal")

"""The contents of requests: bodies of limited size, with fields checked by name."""

import json
from collections.abc import Mapping
from typing import Any

from linrnn.errors import show
from linrnn.serve.problems import RequestError


async def body_of(request: Any, limit: int) -> bytes:
    """The body of a request.

    Raises:
        RequestError: it is longer than the limit.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise RequestError(
                413, f"serve: a request must hold at most {limit:,} bytes, got more.", "too_large"
            )
        parts.append(part)
    return b"".join(parts)


async def json_of(request: Any, limit: int) -> dict[str, Any]:
    """The JSON object in the body of a request.

    Raises:
        RequestError: it is none, or too long.
    """
    body = await body_of(request, limit)
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"serve: the body must be JSON, got {error}.") from error
    if not isinstance(value, dict):
        raise RequestError(400, f"serve: the body must be a JSON object, got {show(value)}.")
    return value


def check_fields(where: str, body: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Raise unless all fields of a body are known, and those that do nothing have no effect.

    Args:
        where: who asks, for the message.
        body: of a request.
        fields: names to ``...``, or, of what is not supported, to the values that ask for nothing.
    """
    for name, value in body.items():
        if name not in fields:
            raise RequestError(
                400, f"{where}: fields must be of {', '.join(fields)}, got {show(name)}."
            )
        harmless = fields[name]
        if harmless is not ... and value is not None and value not in harmless:
            raise RequestError(
                400, f"{where}: {name} must be left out, got {show(value)}: it is not supported."
            )


def integer(where: str, body: Mapping[str, Any], name: str, default: Any, upper: int) -> Any:
    """An integer from 0 to ``upper``, or the default where there is none."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= upper:
        raise RequestError(
            400, f"{where}: {name} must be an integer from 0 to {upper:,}, got {show(value)}."
        )
    return value

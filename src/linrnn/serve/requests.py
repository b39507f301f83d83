"""The contents of requests: bodies of limited size, with fields checked by name."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from linrnn.errors import show
from linrnn.serve.problems import RequestError

T = TypeVar("T")


async def body_of(request: Any, limit: int) -> bytes:
    """The body of a request.

    Raises:
        RequestError: it is longer than the limit, or ends before its end.
    """
    from starlette.requests import ClientDisconnect

    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise RequestError(
                    413,
                    f"serve: a request must hold at most {limit:,} bytes, got more.",
                    "too_large",
                )
            parts.append(part)
    except ClientDisconnect as error:
        raise gone(f"{size:,} bytes of the body") from error
    return b"".join(parts)


async def while_there(request: Any, answer: Coroutine[Any, Any, T]) -> T:
    """Compute an answer, whose body has been read, for as long as the client waits for it.

    Raises:
        RequestError: the client has gone; what was computed is cancelled.
    """
    task = asyncio.ensure_future(answer)
    left = asyncio.ensure_future(request.receive())  # nothing else comes after the body
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise gone("no answer yet")
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


def gone(got: str) -> RequestError:
    """The error of a connection that has ended too early; nobody reads it but the counts."""
    return RequestError(
        499, f"serve: the client must wait for the answer, got {got} when it left.", "gone"
    )


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


def integer(
    where: str, body: Mapping[str, Any], name: str, default: Any, upper: int, lower: int = 0
) -> Any:
    """An integer from ``lower`` to ``upper``, or the default where there is none."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not lower <= value <= upper:
        must = f"an integer from {lower} to {upper:,}"
        raise RequestError(400, f"{where}: {name} must be {must}, got {show(value)}.")
    return value

"""Who may ask, how many at once, and what every answer has in common."""

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from linrnn.serve.limits import Limits
from linrnn.serve.metrics import Metrics
from linrnn.serve.problems import RequestError, as_json, internal

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
"""Hosts that no other machine reaches."""

ROUTE = "linrnn.route"
"""Where the application leaves the path that it has found, for counts."""

_OPEN = ("/health",)
_LOG = logging.getLogger("linrnn.serve")

Application = Callable[..., Awaitable[None]]


class Guard:
    """Around an ASGI application: checks of who asks, and counts of requests.

    Args:
        inner: the application.
        token: that a request must bring as ``Authorization: Bearer``; None: the host it was sent
            to must be this machine by its loopback name, so that no page of a browser gets through.
        limits: of the service.
        metrics: of the service.
    """

    def __init__(
        self, inner: Application, token: str | None, limits: Limits, metrics: Metrics
    ) -> None:
        self._inner, self._token = inner, token
        self._limits, self._metrics = limits, metrics
        self._running = 0
        metrics.gauge("linrnn_requests", lambda: self._running)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, as ASGI has it."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def counted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._running += 1
        try:
            self._check(scope)
            await self._inner(scope, receive, counted)
        except RequestError as error:
            await _refuse(error, counted)
        except Exception:  # noqa: BLE001 - it is logged, and who asked hears of it
            _LOG.exception("%s %s", scope["method"], scope["path"])
            if not status:
                await _refuse(internal(), counted)
        finally:
            self._running -= 1
            route = scope.get(ROUTE, "none")
            self._metrics.count("linrnn_requests_total", path=route, status=str(status))
            self._metrics.took(time.perf_counter() - begin, path=route)

    def _check(self, scope: Any) -> None:
        if scope["path"] in _OPEN:
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self._token is None:
            _check_host(headers)
        else:
            expected = f"Bearer {self._token}".encode()
            if not hmac.compare_digest(headers.get(b"authorization", b""), expected):
                raise RequestError(
                    401,
                    "serve: a request must bring the token, got another or none. Send the header "
                    "Authorization: Bearer TOKEN.",
                    "unauthorized",
                )
        if self._running > self._limits.requests:
            raise RequestError(
                503,
                f"serve: there must be at most {self._limits.requests:,} requests at once, got one "
                "more. Try again.",
                "overloaded",
            )


def _check_host(headers: Mapping[bytes, bytes]) -> None:
    host = headers.get(b"host", b"").decode("latin-1")
    name = host if host.endswith("]") or host.count(":") > 1 else host.partition(":")[0]
    name = name.partition("]")[0] + "]" if name.startswith("[") else name
    if name.lower() not in LOOPBACK:
        raise RequestError(
            403,
            f"serve: the host must be 127.0.0.1 or localhost, got {host[:80]!r}. Start the service "
            "with a token for other names.",
            "forbidden",
        )


async def _refuse(error: RequestError, send: Any) -> None:
    data = json.dumps({"error": as_json(error)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    if error.status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": data})

"""The application behind a socket, until a signal comes."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from linrnn._process.signals import stop_signals
from linrnn.errors import ArgumentError, MissingExtraError
from linrnn.serve.app import application
from linrnn.serve.guard import LOOPBACK
from linrnn.serve.limits import Limits
from linrnn.train.context import Trained


def serve(
    runs: Mapping[str, Trained],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    state: Path | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    started: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer requests until Ctrl-C or SIGTERM; then finish those that run, and write all states.

    Args:
        runs: as `open_runs` gives them.
        host: to listen at. One that is not loopback needs a token.
        port: to listen at; 0 takes one that is free.
        state, token, limits: as of `application`.
        started: called with the address once it answers.

    Raises:
        ArgumentError: the address cannot be listened at, or is reachable without a token.
        MissingExtraError: uvicorn or FastAPI is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("linrnn serve", "uvicorn", "serve") from error
    check_reach(host, token)
    limits = limits or Limits()
    listener = _listener(host, port)
    with listener:
        app = application(runs, state=state, token=token, limits=limits)

        class Server(uvicorn.Server):  # type: ignore[misc,unused-ignore]
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                if not self.should_exit:
                    name = f"[{host}]" if ":" in host else host
                    started(f"http://{name}:{listener.getsockname()[1]}")

        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="on",
            timeout_graceful_shutdown=int(limits.seconds) + 1,
            timeout_keep_alive=30,
        )
        # uvicorn raises the signal again when all is done, which is then no more to be obeyed
        with stop_signals(lambda number, frame: None):
            Server(config).run(sockets=[listener])


def check_reach(host: str, token: str | None) -> None:
    """Raise `ArgumentError` where other machines could ask without a token."""
    if token is None and host not in LOOPBACK:
        raise ArgumentError(
            f"serve: --host must be 127.0.0.1 where there is no token, got {host}. Put a token in "
            "a file and name it: --token-file FILE"
        )


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ArgumentError(
            f"serve: {host}:{port} must be an address to listen at, got: {error.strerror}. Choose "
            "another with --port."
        ) from error
    listener.set_inheritable(True)
    return listener

"""Serve trained runs over HTTP: generated text, and sessions that read endless streams."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linrnn.cli._line.extras import SERVE, missing
from linrnn.cli._line.output import answer, note
from linrnn.cli._line.parser import Parser
from linrnn.errors import ArgumentError, MissingExtraError

TOKEN = "LINRNN_TOKEN"
"""A variable of the environment that may hold the token."""


def main(argv: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    args = parser().parse_args(argv)
    package = missing(SERVE)
    if package is not None:
        raise MissingExtraError("linrnn serve", package, "serve")
    token = _token(args.token_file)
    if not 0 <= args.port < 65536:
        raise ArgumentError(f"serve: --port must be from 0 to 65535, got {args.port}.")
    from linrnn.serve import Limits, open_runs, serve
    from linrnn.serve.server import check_reach

    check_reach(args.host, token)
    limits = Limits(**{name: getattr(args, f"max_{name}") for name in _LIMITS})
    runs = open_runs(args.run)

    def started(url: str) -> None:
        note(f"{', '.join(runs)}: {url}\n")
        answer(lambda: {"url": url, "models": list(runs)})

    if args.state is None:
        note("sessions end with the service; --state FOLDER keeps them\n")
    serve(
        runs,
        host=args.host,
        port=args.port,
        state=args.state,
        token=token,
        limits=limits,
        started=started,
    )
    note("stopped\n")
    return 0


def parser() -> Parser:
    """The parser of the verb's arguments."""
    parser = Parser("serve", __doc__, epilog=_EPILOG)
    add = parser.add
    add("run", type=Path, metavar="RUN", help=_RUN, kind="folder")
    add("--host", default="127.0.0.1", metavar="HOST", help=_HOST)
    add("--port", type=int, default=8000, metavar="N", help="port; 0: a free one (8000)")
    add("--state", type=Path, default=None, metavar="FOLDER", help=_STATE, kind="folder")
    add("--token-file", type=Path, default=None, metavar="FILE", help=_TOKEN, kind="file")
    for name, (kind, default, what) in _LIMITS.items():
        flag = f"--max-{name.replace('_', '-')}"
        add(flag, type=kind, default=default, metavar="N", help=f"{what} ({default:,})")
    return parser


def _token(path: Path | None) -> str | None:
    """The token that requests must bring, from a file or the environment."""
    if path is None:
        return os.environ.get(TOKEN) or None
    from linrnn._files.storage import read_text

    try:
        token = read_text(path, 4096, inside=None).strip()
    except (OSError, ValueError) as error:
        raise ArgumentError(f"serve: {path} must hold a token, got: {error}.") from error
    if not token or not token.isascii() or not token.isprintable():
        raise ArgumentError(f"serve: {path} must hold one line of ASCII, got something else.")
    return token


_LIMITS: dict[str, tuple[Any, Any, str]] = {
    "body": (int, 8 << 20, "bytes of a request"),
    "requests": (int, 1024, "requests at once"),
    "sessions": (int, 100_000, "sessions of a run"),
    "steps": (int, 65_536, "steps of a session in a request"),
    "prompt": (int, 65_536, "tokens of a prompt"),
    "new_tokens": (int, 4096, "tokens made for a prompt"),
    "rows": (int, 64, "texts written at once"),
    "seconds": (float, 60.0, "time for a request"),
}
_RUN = "a run folder, or a folder of run folders"
_HOST = "address to listen on; one that other machines reach needs a token (127.0.0.1)"
_STATE = "keep the states of sessions here, so that they survive a restart or a crash"
_TOKEN = f"file with the token that requests must send; or set {TOKEN}"
_EPILOG = """A language model serves completions and chat in the format of OpenAI:
  linrnn serve runs/lm-lru-1
  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "ROMEO:", "max_tokens": 50}'

Any other run serves sessions, in the units of its data:
  linrnn serve runs/mackey_glass-lru-1 --state sessions
  curl http://127.0.0.1:8000/sessions -d '{"id": "a"}'
  curl http://127.0.0.1:8000/sessions/a/feed -d '{"x": [[0.9], [1.1]]}'

After Ctrl-C or SIGTERM it finishes running requests and writes all states. /health and /metrics
report its condition. The page "Serving" describes all of it."""

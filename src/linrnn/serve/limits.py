"""How much of anything the service takes."""

from dataclasses import dataclass, fields

from linrnn.errors import check_positive, check_positive_int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a service takes of anything, for all clients together unless it says otherwise.

    Raises:
        ArgumentError: a limit that is not positive.
    """

    body: int = 8 << 20
    """Bytes of a request."""
    requests: int = 1024
    """Requests handled at the same time; a further one is refused with status 503."""
    sessions: int = 100_000
    """Sessions of a run."""
    steps: int = 65_536
    """Steps of one session in a request."""
    prompt: int = 65_536
    """Tokens of a prompt."""
    new_tokens: int = 4096
    """Tokens made for a prompt."""
    choices: int = 64
    """Texts made for a request."""
    rows: int = 64
    """Texts that a model writes at the same time; further ones wait."""
    seconds: float = 60.0
    """Time for a request."""
    journal: int = 64 << 20
    """Bytes that are written of feeds before all states are written anew."""

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        check_positive("serve", seconds=values.pop("seconds"))
        check_positive_int("serve", **values)

"""Every law of `linear_scan` on every backend this machine has; nothing is listed by hand."""

import pytest

from linrnn.ops import backend_report
from linrnn.testing import OP_LAWS

NEEDS_NO_CHECKER = {"compiles"}  # torch.compile cannot trace the shape checker


def cases(*, unchecked: bool) -> list[tuple[str, str]]:
    laws = [n for n in OP_LAWS if (n in NEEDS_NO_CHECKER) == unchecked]
    return [(backend, law) for backend in backend_report() for law in laws]


def run(backend: str, law: str) -> None:
    problem = backend_report()[backend]
    if problem != "available":
        pytest.skip(f"{backend}: {problem}")
    OP_LAWS[law](backend)


@pytest.mark.parametrize(("backend", "law"), cases(unchecked=False))
def test_backend_keeps_law(backend, law):
    run(backend, law)


@pytest.mark.unchecked
@pytest.mark.parametrize(("backend", "law"), cases(unchecked=True))
def test_backend_keeps_law_unchecked(backend, law):
    run(backend, law)

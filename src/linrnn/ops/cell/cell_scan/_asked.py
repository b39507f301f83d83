"""The form that calls of `cell_scan` take which ask for none themselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from linrnn._process.ambient import Ambient
from linrnn.errors import check_in
from linrnn.ops.cell.cell_scan._newton import NOTED, Convergence

FORMS = ("native", "scan", "loop", "newton")
"""How a cell can be computed; fastest first; last the form that must be requested."""

_REQUESTED: Ambient[str | None] = Ambient("form", lambda form: form is not None)


@contextmanager
def use_form(form: str | None) -> Iterator[list[Convergence]]:
    """Compute every cell inside the ``with`` block in one form: that of a layer or a whole model.

    Args:
        form: as of `cell_scan`; None restores its own choice. It holds for this thread and task,
            as `use_backend` does; a call's own ``form=`` is stronger. A single step of a stream,
            and layers that PyTorch's own kernels compute, take it where they are cells.

    Yields:
        A list, to which each call that Newton's method solves adds its residual and rounds.

    Raises:
        UnknownNameError: no such form.
        BackendError: inside of the block, for a cell that the form cannot compute.

    Example:
        >>> import torch
        >>> from linrnn.mixers import UnICORNN
        >>> from linrnn.ops import use_form
        >>> with torch.no_grad(), use_form("newton") as found:
        ...     y, state = UnICORNN(8)(torch.randn(1, 500, 8))
        >>> found[0].rounds < 20
        True
    """
    if form is not None:
        check_in("use_form", "form", form, FORMS)
    noted: list[Convergence] = []
    with NOTED.set(noted), _REQUESTED.set(form):
        yield noted


def requested_form(explicit: str | None) -> tuple[str | None, str]:
    """The requested form and by what: the argument, or `use_form`."""
    form = _REQUESTED.get() if explicit is None else None
    if form is None:
        return explicit, "the argument form="
    return form, "linrnn.ops.use_form"

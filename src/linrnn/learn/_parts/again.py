"""To compute something as it was computed before: with its precision and its random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor


def generators(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators that a device's operators draw from."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def drawn_again(device: torch.device, states: list[Tensor]) -> Iterator[None]:
    """Inside, the numbers are drawn that followed when `generators` gave ``states``."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.set_rng_state(states[0])
        if on_gpu:
            torch.cuda.set_rng_state(states[1], device)
        yield


class Mode:
    """How something is computed now: autocast and the default dtype.

    Args:
        device: where.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, kind = device, device.type
        available = torch.amp.is_autocast_available(kind)  # of some devices nothing can be asked
        self.autocast = available and torch.is_autocast_enabled(kind)
        self.dtype = torch.get_autocast_dtype(kind) if available else None
        self.default = torch.get_default_dtype()

    @contextmanager
    def again(self, states: list[Tensor] | None = None) -> Iterator[None]:
        """Inside it is computed so again, if with ``states`` with the same random numbers."""
        outside, kind = torch.get_default_dtype(), self.device.type
        torch.set_default_dtype(self.default)
        autocast = (
            nullcontext()
            if self.dtype is None
            else torch.autocast(kind, self.dtype, self.autocast, False)
        )
        draws = nullcontext() if states is None else drawn_again(self.device, states)
        try:
            with draws, autocast:
                yield
        finally:
            torch.set_default_dtype(outside)

"""Computing outside `torch.autocast`."""

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside it no operator lowers its precision; nothing where the device has no autocast."""
    kind = device.type
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)

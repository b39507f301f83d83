"""Weights that lie on a disk, or elsewhere, until a block is called."""

from typing import Any

from torch import nn

from linrnn.block import Block


def offloaded(model: nn.Module) -> bool:
    """Whether weights are fetched as their modules are called, so that all must be called."""
    places = vars(model).get("hf_device_map") or {}  # looked up at every token
    return len(set(places.values())) > 1 or "disk" in places.values()


def fetch_whole_blocks(model: nn.Module) -> None:
    """Have ``accelerate`` fetch the weights of a block together.

    By itself it fetches those of a module when that is called, but a recurrence reads the weights
    of its parts, and checks its input by where they are.
    """
    for name, block in model.named_modules():
        if isinstance(block, Block) and any(p.is_meta for p in block.parameters()):
            _fetch_whole(name, block)


def _fetch_whole(name: str, block: Block) -> None:
    from accelerate.hooks import (  # type: ignore[import-untyped]
        AlignDevicesHook,
        add_hook_to_module,
        remove_hook_from_module,
    )
    from accelerate.utils import PrefixedDataset  # type: ignore[import-untyped]

    hooks: Any = (getattr(part, "_hf_hook", None) for part in block.modules())
    hook = next(h for h in hooks if getattr(h, "offload", False))
    weights = hook.weights_map
    while isinstance(weights, PrefixedDataset):
        weights = weights.dataset
    remove_hook_from_module(block, recurse=True)
    block_hook = AlignDevicesHook(
        execution_device=hook.execution_device,
        offload=True,
        io_same_device=True,
        weights_map=PrefixedDataset(weights, f"{name}."),
        offload_buffers=hook.offload_buffers,
        place_submodules=True,
    )
    add_hook_to_module(block, block_hook)

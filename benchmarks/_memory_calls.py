"""Matrix memories to compare and to time: calls of `outer_scan` and `delta_scan` of every kind."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from linrnn.ops import delta_scan, outer_scan

#: (batch, time, heads, d_key, d_value)
MEMORY_SHAPES = ((1, 4096, 8, 64, 64), (8, 1024, 4, 64, 64), (1, 16384, 4, 128, 128))
#: What each takes beside queries, keys and values.
MEMORIES = {
    "outer": (),
    "outer, by head": ("head",),
    "outer, by channel": ("channel",),
    "outer, by channel, bonus": ("channel", "bonus", "normalizer"),
    "delta": ("beta",),
    "delta, by head": ("beta", "head"),
    "delta, by channel": ("beta", "channel"),
    "low rank, by channel": ("beta", "channel", "low rank"),
}
#: The function of flash-linear-attention that computes the same, and its arguments.
_FLA = {
    "outer, by head": ("simple_gla", "chunk_simple_gla", ("g",)),
    "outer, by channel": ("gla", "chunk_gla", ("g",)),
    "delta": ("delta_rule", "chunk_delta_rule", ("beta",)),
    "delta, by head": ("gated_delta_rule", "chunk_gated_delta_rule", ("g", "beta")),
    "delta, by channel": ("kda", "chunk_kda", ("g", "beta")),
}


def op_of(name: str) -> Callable[..., Any]:
    """The op that computes a kind."""
    return outer_scan if name.startswith("outer") else delta_scan


def options_of(name: str) -> dict[str, Any]:
    """Its arguments that are no tensors."""
    return {"normalizer": True} if "normalizer" in MEMORIES[name] else {}


def memory(name: str, shape: tuple[int, ...], seqs: int) -> dict[str, Tensor]:
    """Its arguments in float32, and a state of every sequence; random, keys of length 1."""
    batch, time, heads, keys, values = shape
    needs = MEMORIES[name]

    def unit() -> Tensor:
        return F.normalize(torch.randn(batch, time, heads, keys), dim=-1)

    given = {"q": unit(), "k": unit(), "v": torch.randn(batch, time, heads, values)}
    if "head" in needs or "channel" in needs:
        size = (keys,) if "channel" in needs else ()
        given["g"] = F.logsigmoid(3 + torch.randn(batch, time, heads, *size))
    if "bonus" in needs:
        given["bonus"] = torch.randn(heads, keys)
    if "beta" in needs:
        given["beta"] = 2 * torch.rand(batch, time, heads)
    if "low rank" in needs:
        given |= {"a": unit(), "b": -0.5 * unit()}
    columns = values + ("normalizer" in needs)
    return given | {"initial_state": torch.randn(seqs, heads, keys, columns)}


def layouts(time: int) -> Iterator[dict[str, Any]]:
    """A batch of three sequences, and three packed ones read backward; both with resets."""
    yield {"reset": torch.rand(3, time) < 0.02}
    cuts = torch.tensor([0, 0, time // 3, time])
    yield {"reset": torch.rand(1, time) < 0.02, "cu_seqlens": cuts, "reverse": True}


def has_fla_peer(name: str) -> bool:
    """Whether flash-linear-attention computes the same recurrence."""
    return name in _FLA


def fla_peer(name: str, given: dict[str, Tensor]) -> Callable[[], Tensor]:
    """flash-linear-attention's kernel of the same recurrence."""
    module, function, extra = _FLA[name]
    chunk = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    tensors = {n: given[n] for n in ("q", "k", "v", *extra)}
    return lambda: chunk(**tensors, scale=1.0)[0]

"""Generation by families whose state is no cache of transformers: see `recorded`."""

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linrnn.engine.replay.step import recorded_step
from linrnn.interop._accelerate.recorded import one_token
from linrnn.interop._accelerate.table import words
from linrnn.interop._accelerate.theirs import stood_for

Method = Callable[..., Any]


def rwkv(forward: Method) -> Method:
    """``RwkvBlock.forward``: five states (batch, channels, layers), written in place.

    For one sequence: with several, transformers mixes the rows.
    """

    def read(
        self: Any,
        hidden: Tensor,
        state: list[Tensor] | None = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ) -> Any:
        plain = state is None or not use_cache or output_attentions
        if plain or not one_token(hidden) or hidden.shape[0] != 1:
            return forward(self, hidden, state, use_cache, output_attentions)
        assert state is not None
        columns = [z[:, :, self.layer_id] for z in state]  # (1, channels) each

        def step(x: Tensor, parts: Any) -> tuple[Tensor, Any]:
            copies = [_Column(z) for z in parts]
            y = forward(self, x.unsqueeze(1), copies, use_cache=True)[0]  # (1, 1, D)
            return y.squeeze(1), [z.column for z in copies]

        parts: Any = [z.contiguous() for z in columns]
        done = recorded_step(self, step, hidden.squeeze(1), parts)
        if done is None:
            return forward(self, hidden, state, use_cache, output_attentions)
        for z, new in zip(columns, done[1], strict=True):
            z.copy_(new)
        return done[0].unsqueeze(1), state, None

    return read


class _Column:
    """Stands for a state of all layers, of which one layer reads and writes its own."""

    def __init__(self, column: Tensor) -> None:
        self.column = column

    def __getitem__(self, at: Any) -> Tensor:
        return self.column

    def __setitem__(self, at: Any, value: Tensor) -> None:
        self.column = value


def xlstm(forward: Method) -> Method:
    """``xLSTMBlock.forward``: states C, n and m, returned anew."""

    def read(self: Any, x: Tensor, state: tuple[Tensor, ...] | None = None) -> Any:
        def step(x: Tensor, parts: Any) -> tuple[Tensor, Any]:
            y, new = forward(self, x.unsqueeze(1), tuple(parts))  # (B, 1, D)
            return y.squeeze(1), list(new)

        if state is not None and one_token(x):
            states: Any = list(state)
            done = recorded_step(self, step, x.squeeze(1), states)
            if done is not None:
                return done[0].unsqueeze(1), tuple(done[1])
        return forward(self, x, state)

    return read


def recurrent_gemma(forward: Method) -> Method:
    """``RecurrentGemmaDecoderLayer.forward``: states are attributes of its recurrent block.

    Behind the first position, where the state is not begun anew.
    """

    def read(
        self: Any,
        activations: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor | None,
        use_cache: bool | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        block = self.temporal_block

        def step(x: Tensor, parts: Any) -> tuple[Tensor, Any]:
            before = block.conv1d_state, block.rg_lru.recurrent_states
            later = torch.ones(x.shape[0], 1, dtype=torch.int64, device=x.device)
            try:
                block.conv1d_state, block.rg_lru.recurrent_states = parts
                y = forward(self, x.unsqueeze(1), later, None, True)  # (B, 1, D)
                return y.squeeze(1), [block.conv1d_state, block.rg_lru.recurrent_states]
            finally:
                block.conv1d_state, block.rg_lru.recurrent_states = before

        states: Any = [getattr(block, "conv1d_state", None)]
        states += [getattr(getattr(block, "rg_lru", None), "recurrent_states", None)]
        if use_cache and _follows(activations, position_ids, states):
            states[0] = states[0].contiguous()
            done = recorded_step(self, step, activations.squeeze(1), states)
            if done is not None:
                block.conv1d_state, block.rg_lru.recurrent_states = done[1]
                return done[0].unsqueeze(1)
        options: Any = {"past_key_values": past_key_values, **kwargs}
        return forward(self, activations, position_ids, attention_mask, use_cache, **options)

    return read


def _follows(x: Tensor, position_ids: Tensor, states: list[Tensor | None]) -> bool:
    """Whether a token comes after others of its rows."""
    if not one_token(x) or position_ids.shape[1] != 1 or not x.is_cpu:
        return False
    if any(z is None or z.shape[0] != x.shape[0] for z in states):
        return False
    return bool((position_ids > 0).all())


class _Block(NamedTuple):
    """The recorder of a block; ``parameters`` are those expected of its method."""

    record: Callable[[Method], Method]
    parameters: tuple[str, ...]


#: By class, within ``transformers.models``.
_BLOCKS = {
    "rwkv.modeling_rwkv.RwkvBlock": _Block(
        rwkv, words("self hidden state use_cache output_attentions")
    ),
    "xlstm.modeling_xlstm.xLSTMBlock": _Block(xlstm, words("self x state")),
    "recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaDecoderLayer": _Block(
        recurrent_gemma,
        words("self activations position_ids attention_mask use_cache past_key_values kwargs"),
    ),
}


def recorded_block(kind: type) -> FunctionType | None:
    """The ``forward`` of such a block, which records; None of another class."""
    block = _BLOCKS.get(f"{kind.__module__}.{kind.__name__}".removeprefix("transformers.models."))
    if block is None:
        return None
    forward = stood_for(kind.forward)  # type: ignore[attr-defined]
    if tuple(inspect.signature(forward).parameters) != block.parameters:
        return None
    return functools.wraps(forward)(block.record(forward))  # type: ignore[return-value]

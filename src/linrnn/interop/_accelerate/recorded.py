"""Generation: a token's way through a recurrent layer of transformers, in one native call.

Such a layer is some forty operators for a token, and its arithmetic is little beside calling them.
Its own method is run once over a cache that holds copies, its operators are written down, and from
then on what was written is run (`linrnn.engine.replay.step`): projections, convolution, gates,
recurrence and norm. Ops that write a state in place, such as `linrnn.ops.conv_update`, run as their
definitions meanwhile. The states that come out are written into those of the cache.
"""

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linrnn.engine.replay.operands import RefusedError
from linrnn.engine.replay.step import recorded_step
from linrnn.interop._accelerate.rebuild import names_of

#: Functions by which a layer reads one token. One that calls none of them has no state to carry.
UPDATES = (
    "causal_conv1d_update",
    "mamba_selective_state_update",
    "mamba2_selective_state_update",
    "torch_recurrent_gated_delta_rule",
    "recurrent_kimi_delta_attention",
)
#: Names of the argument that is the cache.
_CACHES = ("cache_params", "past_key_values")


class _States(NamedTuple):
    """The states of one layer of a cache, each by its number; those that the layer has."""

    convolution: list[Tensor]
    recurrent: list[Tensor]


class _Copies:
    """Stands for the cache of transformers, with states of one layer alone."""

    def __init__(self, states: _States) -> None:
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor:
        return self.states.convolution[state_idx]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        every = self.states.recurrent
        return every[state_idx] if every else None

    def update_recurrent_state(self, new: Tensor, layer_idx: int, state_idx: int = 0) -> Tensor:
        self.states.recurrent[state_idx] = new
        return new

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


def records(name: str, method: FunctionType) -> bool:
    """Whether a method reads tokens one by one, and may be recorded."""
    return name == "forward" and not names_of(method).isdisjoint(UPDATES)


def one_token(x: Tensor) -> bool:
    """Whether x (batch, time, channels) is a token of each row, and nobody asks for gradients."""
    graph = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return not graph and x.shape[1] == 1


def recorded(forward: FunctionType, *, around: bool = False) -> FunctionType | None:
    """The method of a layer, which records how it reads a token while it generates.

    Args:
        forward: as it is otherwise, over functions of ours.
        around: whether it is of a layer around another, which has such a method.

    Returns:
        None if it takes no cache.
    """
    names = list(inspect.signature(forward).parameters)[2:]  # behind self and the token
    cache_name = next((name for name in names if name in _CACHES), None)
    if cache_name is None:
        return None

    @functools.wraps(forward)
    def read(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if one_token(hidden_states):
            arguments = dict(zip(names, args, strict=False)) | kwargs
            states = _states(self, arguments.get(cache_name), around)
            if states is not None:
                token = _Token(self, forward, arguments, cache_name)
                answer = token.read(hidden_states, states)
                if answer is not None:
                    return answer
        return forward(self, hidden_states, *args, **kwargs)

    return read  # type: ignore[return-value]


#: Whether a layer answers with a tensor and None, by what its arguments are.
_pairs: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()


class _Token:
    """A call of a layer's method with one token of each row.

    Args:
        module: the layer.
        forward: its method.
        arguments: of the method, but for the token.
        cache: the name of the argument that is the cache.
    """

    def __init__(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        arguments: dict[str, Any],
        cache: str,
    ) -> None:
        self.module, self.forward, self.arguments, self.cache = module, forward, arguments, cache
        self.pairs = _pairs.setdefault(module, {})
        self.way = tuple((name, _outline(value)) for name, value in arguments.items())

    def read(self, x: Tensor, states: _States) -> Any:
        """Answer as the method does, and write to the states; None where operators are to."""
        parts: Any = list(states)
        done = recorded_step(self.module, self._step, x.squeeze(1), parts, self.way)
        if done is None:
            return None
        for place, values in zip(states, done[1], strict=True):
            for z, value in zip(place, values, strict=True):
                z.copy_(value)
        y = done[0].unsqueeze(1)  # (B, 1, D)
        return (y, None) if self.pairs[self.way] else y

    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        copies = _Copies(_States(*([z.clone() for z in part] for part in state)))
        arguments = self.arguments | {self.cache: copies}
        try:
            y = self.forward(self.module, x.unsqueeze(1), **arguments)
        except AttributeError as error:  # of another version, or of attention
            raise RefusedError("it asks the cache for more than states") from error
        self.pairs[self.way] = isinstance(y, tuple) and len(y) == 2 and y[1] is None
        y = y[0] if self.pairs[self.way] else y
        if not isinstance(y, Tensor):
            raise RefusedError("it answers with more than a tensor")
        return y.squeeze(1), list(copies.states)


def _outline(value: Any) -> Any:
    """The properties of an argument that decide on the operators: not a tensor's numbers."""
    if isinstance(value, Tensor):  # transformers looks whether a mask has rows and steps
        return tuple(n > 1 for n in value.shape)
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value)


def _states(module: Any, cache: Any, around: bool) -> _States | None:
    """The states of a layer, if it has read something and keeps no more than it needs.

    Args:
        module: the layer.
        cache: of transformers.
        around: whether it is around a layer with states, and must have nothing else to remember.
    """
    if around:
        module = next((part for part in module.children() if hasattr(part, "layer_idx")), None)
    every = getattr(cache, "layers", ())
    index = getattr(module, "layer_idx", None)
    layer: Any = every[index] if isinstance(index, int) and index < len(every) else None
    before = getattr(layer, "has_previous_state", None)
    if around and hasattr(layer, "keys"):
        return None
    if not before or not all(before.values()) or layer.record_past:
        return None
    if any(x is None for x in layer.conv_states.values()):
        return None
    parts = (layer.conv_states, layer.recurrent_states)
    return _States(*([x for x in part.values() if x is not None] for part in parts))

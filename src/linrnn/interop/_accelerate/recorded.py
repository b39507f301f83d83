"""Generation: a token's way through a recurrent layer of transformers, in one native call.

Such a layer is some forty operators for a token, and its arithmetic is little beside calling them.
Its own method is run once over a cache that holds copies, its operators are written down, and from
then on what was written is run (`linrnn.engine.replay.step`): projections, convolution, gates,
recurrence and norm. The states that come out are written into those of the cache.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from linrnn.engine.replay.step import recorded_step
from linrnn.engine.replay.tape import RefusedError
from linrnn.interop._accelerate.rebuild import layers, names_of, rebuilt
from linrnn.interop._accelerate.theirs import stood_for
from linrnn.interop._mamba_functions import SILU

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


def by_operators(method: FunctionType, names: Iterable[str]) -> FunctionType:
    """A method over definitions in PyTorch of the functions it calls, which can be written down."""
    space = layers(method)[-1].__globals__
    plain = {name: inspect.unwrap(stood_for(space[name])) for name in names}
    if "causal_conv1d_update" in plain:  # of a convolution nothing can be
        plain["causal_conv1d_update"] = _convolution
    return rebuilt(method, plain)


def recorded(forward: FunctionType, operators: FunctionType | None = None) -> FunctionType | None:
    """The method of a layer, which records how it reads a token while it generates.

    Args:
        forward: as it is otherwise.
        operators: the same over functions of PyTorch alone, which can be written down; None for a
            layer around another, which has such a method.

    Returns:
        None if it takes no cache.
    """
    names = list(inspect.signature(forward).parameters)[2:]  # behind self and the token
    cache_name = next((name for name in names if name in _CACHES), None)
    if cache_name is None:
        return None
    around = operators is None
    run = forward if operators is None else operators

    @functools.wraps(forward)
    def read(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if one_token(hidden_states):
            arguments = dict(zip(names, args, strict=False)) | kwargs
            cache = arguments.get(cache_name)
            if isinstance(cache, _Copies):  # what is around is being recorded
                return run(self, hidden_states, *args, **kwargs)
            states = None if cache is None else _states(self, cache, around)
            if states is not None:
                token = _Token(self, run, arguments, cache_name)
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
        run: its method.
        arguments: of the method, but for the token.
        cache: the name of the argument that is the cache.
    """

    def __init__(
        self,
        module: nn.Module,
        run: Callable[..., Any],
        arguments: dict[str, Any],
        cache: str,
    ) -> None:
        self.module, self.run, self.arguments, self.cache = module, run, arguments, cache
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
        y = self.run(self.module, x.unsqueeze(1), **self.arguments | {self.cache: copies})
        self.pairs[self.way] = isinstance(y, tuple) and len(y) == 2 and y[1] is None
        y = y[0] if self.pairs[self.way] else y
        if not isinstance(y, Tensor):
            raise RefusedError("it answers with more than a tensor")
        return y.squeeze(1), list(copies.states)


def _outline(value: Any) -> Any:
    """What of an argument decides on the operators: not the numbers of a tensor."""
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


def _convolution(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """``causal_conv1d_update`` of x (batch, channels, 1), by operators that can be recorded."""
    if activation not in SILU:
        raise NotImplementedError(f"causal_conv1d_update: activation {activation!r}")
    inputs = torch.cat([conv_state[:, :, 1:], hidden_states], 2)  # (B, C, taps)
    conv_state.copy_(inputs)
    y = (inputs * weight).sum(2, keepdim=True)  # (B, C, 1)
    y = y if bias is None else y + bias[:, None]
    return torch.nn.functional.silu(y) if SILU[activation] else y

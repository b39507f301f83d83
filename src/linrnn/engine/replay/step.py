"""One streaming step of a model in one native call, recorded from the operators it runs as.

A step of a few sequences is little arithmetic beside reading the weights; as hundreds of operators
it is mostly calls. Before the first step of a kind it is run as it is while its operators are
written down, and what was written is run (`linrnn.engine.replay.program`), then and from then on,
so a step has the same bits however many came before. A step with an operator that has no
instructions, or whose state grows, runs as before.

Without gradients, on a CPU. Weights may be bfloat16: everything else is float32 then.
"""

from collections.abc import Callable, Hashable
from math import inf
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from linrnn.compute.replay import Replays
from linrnn.engine.replay.operands import RefusedError
from linrnn.engine.replay.program import (
    SLOWER,
    WIDE,
    Kind,
    kind_of,
    operations,
    ready,
)
from linrnn.engine.replay.recorder import NOT_NOW
from linrnn.errors import LinrnnError
from linrnn.typing import State

Step = Callable[[Tensor, State], tuple[Tensor, State] | None]


class Tree(NamedTuple):
    """How a state is made of tensors."""

    kind: Any  # dict, list or tuple; None for a tensor
    names: tuple[Any, ...] = ()
    parts: tuple["Tree", ...] = ()

    def leaves(self, state: Any, into: list[Any]) -> bool:
        """Collect the tensors of a state of this structure; False for one of another."""
        if self.kind is None:
            into.append(state)
            return True
        if type(state) is not self.kind or len(state) != len(self.names):
            return False
        try:
            values = [state[name] for name in self.names] if self.kind is dict else state
        except KeyError:
            return False
        for part, value in zip(self.parts, values, strict=True):
            if part.kind is None:
                into.append(value)
            elif not part.leaves(value, into):
                return False
        return True

    def joined(self, leaves: Any) -> Any:
        """A state of this structure, from an iterator of its tensors."""
        if self.kind is None:
            return next(leaves)
        parts = [next(leaves) if x.kind is None else x.joined(leaves) for x in self.parts]
        return dict(zip(self.names, parts, strict=True)) if self.kind is dict else self.kind(parts)


def tree_of(state: Any) -> Tree:
    """The structure of a state."""
    if isinstance(state, dict):
        return Tree(dict, tuple(state), tuple(tree_of(x) for x in state.values()))
    if isinstance(state, (list, tuple)):
        return Tree(type(state), tuple(range(len(state))), tuple(map(tree_of, state)))
    return Tree(None)


_kinds: WeakKeyDictionary[nn.Module, Replays] = WeakKeyDictionary()
#: From how many sequences on operators are faster, by the rest of a key.
_slower: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], int]] = WeakKeyDictionary()


def recorded_step(
    module: nn.Module,
    step: Step,
    x: Tensor,
    state: State | Callable[[], State],
    way: Hashable = "",
) -> tuple[Tensor, State] | None:
    """``step(x, state)`` in one native call, None where it must be run as it is.

    Args:
        module: whose step it is, and whose weights it reads.
        step: computes ``(y, state)`` of x (batch, columns) with operators of PyTorch; None for
            arguments that most calls do not have, which are not to be recorded.
        x: not checked yet, nor is the state.
        state: before the step, or what makes it, called only where a step can be recorded.
        way: which of several steps of the module it is.
    """
    if not ready(x) or not operations():
        return None
    if torch.is_autocast_enabled("cpu"):  # which may change the dtypes of a state
        state = state() if callable(state) else state
        way = way, tuple([getattr(h, "dtype", None) for h in tree_leaves(state)])
    key, slower = _key(module, x, way), _slower.get(module)
    if slower and key[0] >= slower.get(key[1:], inf):
        return None
    kind = kind_of(_kinds_of(module), key, module)
    if kind is None:
        return None
    if callable(state):
        state = state()
    if kind.program is None and not _record(kind, module, step, x, state):
        if kind.slower:
            _slower.setdefault(module, {})[key[1:]] = key[0]
        return None
    assert kind.program is not None
    state_tree, next_tree = kind.form
    arguments: list[Any] = [x]
    if not state_tree.leaves(state, arguments):
        return None
    results = kind.program(arguments)
    return None if results is None else (results[0], next_tree.joined(iter(results[1:])))


def _kinds_of(module: nn.Module) -> Replays:
    kinds = _kinds.get(module)
    return _kinds.setdefault(module, Replays()) if kinds is None else kinds


def _key(module: nn.Module, x: Tensor, way: Hashable = "") -> tuple[Any, ...]:
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return x.shape[0], (x.dtype, autocast), module.training, way


def _record(kind: Kind, module: nn.Module, step: Step, x: Tensor, state: State) -> bool:
    """Write a step down; False where that cannot be done, or an argument is wrong."""
    tree, arguments = tree_of(state), [x]
    tree.leaves(state, arguments)
    if not all(type(h) is Tensor and h.is_cpu for h in arguments):
        return False

    def run(copies: list[Tensor]) -> tuple[list[Tensor], str | None]:
        try:
            done = run_step(copies[0], tree.joined(iter(copies[1:])))
        except RefusedError as error:
            return [], f"{error}"
        if done is None:
            return [], NOT_NOW
        y, new = done
        kind.form, results = (tree, tree_of(new)), [y]
        kind.form[1].leaves(new, results)
        next_leaves: list[Any] = []
        tree.leaves(new, next_leaves)
        same = [h.shape for h in arguments[1:]] == [getattr(h, "shape", None) for h in next_leaves]
        return results, None if same else "its state is of another size after each step"

    run_step = step
    try:
        if torch.is_autocast_enabled("cpu"):
            run_step = _without_autocast(module, step, x, state)
        kind.record(module, run, arguments, WIDE[x.dtype], if_faster=True)
    except LinrnnError:  # the operators say what is wrong
        return False
    return kind.program is not None


def _without_autocast(module: nn.Module, step: Step, x: Tensor, state: State) -> Step:
    """The step in the dtype of the weights, with results of the dtypes that autocast gives them.

    So it is computed in float32, and rounds once where the operators round each product.
    """
    done = step(x, state)
    if done is None:
        return step
    dtypes = [h.dtype for h in tree_leaves(done)]
    weights = [p.dtype for p in module.parameters() if p.is_floating_point()]
    smallest = min(weights, key=lambda dtype: dtype.itemsize, default=x.dtype)

    def exact(x: Tensor, state: State) -> tuple[Tensor, State] | None:
        if x.dtype.itemsize > smallest.itemsize:
            raise RefusedError("its input would be rounded")
        try:
            with torch.autocast("cpu", enabled=False):
                leaves, form = tree_flatten(step(x.to(smallest), state))
        except (RuntimeError, TypeError, ValueError) as error:  # as products of two dtypes are
            raise RefusedError("it needs autocast") from error
        leaves = [h.to(dtype) for h, dtype in zip(leaves, dtypes, strict=True)]
        y, state = tree_unflatten(leaves, form)
        return y, state

    return exact


def marks_rows(reset: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is a mask of the rows of a single step, of the shape of the input's axes."""
    return (
        type(reset) is Tensor
        and reset.dtype is torch.bool
        and reset.layout is torch.strided
        and reset.is_cpu
        and reset.shape == shape
    )


def cleared(state: Any, reset: Tensor, axis: int) -> Any:
    """A state with zeros in the rows that begin anew; what is no state stays what it is.

    Args:
        state: a tree of tensors.
        reset: a mask that `marks_rows`.
        axis: of the rows in every tensor.
    """

    def clear(h: Any) -> Any:
        if type(h) is not Tensor or h.ndim <= axis or h.shape[axis] != reset.numel():
            raise _MisfitError
        return h.masked_fill(reset.reshape(-1, *[1] * (h.ndim - axis - 1)), 0)

    try:
        return tree_map(clear, state)
    except _MisfitError:
        return state


class _MisfitError(Exception):
    """A state is none of this batch."""


def explain_step(module: nn.Module, step: Step, x: Tensor, state: State) -> str:
    """The code that computes the steps of a module, in words; runs one step."""
    with torch.no_grad():
        step(x, state)
    reason, module_kinds = "", _like(module, x)
    if module_kinds:
        # of tokens no kind has the dtype: what is recorded begins behind their embedding
        kind = module_kinds.get(_key(module, x), list(module_kinds.values())[-1])
        if kind.program is not None:
            return f"one native call of {kind.program.count} recorded instructions"
        reason = f": {kind.reason or 'somebody watches'}"
    elif any([len(x) >= rows for rows in _slower.get(module, {}).values()]):
        reason = f": {SLOWER}"
    kinds = [kind for part in module.modules() for kind in _like(part, x).values()]
    counts = [kind.program.count for kind in kinds if kind.program is not None]
    calls = f" around {len(counts)} native calls of {sum(counts)} recorded instructions"
    return f"PyTorch's operators{calls if counts else ''}{reason}"


def _like(module: nn.Module, x: Tensor) -> dict[tuple[Any, ...], Kind]:
    """The recorded kinds of a module's steps with the same number of sequences, of any dtype."""
    rows, _, training, _ = _key(module, x)
    kinds = _kinds.get(module, Replays())
    return {key: kind for key, kind in kinds.items() if key[::2] == (rows, training)}

"""One graph for every size: the same calls in eager mode, exported, and compiled."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_map_only,
)

from linrnn.testing._compiler_errors import compiler_error
from linrnn.testing._mixer_runs import to_double
from linrnn.testing._tolerance import BrokenPropertyError, check_agrees, check_true

Call = dict[str, Any]
"""Arguments by name: tensors and trees of them."""

_ROUNDINGS = 2**9  # a recurrence cut elsewhere adds in another order


def check_dynamic(
    what: str,
    function: Callable[..., Any],
    calls: Sequence[Call],
    compiler: str = "eager",
    *,
    export: bool = True,
    compiled: bool = True,
) -> None:
    """Export and compile ``function`` at the first call: the graph must serve the others as well.

    Args:
        what: names the function in messages.
        function: a module or a function of tensors; returns a tree of tensors.
        calls: with the same arguments at different sizes, none of them 0 or 1. The axes that
            differ are the ones that must stay open.
        compiler: a backend of `torch.compile`, told that sizes are dynamic. Results are compared,
            and the gradients of the first argument and of the parameters.
        export: whether `torch.export` is tried.
        compiled: whether `torch.compile` is tried.

    Raises:
        BrokenPropertyError: the graph is bound to a size, is made again for another, or gives other
            numbers than eager mode.
    """
    try:
        with torch.enable_grad():  # a graph that fails may leave it switched off
            if export:
                _check_exported(what, function, calls)
            if compiled:
                _check_compiled(what, function, calls, compiler)
    except BrokenPropertyError:
        raise
    except Exception as error:
        raise BrokenPropertyError(f"{what}: {compiler_error(error)}") from error


def _check_exported(what: str, function: Callable[..., Any], calls: Sequence[Call]) -> None:
    if not isinstance(function, nn.Module):  # which is all that can be exported
        function, calls = _Calling(function), [{"arguments": call} for call in calls]
    calls = [tree_map(_detached, call) for call in calls]
    axes = tree_map(_open_axes, *calls)
    run = torch.export.export(function, (), calls[0], dynamic_shapes=axes).module()
    for call in calls:
        _same(f"{what}, exported, {_sizes(call)}", run(**call), function(**call))


def _check_compiled(
    what: str, function: Callable[..., Any], calls: Sequence[Call], compiler: str
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend(compiler)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=graphs)
    frame_counts = []
    for call in calls:
        case = f"{what}, compiled, {_sizes(call)}"
        expected = _evaluate(function, function, call)
        actual = _evaluate(compiled, function, call)
        _same(case, actual, expected, _in_double(function, call))
        frame_counts.append(graphs.frame_count)
        # the compiler may try a graph twice before it takes one
        check_true(f"{case}: compiled once more", frame_counts[0] == frame_counts[-1] > 0)


class _Calling(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, arguments: Call) -> Any:
        return self.function(**arguments)


def _open_axes(*versions: Any) -> Any:
    if not isinstance(versions[0], Tensor):
        return None
    sizes = zip(*(x.shape for x in versions), strict=True)
    return {
        axis: torch.export.Dim.DYNAMIC for axis, lengths in enumerate(sizes) if len({*lengths}) > 1
    }


def _evaluate(run: Callable[..., Any], function: Callable[..., Any], call: Call) -> Any:
    """Results, and gradients of everything that has one."""
    call = tree_map(_leaf, call)
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    sources = [x for x in [*tree_leaves(call), *parameters] if isinstance(x, Tensor)]
    sources = [x for x in sources if x.requires_grad]
    outputs = run(**call)
    targets = [y for y in tree_leaves(outputs) if y.requires_grad]
    if not targets:
        return outputs, []
    weights = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in targets]
    # a compiled graph says zero of what eager mode has no gradient of
    grads = torch.autograd.grad(targets, sources, weights, materialize_grads=True)
    return outputs, list(grads)


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _in_double(function: Callable[..., Any], call: Call) -> Callable[[], Any] | None:
    """The leaves of `_evaluate` in float64, when called; None where that is no module's matter."""
    module = getattr(function, "__self__", function)
    if not isinstance(module, nn.Module):
        return None

    def evaluate() -> Any:
        double = copy.deepcopy(module).double()
        run = double if module is function else getattr(double, function.__name__)
        return tree_leaves(_evaluate(run, run, tree_map_only(Tensor, to_double, call)))

    return evaluate


def _same(what: str, got: Any, expected: Any, double: Callable[[], Any] | None = None) -> None:
    """Every entry agrees; ``double`` makes the leaves of what is expected in float64."""
    check_true(f"{what}: another tree", tree_flatten(got)[1] == tree_flatten(expected)[1])
    truth = None if double is None else functools.cache(double)
    entries = zip(tree_flatten_with_path(got)[0], tree_leaves(expected), strict=True)
    for i, ((path, x), eager) in enumerate(entries):
        check_agrees(f"{what}: {keystr(path)}", x, eager, truth, i, roundings=_ROUNDINGS)


def _sizes(call: Call) -> str:
    return str(tuple(next(x for x in tree_leaves(call) if isinstance(x, Tensor)).shape))

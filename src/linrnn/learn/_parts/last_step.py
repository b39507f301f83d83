"""The gradient of a loss by the state after a step, which a layer hands on without history."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node
from torch.utils.hooks import RemovableHandle

from linrnn.learn._exact.owners import tensors
from linrnn.typing import State


class LastStep:
    """The gradient of a loss by the state after a step, noted as a backward pass comes by.

    The state that a layer returns is mostly a view or a copy of what its answer was made of. So
    its history is followed up as long as it only lays the same numbers out anew.

    Attributes:
        carried: by the name of a parameter, what the step passed on of its trace.
        across: (batch, colours, size), derivatives of the step by the state before.
    """

    def __init__(self) -> None:
        self.carried: dict[str, Tensor] = {}
        self.across = torch.empty(0)
        self._credit: Tensor | None = None
        self._noting = False
        self._hook: RemovableHandle | None = None

    def watch(self, y: Tensor, next_state: State) -> None:
        """Note what the credit of an answer is to the state after the step.

        Args:
            y: output of the layer.
            next_state: its state, with its history.
        """
        if not y.requires_grad:
            return
        parts = tensors(next_state)
        origins = [_origin(h) if h.grad_fn is not None else None for h in parts]

        def note(g: Tensor) -> None:
            if self._noting:  # it asks the same history
                return
            self._noting = True
            try:
                credit = _credited(y, g, parts, origins)
            finally:
                self._noting = False
            self._credit = None if credit is None else _flat(credit)

        self._hook = y.register_hook(note)

    def take(self) -> Tensor | None:
        """(batch, size), as of `real_parts`; None: nothing was read of the state after the step."""
        credit, self._credit = self._credit, None
        if self._hook is not None:  # the hook and the graph hold each other: no collector sees that
            self._hook.remove()
        return credit


class _Origin:
    """Where in its history the numbers of a tensor are first there, in whatever order.

    Attributes:
        edge: there.
        order: of each number there, its place in the tensor.
    """

    def __init__(self, edge: GradientEdge, order: Tensor) -> None:
        self.edge, self.order = edge, order

    def laid_out(self, g: Tensor, like: Tensor) -> Tensor:
        """A gradient by the numbers there as one by the tensor."""
        grad = torch.empty_like(like).flatten()
        grad[self.order] = g.flatten().to(like.dtype)
        return grad.view_as(like)


def _origin(h: Tensor) -> _Origin:
    assert h.grad_fn is not None
    places = torch.arange(h.numel(), device=h.device)
    origin = _Origin(GradientEdge(h.grad_fn, h.output_nr), places)
    while True:
        above = [(node, i) for node, i in origin.edge.node.next_functions if node is not None]
        if len(above) != 1 or not above[0][0].next_functions:  # a leaf is no step's own
            return origin
        edge = GradientEdge(*above[0])
        (g,) = torch.autograd.grad(h, edge, places.view_as(h).to(h.dtype), retain_graph=True)
        order = (g.real if g.is_complex() else g).flatten().long()
        if not torch.equal(order.sort().values, places):  # other numbers, or not all
            return origin
        origin = _Origin(edge, order)


def _credited(
    y: Tensor, g: Tensor, parts: Sequence[Tensor], origins: Sequence[_Origin | None]
) -> list[Tensor] | None:
    """Pass a gradient of the answer to each part of the state that it reaches through no other."""
    with_origin = [i for i, origin in enumerate(origins) if origin is not None]
    edges = [origin.edge for origin in origins if origin is not None]
    totals = dict(zip(with_origin, _pulled([y], edges, [g]), strict=True))
    if all(v is None for v in totals.values()):
        return None
    credit = [torch.zeros_like(h) for h in parts]
    reach = {i: _history(origin.edge.node) for i, origin in enumerate(origins) if origin}
    ahead: list[int] = []
    for i in sorted(with_origin, key=lambda i: sum(o.edge.node in reach[i] for o in origins if o))[
        ::-1
    ]:
        origin, grad = origins[i], totals[i]
        assert origin is not None
        if grad is None:
            continue
        through = [j for j in ahead if origin.edge.node in reach[j]]
        if through:  # a part of which another of the same step is made
            pairs = [parts[j] for j in through], [credit[j] for j in through]
            (passed,) = _pulled(pairs[0], [origin.edge], pairs[1])
            grad = grad if passed is None else grad - passed
        credit[i] = origin.laid_out(grad, parts[i])
        ahead.append(i)
    return credit


def _pulled(
    outputs: Sequence[Tensor], edges: Sequence[GradientEdge], g: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    return torch.autograd.grad(outputs, edges, g, retain_graph=True, allow_unused=True)


def _history(node: Node) -> set[Node]:
    """Collect all nodes that a node was computed from."""
    nodes: set[Node] = set()
    waiting = [node]
    while waiting:
        above = {f for f, _ in waiting.pop().next_functions if f is not None} - nodes
        nodes |= above
        waiting += above
    return nodes


def _flat(credit: Sequence[Tensor]) -> Tensor:
    parts: list[Tensor] = []
    for g in credit:
        parts += [g.real.flatten(1), g.imag.flatten(1)] if g.is_complex() else [g.flatten(1)]
    return torch.cat(parts, 1)

"""Shared by the learners that learn from each step by itself.

A layer answers by `Mixer.step`. What its gradients and traces need of the step is found where the
credit of the answer comes back: derivatives of the step, of which one recorded program is made
where that can be done (`linrnn.engine.replay.program`), and one pass through the traces of each
linear map, which gives the gradient of its weight as well.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from linrnn.compute.modes import eager
from linrnn.compute.precision import without_autocast
from linrnn.engine.replay.program import Kind, kind_of, operations, ready
from linrnn.learn._exact.linears import by_step, weights
from linrnn.learn._exact.owners import tensors
from linrnn.learn._exact.step_derivatives import Named, Stepped, derivatives
from linrnn.learn._exact.traces import Traces, linear_name
from linrnn.learn._parts.again import Mode, generators
from linrnn.mixers import Mixer
from linrnn.ops.linear.traces import learned
from linrnn.state import leaves
from linrnn.typing import State

_NATIVE = (torch.float32, torch.float64)
_ROWS = 64
"""More sequences at once are better served by the matrix products of PyTorch."""


class Call:
    """A step of a layer, of which more is found when the credit of its answer is known.

    Args:
        layer, layout: whose step it is.
        traces: before it.
        x: (batch, d_model).
        state: before it, without a history.
        dt: (batch,), or None.
    """

    def __init__(
        self,
        layer: Mixer,
        layout: Stepped,
        traces: Traces,
        x: Tensor,
        state: State,
        dt: Tensor | None,
    ) -> None:
        self.layer, self.known, self.traces, self.x, self.state = layer, layout, traces, x, state
        self.times: dict[str, Any] = {} if dt is None else {"dt": dt}
        self.mode, self.random = Mode(x.device), generators(x.device) if layer.training else None
        with torch.no_grad():
            self.y, self.after = layer.step(x, state, **self.times)
        self.pending = True

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are to learn."""
        return {n: p for n, p in self.layer.named_parameters() if p.requires_grad}

    def finish(self) -> Traces:
        """The traces after the step."""
        if self.pending:
            self.learn({}, ())
        return self.traces

    def learn(self, credit: Mapping[str, Tensor], wrt: Sequence[str]) -> Named:
        """Let the traces go on, and find gradients.

        Args:
            credit: of the answer, ``y``, and of the tensors of the state after it, by number.
            wrt: ``x`` and numbers of the tensors of the state before that get gradients.

        Returns:
            The gradients, those of parameters by their names.
        """
        results = self._derivatives(credit, wrt)
        grads = {n.removeprefix("grad "): g for n, g in results.items() if n.startswith("grad ")}
        traces = {n.removeprefix("trace "): g for n, g in results.items() if n.startswith("trace ")}
        linears, index = self.known.linears, self.known.index
        totals: dict[int, Tensor] = {}
        with without_autocast(self.x.device):
            for place in linears.index:
                name = linear_name(place)
                slope, x, gain = (results[f"{what} {place}"] for what in ("slope", "input", "gain"))
                traces[name], totals[place] = learned(
                    self.traces.get(name), results["keep"], index[name], slope, x,
                    results["credit"], gain, self.known.pairs.get(name),
                )  # fmt: skip
        grads |= {n: results[n] for n in wrt if n in results}
        if credit:
            self._give(totals, grads)
        self.traces, self.pending = traces, False
        return grads

    def _give(self, totals: Mapping[int, Tensor], grads: Named) -> None:
        """Add the gradients of the weights of linear maps to those of what they are made of."""
        linears, parameters = self.known.linears, self.parameters

        def add(name: str, g: Tensor) -> None:
            p = parameters[name]
            g = g.to(p.dtype).view(p.shape)
            grads[name] = grads[name] + g if name in grads else g

        unnamed = [place for place in totals if place not in linears.names]
        for place, name in linears.names.items():
            if name in parameters:
                add(name, totals[place])
        map_weights = weights(self.layer, linears, by_step) if unnamed else {}
        differentiable = [place for place in unnamed if map_weights[place].requires_grad]
        if differentiable:
            pulled = torch.autograd.grad(
                [map_weights[i] for i in differentiable],
                list(parameters.values()),
                [totals[i].to(map_weights[i].dtype) for i in differentiable],
                allow_unused=True,
            )
            for name, g in zip(parameters, pulled, strict=True):
                if g is not None:
                    add(name, g)

    def _derivatives(self, credit: Mapping[str, Tensor], wrt: Sequence[str]) -> Named:
        arguments = {"x": self.x, **self.times}
        arguments |= {f"state {i}": h for i, h in enumerate(leaves(self.state))}
        arguments |= {f"credit {n}": g for n, g in credit.items()}
        arguments |= {f"trace {n}": self._trace(n) for n in self.known.named}
        parameters = tuple(self.parameters)
        function = partial(
            derivatives, self.layer, self.known, self.state, parameters=parameters, wrt=wrt
        )
        with torch.no_grad():
            if self._recordable(arguments):
                results = self._recorded(function, arguments, (parameters, tuple(wrt)))
                if results is not None:
                    return results
            with self.mode.again(self.random):
                return function(arguments)

    def _trace(self, name: str) -> Tensor:
        if name in self.traces:
            return self.traces[name]
        p, parts = self.layer.get_parameter(name), len(self.known.owners.parts)
        h = tensors(self.after)[0]
        return h.new_zeros(parts, len(h), *p.shape, dtype=h.dtype.to_real())

    def _recordable(self, arguments: Named) -> bool:
        same = all(p.dtype in _NATIVE and p.is_cpu for p in self.layer.parameters())
        few = self.x.dtype in _NATIVE and ready(self.x, _ROWS) and not self.mode.autocast
        few = few and not torch.is_autocast_enabled("cpu")
        return same and few and eager(*arguments.values()) and bool(operations())

    def _recorded(
        self, function: Callable[[Named], Named], arguments: Named, what: tuple[Any, ...]
    ) -> Named | None:
        key = (*what, tuple(arguments), len(self.x), self.x.dtype, self.layer.training)
        kind = kind_of(self.known.kinds, key, self.layer)
        if kind is None:
            return None
        tensors = list(arguments.values())
        if kind.program is None:
            self._record(kind, function, arguments)
        results = None if kind.program is None else kind.program(tensors)
        return None if results is None else dict(zip(kind.form, results, strict=True))

    def _record(self, kind: Kind, function: Callable[[Named], Named], arguments: Named) -> None:
        def run(copies: list[Tensor]) -> tuple[list[Tensor], None]:
            results = function(dict(zip(arguments, copies, strict=True)))
            kind.form = list(results)
            return list(results.values()), None

        # nothing is kept of weights, which learn
        constants, _ = self.known.constants, self.known.in_order  # which looks at numbers
        kind.record(self.layer, run, list(arguments.values()), self.x.dtype, 0, constants)


class Learned(torch.autograd.Function):
    """The output of a call, with gradients computed from the traces."""

    @staticmethod
    def forward(ctx: Any, call: Call, names: tuple[str, ...], *inputs: Tensor) -> Any:
        ctx.call, ctx.names = call, names
        ctx.set_materialize_grads(False)
        # separate tensors, for some layers return their state as output
        return tuple(z.detach() for z in (call.y, *tensors(call.after)))

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *state_grads: Tensor | None) -> Any:
        numbers = map(str, range(len(state_grads)))
        by_name = {"y": dy, **dict(zip(numbers, state_grads, strict=True))}
        credit = {n: g for n, g in by_name.items() if g is not None}
        needs_grad = dict(zip(ctx.names, ctx.needs_input_grad[2:], strict=True))
        inputs = len(tensors(ctx.call.state)) + 1
        wrt = [n for n in ctx.names[:inputs] if needs_grad[n]]
        grads = ctx.call.learn(credit, wrt)
        return (None, None, *(grads.get(n) if needs_grad[n] else None for n in ctx.names))

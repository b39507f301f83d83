"""A learnable initial state, from which every sequence begins, one after a reset too."""

from typing import Any

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import cell_scan
from linrnn.state_spec import Part, Spec


class LearnedStart:
    """The initial states that a mixer with ``learn_initial`` learns; it is `Mixer.learned`.

    For a part ``h`` of the state the mixer has a parameter ``h0``; for a complex one ``h0_re`` and
    ``h0_im``. They are zero at first. A state holds 0 for them, see `linrnn.state_spec.opened`.

    Args:
        parts: of the state, in the order of the cell; of a state that is one tensor, its name.
        pairs: these parts are complex.

    Example:
        >>> LearnedStart("h", pairs=True).names
        ['h0_re', 'h0_im']
    """

    def __init__(self, *parts: str, pairs: bool = False) -> None:
        self.parts, self.ends = parts, ("0_re", "0_im") if pairs else ("0",)
        self.names = [part + end for part in parts for end in self.ends]

    def add(self, layer: Any, learn_initial: bool, size: int, **to: Any) -> None:
        """Store the option, and add the parameters; `reset` fills them."""
        layer.learn_initial = learn_initial
        empty = empty_parameters(to["device"], to["dtype"])
        for name in self.names if learn_initial else ():
            layer.register_parameter(name, empty(size))

    def reset(self, layer: Any) -> None:
        """Zeros, as without the option."""
        for name in self.names if layer.learn_initial else ():
            nn.init.zeros_(getattr(layer, name))

    def of(self, layer: Any, part: str) -> Tensor:
        """The learned state (channels,) of a part, at least float32."""
        re, *im = (wide(getattr(layer, part + end)) for end in self.ends)
        return torch.complex(re, *im) if im else re

    def put(self, layer: Any, spec: Spec) -> Spec:
        """The specification with learned initial values of its parts."""
        if not layer.learn_initial:
            return spec
        if isinstance(spec, Part):
            return spec._replace(start=self.of(layer, self.parts[0]))
        assert isinstance(spec, dict)
        learned = {h: self.of(layer, h) for h in self.parts if h in spec}
        return {h: part._replace(start=learned.get(h, part.start)) for h, part in spec.items()}

    def scan(
        self,
        layer: Any,
        cell: Cell,
        before: dict[str, Tensor],
        reset: Tensor | None,
        **arguments: Any,
    ) -> tuple[Any, dict[str, Tensor]]:
        """`cell_scan` that begins from what was learned after a reset.

        Args:
            layer: whose start it is.
            cell: the step.
            before: parts of the state, in the order of the cell's.
            reset: boolean (batch, time), or None.
            arguments: the cell's others.

        Returns:
            Its output, and the parts after the last step.
        """
        states = tuple(before.values())
        if reset is not None and layer.learn_initial:
            for name, part in zip(cell.states, before, strict=True):
                arguments[f"{name}_0"] = self.of(layer, part)
            states += (torch.zeros_like(states[0].real),)  # not fresh: see `opened`
            cell = cell.with_start()
        y, last = cell_scan(cell, **arguments, state=states, reset=reset)
        return y, dict(zip(before, last if isinstance(last, tuple) else (last,), strict=False))

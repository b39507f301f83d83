"""A learnable initial state, from which every sequence begins, one after a reset too."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from linrnn.cells import Cell
from linrnn.compute.precision import wide
from linrnn.mixers._contract.base import Mixer
from linrnn.nn.parameters import empty_parameters
from linrnn.ops import cell_scan
from linrnn.state_spec import Part, Spec


class LearnedStart(Mixer):
    """A mixer with the option ``learn_initial``; its constructor calls `_add_start`.

    Of a part ``h`` of the state the parameter is ``h0``; of a complex one ``h0_re`` and ``h0_im``.
    They are zero at first. A state holds 0 for them, see `linrnn.state_spec.opened`.
    """

    learned: ClassVar[tuple[str, ...]] = ("h",)
    """Parts of the state that are learned, in the order of the cell; of a state that is one
    tensor, its name."""

    complex_start: ClassVar[bool] = False
    """Whether these parts are complex."""

    def _add_start(self, learn_initial: bool, size: int, **to: Any) -> None:
        """Store the option, and add the parameters; `_reset_start` fills them."""
        self.learn_initial = learn_initial
        empty = empty_parameters(to["device"], to["dtype"])
        for name in self._start_names() if learn_initial else ():
            self.register_parameter(name, empty(size))

    def _start_names(self) -> list[str]:
        ends = ("0_re", "0_im") if self.complex_start else ("0",)
        return [part + end for part in self.learned for end in ends]

    def _reset_start(self) -> None:
        """Zeros, as without the option."""
        if self.learn_initial:
            for name in self._start_names():
                nn.init.zeros_(getattr(self, name))

    def start_of(self, part: str) -> Tensor:
        """The learned state (channels,) of a part, at least float32."""
        if not self.complex_start:
            return wide(getattr(self, f"{part}0"))
        return torch.complex(*(wide(getattr(self, f"{part}0_{end}")) for end in ("re", "im")))

    def _starts(self) -> dict[str, Tensor]:
        """What was learned of each part of the state; of one that is a tensor, by `learned`."""
        parts = self.state_spec()
        return {h: self.start_of(h) for h in self.learned if isinstance(parts, Part) or h in parts}

    def _opened(self, state: Any, spec: Spec) -> Any:
        """See `Mixer._opened`: 0 is what was learned."""
        return super()._opened(state, self._learned(spec))

    def _closed(self, state: Any, spec: Spec) -> Any:
        """See `Mixer._closed`."""
        return super()._closed(state, self._learned(spec))

    def _learned(self, spec: Spec) -> Spec:
        """The specification with what was learned in the place of what each part starts from."""
        if not self.learn_initial:
            return spec
        starts = self._starts()
        if isinstance(spec, Part):
            return spec._replace(start=starts[self.learned[0]])
        parts = cast(dict[str, Part], spec)
        return {h: p._replace(start=starts.get(h, p.start)) for h, p in parts.items()}

    def _scan(
        self, cell: Cell, before: dict[str, Tensor], reset: Tensor | None, **arguments: Tensor
    ) -> tuple[Any, dict[str, Tensor]]:
        """`cell_scan` that begins from what was learned after a reset.

        Args:
            cell: the step.
            before: parts of the state, in the order of the cell's.
            reset: boolean (batch, time), or None.
            arguments: the cell's others.

        Returns:
            Its output, and the parts after the last step.
        """
        states = tuple(before.values())
        if reset is not None and self.learn_initial:
            names = [f"{h}_0" for h in cell.states]
            arguments |= zip(names, map(self.start_of, before), strict=True)
            states += (torch.zeros_like(states[0].real),)  # not fresh: see `_opened`
            cell = cell.with_start()
        given: dict[str, Any] = dict(arguments)
        y, last = cell_scan(cell, **given, state=states, reset=reset)
        return y, dict(zip(before, last if isinstance(last, tuple) else (last,), strict=False))

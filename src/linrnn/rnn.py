"""RNN: any mixer behind the interface of `torch.nn.GRU`."""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from linrnn._packing import EndTogether, Layout, Rows, Shrinking, check_packed, packed_alike
from linrnn._pattern import Choice, MixerLike, choose, label, labels, pattern
from linrnn.errors import ArgumentError, DTypeError, ShapeError, check_positive_int, check_shape
from linrnn.mixers._base import Mixer, check_timed
from linrnn.mixers._bidirectional import check_lengths
from linrnn.nn import GLU
from linrnn.ops._arguments import check_numbers
from linrnn.state import leaves, map_state
from linrnn.state_spec import check_state, with_axes
from linrnn.typing import State


class RNN(nn.Module):
    r"""A stack of mixers with the arguments, shapes and return values of `torch.nn.GRU`.

    Equation of a layer, in each direction:

        u = W_in x + b_in               where the width of x is not hidden_size, else u = x
        v, h = mixer(u)                 d_model = hidden_size
        v = GLU(GELU(v))                where glu
        y = W_out v + b_out             where proj_size, else y = v

    The directions' outputs are concatenated; dropout stands between layers. There are no norms
    and no skips: for a deep model take `linrnn.SequenceModel`. With ``mixer="gru"`` and equal
    sizes a layer is `torch.nn.GRU`, number for number.

    The state ``h_n`` is what the mixers return, stacked: a tensor, or a tree of tensors where
    the mixer's state is one, each ``(num_layers * num_directions, batch, ...)``. It is
    ``(..., batch, hidden_size)`` as that of `torch.nn.GRU` where a mixer's state is one real
    vector of that size; that of the LRU is complex, that of the LSTM a dict of h and c. In every
    case it can be passed back as ``hx``. Where a pattern names different mixers, whose states
    cannot be stacked, it is the list of them, each ``(batch, ...)``, in the same order. For
    classification use `last_output`: it is what ``h_n[-1]`` is used for, and means the same with
    every mixer.

    Args:
        mixer: a name, an import path, a class, an instance or a pattern, as for
            `linrnn.SequenceModel`.
        input_size, hidden_size: channels in, and channels of every layer.
        num_layers: layers, each reading the output of the one before.
        bias: of the maps above, and of the mixer where it has that option.
        batch_first: input and output are (batch, time, channels) rather than (time, batch,
            channels). The state is not affected.
        dropout: probability, on the output of every layer but the last.
        bidirectional: a second mixer in every layer reads backward.
        proj_size: channels out of every layer, as in `torch.nn.LSTM`; 0 leaves hidden_size. The
            projection stands after the recurrence and not in it, so ``h_n`` keeps its size.
        mixer_options: keyword arguments of the mixers besides ``d_model``, as for
            `linrnn.SequenceModel`.
        glu: put a gate after each mixer. Default: where the mixer is linear, as the LRU and S4D
            are; without it the whole stack would be one linear map.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: an unknown mixer, or option of it.
        ArgumentError: a size or probability outside its range.
        ShapeError, DTypeError, DeviceError: an input or ``hx`` that does not fit.

    Example:
        >>> rnn = RNN("lru", 3, 16, num_layers=2, batch_first=True)
        >>> output, h_n = rnn(torch.randn(5, 100, 3))
        >>> output.shape, h_n.shape
        (torch.Size([5, 100, 16]), torch.Size([2, 5, 16]))
    """

    def __init__(
        self,
        mixer: MixerLike,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        mixer_options: Mapping[str, Any] | None = None,
        glu: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer if isinstance(mixer, str) else ",".join(map(label, pattern(mixer)))
        self.input_size, self.hidden_size = input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = dropout, bidirectional, proj_size
        check_positive_int(
            "RNN", input_size=input_size, hidden_size=hidden_size, num_layers=num_layers
        )
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"RNN: dropout must be in [0, 1], got {dropout}.")
        if not 0 <= proj_size < hidden_size:
            raise ArgumentError(
                f"RNN: proj_size must be in 0..{hidden_size - 1}, below hidden_size, "
                f"got {proj_size}."
            )
        if dropout and num_layers == 1:
            warnings.warn(
                f"RNN: dropout stands between layers, so dropout={dropout} does nothing with "
                "num_layers=1.",
                stacklevel=2,
            )
        width = (2 if bidirectional else 1) * (proj_size or hidden_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        directions = 2 if bidirectional else 1
        choices = choose("RNN", mixer, mixer_options, num_layers)
        self._mixed = len(labels(mixer)) > 1  # their states are a list, and not stacked
        self._axis = 0 if self._mixed else 1  # that of the batch in h_n
        self.cells = nn.ModuleList(  # in the order of h_n
            _Cell(
                _biased(choice, bias, directions).build(hidden_size, {}, **factory),
                input_size if layer == 0 else width,
                proj_size,
                bias=bias,
                glu=glu,
                **factory,
            )
            for layer, choice in enumerate(choices)
            for _ in range(directions)
        )

    def extra_repr(self) -> str:
        """Arguments that are not the defaults, for ``print(rnn)``."""
        words = [repr(self.mixer), str(self.input_size), str(self.hidden_size)]
        for name, parameter in inspect.signature(RNN.__init__).parameters.items():
            value = getattr(self, name, None)
            if parameter.default is not inspect.Parameter.empty and value is not None:
                words += [f"{name}={value}"] if value != parameter.default else []
        return ", ".join(words)

    def flatten_parameters(self) -> None:
        """Do nothing; `torch.nn.GRU` has it, and scripts call it."""

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        *,
        dt: Tensor | PackedSequence | None = None,
    ) -> tuple[Tensor | PackedSequence, State]:
        """Read sequences.

        Args:
            input: (time, batch, input_size), (batch, time, input_size) with ``batch_first``,
                (time, input_size) without a batch, or a `PackedSequence`.
            hx: the state to start from, as ``h_n``; None starts anew.
            dt: the time since the step before of every step, see `Mixer.forward`: with the axes of
                the input but channels, and packed as the input is. It is for the layers whose
                mixers are `timed`. What reads backward is given the time until the next step.

        Returns:
            ``(output, h_n)``: the output of the last layer in the form of the input, with
            ``num_directions * (proj_size or hidden_size)`` channels, and the state of every
            layer and direction after the last step it read. Without a batch ``h_n`` has no such
            axis either.
        """
        check_timed("RNN", dt, self._mixers())
        if isinstance(input, PackedSequence):
            return self._packed(input, hx, dt)
        if not isinstance(input, Tensor) or input.ndim != 2:
            axes = ("batch", "time") if self.batch_first else ("time", "batch")
            self._check_input(input, *axes)
            x = input if self.batch_first else input.transpose(0, 1)
            times = self._check_times(dt, input, *axes)
            if times is not None and not self.batch_first:
                times = times.t()
            y, h_n = self._read(x, hx, Rows(), times)
            return (y if self.batch_first else y.transpose(0, 1)), h_n
        self._check_input(input, "time")
        if hx is not None and not self._mixed:
            hx = self._check_state(hx, input)
        if hx is not None:
            # what is no tensor, or of another shape, `_read` finds
            hx = map_state(lambda h: _unsqueeze(h, self._axis), hx)
        times = self._check_times(dt, input, "time")
        y, h_n = self._read(input[None], hx, Rows(), None if times is None else times[None])
        return y[0], map_state(lambda h: h.squeeze(self._axis), h_n)

    def last_output(self, output: Tensor | PackedSequence, lengths: Tensor | None = None) -> Tensor:
        """`linrnn.last_output` of what this module returned."""
        return last_output(
            output, lengths, batch_first=self.batch_first, bidirectional=self.bidirectional
        )

    def _packed(
        self, packed: PackedSequence, hx: State | None, dt: object
    ) -> tuple[PackedSequence, State]:
        data, sizes, order, back = packed
        check_packed(packed)
        self._check_input(data, "steps")
        batch, time = int(sizes[0]), len(sizes)
        if hx is not None:
            hx = self._check_state(hx, data, batch=batch)
            if order is not None:
                hx = map_state(lambda h: h.index_select(self._axis, order), hx)
        present = torch.arange(batch) < sizes[:, None]  # (T, B); rows from long to short
        t, row = present.nonzero(as_tuple=True)
        lengths = present.sum(0)
        layout: Layout = EndTogether(lengths, time, data.device)
        if hx is not None or self._walks() or lengths[-1] == time:
            self._check_constant_size(lengths)
            layout = Shrinking(lengths)
        else:
            t = t + time - lengths[row]
        row, t = row.to(data.device), t.to(data.device)
        x = data.new_zeros(batch, time, self.input_size).index_put((row, t), data)
        times = None
        if dt is not None:
            given = self._check_times(packed_alike("RNN", "dt", dt, packed), data, "steps")
            assert given is not None
            times = given.new_ones(batch, time).index_put((row, t), given)
        y, h_n = self._read(x, hx, layout, times)
        if back is not None:
            h_n = map_state(lambda h: h.index_select(self._axis, back), h_n)
        return PackedSequence(y[row, t], sizes, order, back), h_n

    def _read(
        self, x: Tensor, hx: State | None, layout: Layout, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        """Every layer over (batch, time, input_size)."""
        if hx is not None:
            hx = self._check_state(hx, x, batch=x.shape[0])
        directions = 2 if self.bidirectional else 1
        states: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for _ in range(directions):
                i = len(states)
                start = None if hx is None else self._of_cell(hx, i)
                cell, backward = cast(_Cell, self.cells[i]), i % directions == 1
                times = dt if cell.mixer.timed else None
                if times is not None and backward:
                    times = layout.reverse_times(times)
                y, state = cell(layout.reverse(x) if backward else x, start, layout, times)
                outputs.append(layout.reverse(y) if backward else y)
                states.append(state)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, self._together(states)

    def _together(self, states: list[State]) -> State:
        """``h_n`` of the states of all cells."""
        if self._mixed:
            return states
        return cast(State, tree_map(lambda *h: torch.stack(h), *states))

    def _of_cell(self, hx: State, i: int) -> State:
        """The state of one cell: the inverse of `_together`."""
        return cast(list[State], hx)[i] if self._mixed else map_state(lambda h: h[i], hx)

    def _check_input(self, x: Tensor, *axes: str) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise DTypeError(f"RNN: input must be a floating-point tensor, got {kind}.")
        if x.ndim != len(axes) + 1 or x.shape[-1] != self.input_size:
            shape = f"({', '.join(axes)}, input_size={self.input_size})"
            raise ShapeError(f"RNN: input must have shape {shape}, got {tuple(x.shape)}.")
        want = next(self.parameters()).dtype
        if x.dtype != want and not torch.is_autocast_enabled(x.device.type):
            raise DTypeError(
                f"RNN: input must be {want} like the parameters, got {x.dtype}. "
                f"Convert it with input.to({want})."
            )

    def _check_state(self, hx: State, x: Tensor, **axes: int) -> Any:
        """``hx`` of every layer and direction, with the axes of a batch if there is one."""
        mixers = self._mixers()
        dtype = next(self.parameters()).dtype
        if self._mixed:
            specs = [mixer.state_spec() for mixer in mixers]
            return check_state("RNN", hx, specs, axes["batch"], x.device, dtype, name="hx")
        spec, layers = with_axes(mixers[0].state_spec(), **axes), len(mixers)
        return check_state("RNN", hx, spec, layers, x.device, dtype, name="hx", first="layers")

    def _check_times(self, dt: object, x: Tensor, *axes: str) -> Tensor | None:
        if dt is None:
            return None
        check_numbers("RNN", {"dt": dt}, real=True)
        assert isinstance(dt, Tensor)
        check_shape("RNN", "dt", dt.shape, dict(zip(axes, x.shape, strict=False)))
        return dt

    def _mixers(self) -> list[Mixer]:
        """In the order of ``h_n``."""
        return [cast(_Cell, cell).mixer for cell in self.cells]

    def _walks(self) -> bool:
        """Whether shrinking batches suit a mixer better than marks where sequences start."""
        mixers = self._mixers()
        return any(m.cost == "sequential" or "reset_and_packing" in m.declared for m in mixers)

    def _check_constant_size(self, lengths: Tensor) -> None:
        if lengths[0] == lengths[-1]:
            return
        states = [mixer.init_state(1) for mixer in self._mixers()]
        if any(0 in h.shape for h in leaves(states)):
            raise ArgumentError(
                f"RNN: hx must be None for packed sequences of several lengths, since the state "
                f"of {self.mixer!r} grows with each, got a state. Call it on each sequence alone."
            )


def last_output(
    output: Tensor | PackedSequence,
    lengths: Tensor | None = None,
    *,
    batch_first: bool = False,
    bidirectional: bool = False,
) -> Tensor:
    """What a recurrent layer says after reading each whole sequence: (batch, channels).

    That is the output at the last step of each sequence; with ``bidirectional``, its first half,
    and the second half at the first step, where the backward direction has read everything. For
    `torch.nn.GRU` it is ``h_n[-1]``, and ``torch.cat([h_n[-2], h_n[-1]], -1)`` in two directions.

    Args:
        output: of `RNN` or of a layer of torch.nn: a `PackedSequence`, a padded batch, or
            (time, channels).
        lengths: (batch,) steps of each sequence of a padded batch; None for all of them.
        batch_first: a padded batch is (batch, time, channels) and not (time, batch, channels).
        bidirectional: the second half of the channels was read backward.

    Returns:
        One row a sequence, in the original order of a packed batch; (channels,) without a batch.

    Raises:
        ArgumentError: a length below 1 or above the steps there are; ``lengths`` for an output
            that is packed or has no batch.
        ShapeError, DTypeError: ``output`` or ``lengths`` does not fit.

    Example:
        >>> output, h_n = torch.nn.GRU(3, 8)(torch.randn(20, 5, 3))
        >>> torch.equal(last_output(output), h_n[-1])
        True
    """
    if isinstance(output, PackedSequence) or output.ndim == 2:
        if lengths is not None:
            raise ArgumentError(
                "last_output: lengths must be None for an output that is packed or has no batch, "
                "got a tensor."
            )
        last, first = _ends(output)
    else:
        check_shape("last_output", "output", output.shape, dict.fromkeys(("a", "b", "channels")))
        y = output if batch_first else output.transpose(0, 1)
        if lengths is not None:
            check_lengths("last_output", lengths, y, least=1)
        elif y.shape[1] == 0:
            raise ShapeError(f"last_output: output must have a step, got {tuple(output.shape)}.")
        at = None if lengths is None else lengths.to(y.device) - 1
        last = y[:, -1] if at is None else y[torch.arange(y.shape[0], device=y.device), at]
        first = y[:, 0]
    half = last.shape[-1] // 2
    return torch.cat([last[..., :half], first[..., half:]], -1) if bidirectional else last


def _ends(output: Tensor | PackedSequence) -> tuple[Tensor, Tensor]:
    """The last and first step of what is packed or has no batch."""
    if isinstance(output, Tensor):
        return output[-1], output[0]
    data, sizes, _, back = output
    check_packed(output)
    batch = int(sizes[0])
    rows = torch.arange(batch)
    lengths = (rows < sizes[:, None]).sum(0)
    starts = F.pad(sizes.cumsum(0), (1, 0))  # where each step begins in the data
    last, first = data[(starts[lengths - 1] + rows).to(data.device)], data[:batch]
    return (last, first) if back is None else (last[back], first[back])


def _unsqueeze(h: object, axis: int) -> Any:
    return h.unsqueeze(axis) if isinstance(h, Tensor) and h.ndim >= axis else h


def _biased(choice: Choice, bias: bool, directions: int) -> Choice:
    """The choice of a layer with the layer's bias, of which there are so many cells."""
    alone = choice.alone and directions == 1
    if isinstance(choice.mixer, Mixer) or not choice.takes("bias"):
        return replace(choice, alone=alone)
    return replace(choice, alone=alone, options={"bias": bias, **choice.options})


class _Cell(nn.Module):
    """One layer in one direction: see `RNN`."""

    def __init__(
        self,
        mixer: Mixer,
        input_size: int,
        proj_size: int,
        *,
        bias: bool,
        glu: bool | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        width = mixer.d_model
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        linear = type(mixer).eigenvalues is not Mixer.eigenvalues
        self.in_proj: nn.Module = nn.Identity()
        self.out_proj: nn.Module = nn.Identity()
        if input_size != width:
            self.in_proj = nn.Linear(input_size, width, bias, **factory)
        self.mixer = mixer
        self.glu = GLU(width, **factory) if (linear if glu is None else glu) else None
        if proj_size:
            self.out_proj = nn.Linear(width, proj_size, bias, **factory)

    def forward(
        self, x: Tensor, state: State | None, layout: Layout, dt: Tensor | None
    ) -> tuple[Tensor, State]:
        v, state = layout.read(self.mixer, self.in_proj(x), state, dt)
        v = v if self.glu is None else self.glu(F.gelu(v))
        return self.out_proj(v), state

"""RNN: any mixer behind the interface of `torch.nn.GRU`."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from linrnn._options.call import checked
from linrnn._process.memory import bounded
from linrnn.backbone.pattern import MOST_LAYERS, MixerLike, choose, label, labels, pattern
from linrnn.backbone.signals import Shared, handed
from linrnn.compute.arguments import check_boolean, check_numbers
from linrnn.errors import (
    ArgumentError,
    ArgumentTypeError,
    check_at_most,
    check_positive_int,
    check_probability,
    check_shape,
    show,
)
from linrnn.mixers import Mixer, TorchRNN, check_timed
from linrnn.nn.parameters import parameters_of, working_dtype
from linrnn.rnn._cell import Cell, biased, draw
from linrnn.rnn._checks import check_input
from linrnn.rnn._hidden import Hidden
from linrnn.rnn._last_output import last_output
from linrnn.rnn._one_step import recorded
from linrnn.rnn._packing import (
    EndTogether,
    Layout,
    Marks,
    Rows,
    Shrinking,
    Single,
    check_packed,
    packed_alike,
)
from linrnn.state import map_state
from linrnn.typing import Lengths, State

__all__ = [
    "RNN",
    "last_output",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class RNN(nn.Module):
    r"""A stack of mixers with the arguments, shapes and return values of `torch.nn.GRU`.

    Equation of a layer, in each direction:

        u = W_in x + b_in               where the width of x is not hidden_size, else u = x; of the
                                        GRU and the LSTM u = x, whose weights have the input's width
        v, h = mixer(u)                 d_model = hidden_size
        v = GLU(GELU(v))                where glu
        y = W_out v + b_out             where proj_size, else y = v; the LSTM projects its h itself

    The directions' outputs are concatenated; dropout stands between layers. There are no norms
    and no skips: for a deep model take `linrnn.SequenceModel`. With ``mixer="gru"`` or ``"lstm"``
    it is `torch.nn.GRU` or `torch.nn.LSTM`, number for number; see `from_torch`.

    The state has the form of a GRU's or of an LSTM's, in real numbers, so that what programs do
    with it (detach it, take rows of axis 1, start from zeros) works with every mixer:

        h_n             (num_layers * num_directions, batch, hidden_size), where the mixer's state
                        is one real vector of that size;
        (h_n, c_n)      elsewhere. Of the LSTM they are its h and c. Of all others h_n is the last
                        output of each layer and direction, and c_n, (..., batch, numbers), all of
                        the state: h_n is not read when the pair comes back as ``hx``. Of a state
                        that grows, as attention's does, c_n is a tuple of tensors; where a pattern
                        names different mixers, or the states of layers differ, a tuple over
                        the layers.

    Without gradients a call with one step is recorded the first time, in some milliseconds, and is
    one native call from then on. With eight sequences of 24 channels it takes 0.7 (minGRU) to 1.5
    (Mamba) of the time of `torch.nn.GRU`'s.

    `state` takes it apart into the states of the mixers. Zeros of ``hidden_size`` numbers as ``hx``
    begin anew, also where the state has another size, and so does a row of zeros in any form. For
    classification `last_output` means the same with every mixer.

    With ``mixer="gru"`` or ``"lstm"`` and without ``glu`` (of the GRU without ``proj_size`` too)
    parameters have the names that torch.nn gives them, so the ``state_dict`` of either loads into
    the other.

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
        proj_size: channels out of every layer; 0 leaves hidden_size. Of ``"lstm"`` the projection
            stands in the recurrence, as in `torch.nn.LSTM`, and ``h_n`` has this size; elsewhere
            it stands after it, so ``h_n`` keeps its own.
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
        >>> output, (h_n, c_n) = rnn(torch.randn(5, 100, 3))
        >>> output.shape, h_n.shape, c_n.shape
        (torch.Size([5, 100, 16]), torch.Size([2, 5, 16]), torch.Size([2, 5, 32]))
    """

    _is_replica = False  # PyTorch sets it, see `torch.nn.parallel.replicate`

    @checked
    @bounded("the layers", "Lower hidden_size, num_layers, or the sizes of the mixer.")
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
        _check_sizes(input_size, hidden_size, num_layers, proj_size)
        check_probability("RNN", dropout=dropout)
        if dropout and num_layers == 1:
            warnings.warn(
                f"RNN: dropout stands between layers, so dropout={dropout} does nothing with "
                "num_layers=1.",
                stacklevel=2,
            )
        directions = 2 if bidirectional else 1
        width = directions * (proj_size or hidden_size)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        choices = choose("RNN", mixer, mixer_options, num_layers, count_name="num_layers")
        self.cells = nn.ModuleList(  # in the order of h_n
            Cell(
                biased(choice, bias, directions),
                input_size if layer == 0 else width,
                hidden_size,
                proj_size,
                bias=bias,
                glu=glu,
                **factory,
            )
            for layer, choice in enumerate(choices)
            for _ in range(directions)
        )
        self.shared = nn.ModuleList(  # of each direction, between whose layers signals go
            Shared("RNN", self._mixers()[way::directions]) for way in range(directions)
        )
        self._mixed = len(labels(mixer)) > 1
        for torch_rnn, suffix in self._lenders():
            torch_rnn.lend(self, suffix)

    def _lenders(self) -> list[tuple[TorchRNN, str]]:
        """The mixers whose parameters are this module's, with the ends of their names here."""
        if not all(cast(Cell, cell).native for cell in self.cells):
            return []
        mixers = [cast(TorchRNN, mixer) for mixer in self._mixers()]
        return [(mixer, self._suffix(i)) for i, mixer in enumerate(mixers)]

    def _suffix(self, i: int) -> str:
        """The end of PyTorch's names for the parameters of a layer and direction."""
        directions = 2 if self.bidirectional else 1
        return f"_l{i // directions}" + "_reverse" * (i % directions)

    def extra_repr(self) -> str:
        """Arguments that are not the defaults, for ``print(rnn)``."""
        words = [repr(self.mixer), str(self.input_size), str(self.hidden_size)]
        for name, parameter in inspect.signature(RNN.__init__).parameters.items():
            value = getattr(self, name, None)
            if parameter.default is not inspect.Parameter.empty and value is not None:
                words += [f"{name}={value}"] if value != parameter.default else []
        return ", ".join(words)

    @classmethod
    def from_torch(cls, module: nn.RNNBase) -> "RNN":
        """The layer with the parameters, and so the numbers, of a torch.nn.GRU or torch.nn.LSTM.

        Args:
            module: it is not changed; parameters are copied.

        Raises:
            ArgumentError: another module.
        """
        name = {nn.GRU: "gru", nn.LSTM: "lstm"}.get(type(module))
        if name is None:
            raise ArgumentError(
                "RNN.from_torch: module must be a torch.nn.GRU or torch.nn.LSTM, got "
                f"{type(module).__name__}."
            )
        weight: Tensor = cast(Tensor, module.weight_ih_l0)
        sizes = module.input_size, module.hidden_size, module.num_layers
        options_to_copy = ("bias", "batch_first", "dropout", "bidirectional", "proj_size")
        options: dict[str, Any] = {name: getattr(module, name) for name in options_to_copy}
        layer = cls(name, *sizes, **options, device=weight.device, dtype=weight.dtype)
        layer.load_state_dict(module.state_dict())
        return layer.train(module.training)

    def flatten_parameters(self) -> None:
        """Do nothing; `torch.nn.GRU` has it, and scripts call it."""

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters of every layer and direction, in the order of ``h_n``."""
        weights = []
        for i, cell in enumerate(self.cells):
            end, mine = self._suffix(i), self._parameters.items()
            lent = [p for name, p in mine if name.endswith(end) and p is not None]
            weights.append([*lent, *cell.parameters()])
        return weights

    def reset_parameters(self) -> None:
        """Draw every parameter anew from torch's global generator."""
        for part in (*self.cells, *self.shared):
            draw(part)

    @property
    def hidden(self) -> Hidden:
        """How the states of the mixers, those there are now, make ``h_n``."""
        output_size = self.proj_size or self.hidden_size
        return Hidden(self._mixers(), self.hidden_size, output_size, mixed=self._mixed)

    def init_state(self, batch_size: int) -> State:
        """``hx`` before the first step, for ``batch_size`` sequences."""
        mixers = self._mixers()
        like, width = parameters_of(self)[0], self.proj_size or self.hidden_size
        last = like.new_zeros(batch_size, width, dtype=working_dtype(self))
        states = [mixer.init_state(batch_size) for mixer in mixers]
        return self.hidden.join([last] * len(mixers), states)

    def state(self, hx: State) -> list[State]:
        """The mixers' own states, each with the batch first, of what this layer returned.

        Args:
            hx: ``h_n`` of a batch; of the LSTM's form, the pair.

        Raises:
            DTypeError, ShapeError: ``hx`` is none of this layer's.
        """
        h: Any = hx
        while not isinstance(h, Tensor) and isinstance(h, (tuple, list)) and h:
            h = h[0]
        rows = h.shape[1] if isinstance(h, Tensor) and h.ndim > 1 else 0
        device = parameters_of(self)[0].device
        checked = self.hidden.check(hx, rows, device, working_dtype(self))
        if checked is None:
            return [mixer.init_state(rows) for mixer in self._mixers()]
        return self.hidden.split(checked)

    def get_expected_hidden_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """The shape of ``h_n``, as `torch.nn.GRU` has it."""
        if batch_sizes is not None:
            rows = int(batch_sizes[0])
        else:
            rows = input.shape[0] if self.batch_first else input.shape[1]
        return len(self.cells), rows, self.hidden.h_size

    def get_expected_cell_size(
        self, input: Tensor, batch_sizes: Tensor | None
    ) -> tuple[int, int, int]:
        """The shape of ``c_n``, where there is one and it is a tensor.

        Raises:
            ArgumentError: there is none, or it is a tuple.
        """
        size = None if self.hidden.form == "vector" else self.hidden.size()
        if size is None:
            raise ArgumentError(
                f"RNN: the state of {self.mixer!r} must be a pair of tensors for a size of c_n, "
                "got another. See `RNN.init_state`."
            )
        return (*self.get_expected_hidden_size(input, batch_sizes)[:2], size)

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: State | None = None,
        *,
        dt: Tensor | PackedSequence | None = None,
        reset: Tensor | PackedSequence | None = None,
    ) -> tuple[Tensor | PackedSequence, State]:
        """Read sequences.

        Args:
            input: (time, batch, input_size), (batch, time, input_size) with ``batch_first``,
                (time, input_size) without a batch, or a `PackedSequence`.
            hx: the state to start from, as ``h_n``; None starts anew.
            dt: the time since the step before of every step, see `Mixer.forward`: with the axes of
                the input but channels, and packed as the input is. It is for the layers whose
                mixers are `timed`. What reads backward is given the time until the next step.
            reset: boolean, with the axes of the input but channels, and packed as the input is;
                True starts a new sequence at that step, and what reads backward ends one before it.

        Returns:
            ``(output, h_n)``: the output of the last layer in the form of the input, with
            ``num_directions * (proj_size or hidden_size)`` channels, and the state of every
            layer and direction after the last step it read. Without a batch ``h_n`` has no such
            axis either.
        """
        if self._is_replica:
            for torch_rnn, suffix in self._lenders():
                torch_rnn.look_up(self, suffix)
        if dt is None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            done = recorded(self, self._step, input, hx, reset)
            if done is not None:
                return done
        check_timed("RNN", dt, self._mixers())
        if isinstance(input, PackedSequence):
            return self._packed(input, hx, Marks(dt, reset))  # type: ignore[arg-type]
        if not isinstance(input, Tensor) or input.ndim != 2:
            axes = ("batch", "time") if self.batch_first else ("time", "batch")
            check_input(self, input, *axes)
            x = input if self.batch_first else input.transpose(0, 1)
            marks = self._marks(dt, reset, input, *axes)
            marks = marks if self.batch_first else marks.map(Tensor.t)
            y, h_n = self._read(x, hx, Rows(), marks)
            return (y if self.batch_first else y.transpose(0, 1)), h_n
        check_input(self, input, "time")
        if hx is not None:
            hx = self._check_state(hx, input, None)
        if hx is not None:
            hx = map_state(lambda h: h.unsqueeze(1), hx)
        marks = self._marks(dt, reset, input, "time").map(lambda z: z[None])
        y, h_n = self._read(input[None], hx, Rows(), marks)
        return y[0], map_state(lambda h: h.squeeze(1), h_n)

    def last_output(
        self, output: Tensor | PackedSequence, lengths: Lengths | None = None
    ) -> Tensor:
        """`linrnn.last_output` of what this module returned."""
        return last_output(
            output, lengths, batch_first=self.batch_first, bidirectional=self.bidirectional
        )

    def _step(self, x: Tensor, hx: State) -> tuple[Tensor, State] | None:
        """Every layer over a step (batch, input_size); None where the state means to begin anew.

        It does so with zeros of another size than the state has.
        """
        check_input(self, x, "batch")
        hx = self._check_state(hx, x, x.shape[0])
        if hx is None:
            return None
        y, h_n = self._read(x[:, None], hx, Single(), Marks())
        return y[:, 0], h_n

    def _packed(
        self, packed: PackedSequence, hx: State | None, packed_marks: Marks
    ) -> tuple[PackedSequence, State]:
        data, sizes, order, back = packed
        check_packed(packed)
        check_input(self, data, "steps")
        batch, time = int(sizes[0]), len(sizes)
        if hx is not None:
            hx = self._check_state(hx, data, batch)
        if hx is not None and order is not None:
            hx = map_state(lambda h: h.index_select(1, order), hx)
        # (T, B); rows from long to short
        present = torch.arange(batch, device=sizes.device) < sizes[:, None]
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
        dt, reset = (
            z if z is None else packed_alike("RNN", name, z, packed)
            for name, z in packed_marks._asdict().items()
        )
        marks = self._marks(dt, reset, data, "steps").padded((row, t), (batch, time))
        y, h_n = self._read(x, hx, layout, marks)
        if back is not None:
            h_n = map_state(lambda h: h.index_select(1, back), h_n)
        return PackedSequence(y[row, t], sizes, order, back), h_n

    def _read(
        self, x: Tensor, hx: State | None, layout: Layout, marks: Marks
    ) -> tuple[Tensor, State]:
        """Every layer over (batch, time, input_size)."""
        if hx is not None:
            hx = self._check_state(hx, x, x.shape[0])
        start_states = None if hx is None else self.hidden.split(hx)
        directions = 2 if self.bidirectional else 1
        states: list[State] = []
        last: list[Tensor] = []
        shared = [part(self.num_layers) for part in self.shared]
        carried: list[dict[str, Tensor]] = [{} for _ in range(directions)]  # as each reads
        for layer in range(self.num_layers):
            outputs = []
            for way in range(directions):
                i = len(states)
                cell, backward = cast(Cell, self.cells[i]), way == 1
                start = None if start_states is None else start_states[i]
                said = layout.backward(marks) if backward else marks
                signals = handed(cell.mixer, carried[way], shared[way][layer])
                z = layout.reverse(x) if backward else x
                y, state, outgoing = cell(z, start, layout, said, signals)
                carried[way] = {**carried[way], **outgoing}
                last.append(layout.last(y) if y.shape[1] else y.new_zeros(len(y), y.shape[-1]))
                outputs.append(layout.reverse(y) if backward else y)
                states.append(state)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)  # (batch, time, width)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        if hx is not None and x.shape[1] == 0:
            return x, hx
        return x, self.hidden.join(last, states)

    def _check_state(self, hx: State, x: Tensor, batch: int | None) -> Any:
        """``hx`` of every layer and direction, or None where it stands for a new start."""
        return self.hidden.check(hx, batch, x.device, working_dtype(self))

    def _marks(self, dt: Any, reset: Any, x: Tensor, *axes: str) -> Marks:
        """Both checked against the axes of the input."""
        if dt is not None:
            check_numbers("RNN", {"dt": dt}, real=True)
        if reset is not None:
            check_boolean("RNN", "reset", reset)
        for name, z in (("dt", dt), ("reset", reset)):
            if z is not None:
                check_shape("RNN", name, z.shape, dict(zip(axes, x.shape, strict=False)))
        return Marks(dt, reset)

    def _mixers(self) -> list[Mixer]:
        """In the order of ``h_n``."""
        return [cast(Cell, cell).mixer for cell in self.cells]

    def _walks(self) -> bool:
        """Whether shrinking batches suit a mixer better than marks where sequences start."""
        mixers = self._mixers()
        return any(m.cost == "sequential" or "reset_and_packing" in m.declared for m in mixers)

    def _check_constant_size(self, lengths: Tensor) -> None:
        if lengths[0] == lengths[-1]:
            return
        if self.hidden.grows:
            raise ArgumentError(
                f"RNN: hx must be None for packed sequences of several lengths, since the state "
                f"of {self.mixer!r} grows with each, got a state. Call it on each sequence alone."
            )


def _check_sizes(input_size: int, hidden_size: int, num_layers: int, proj_size: int) -> None:
    check_positive_int("RNN", input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
    check_at_most("RNN", MOST_LAYERS, num_layers=num_layers)
    is_integer = isinstance(proj_size, int) and not isinstance(proj_size, bool)
    if not is_integer or not 0 <= proj_size < hidden_size:
        kind = ArgumentError if is_integer else ArgumentTypeError
        raise kind(
            f"RNN: proj_size must be in 0..{hidden_size - 1}, below hidden_size, "
            f"got {show(proj_size)}."
        )

"""The contract every mixer keeps; `linrnn.testing.check_mixer` tests it."""

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from linrnn._options.call import checked
from linrnn._process.memory import bounded
from linrnn.compute.layout import accumulator_dtype
from linrnn.compute.sequence_parallel import current
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError, check_positive_int
from linrnn.mixers._contract import arguments
from linrnn.mixers._contract.added import asked_now
from linrnn.mixers._contract.reach import check_reach
from linrnn.mixers._contract.recorded import apart, recorded_sequence, step_with_signals
from linrnn.mixers._contract.signals import as_sequence, as_step, made_of_nothing, received
from linrnn.mixers._contract.traits import Traits
from linrnn.mixers._contract.updates import follow
from linrnn.nn.modal import Modes
from linrnn.ops.half_linear import half_cast
from linrnn.state import map_state
from linrnn.state_spec import Part, Spec, check_state, closed, initial, of_state, opened
from linrnn.typing import (
    Complex,
    Read,
    ReadToken,
    ResetMask,
    Sequence,
    Signals,
    State,
    Time,
    Times,
    Token,
)

FFT_REACHES_BACK = (
    "an FFT spreads its rounding errors over the row: a step changes those before it by some "
    "roundings of the largest number, and NaN, infinity or an overflow make them NaN"
)


class Mixer(Traits):
    """A layer that mixes information along time: (B, T, d_model) in and out, state in and out.

    A subclass writes three methods. ``__init__`` stores its arguments under their own names and
    sets ``d_model``. `state_spec` returns the shapes of the state. `_read` reads a sequence of at
    least one step. The public methods call these. A subclass may also write `_step`, if one step
    can be computed faster than a sequence of length one.

    The state is always returned. It is a plain tree of tensors with the batch as leading axis. Its
    size is fixed, except in mixers that store their input, such as attention. It is at least
    float32: a state in half precision is converted. Every constructor takes ``device`` and
    ``dtype`` as in torch.nn, and `reset_parameters` draws the parameters from torch's global
    generator. A subclass sets the attributes of `Traits` that differ from their defaults.

    Raises:
        ShapeError: the last axis of an input is not ``d_model``, or a state or reset mask does not
            fit.
        DTypeError: an input that is not real floating point, or a state of another tree or kind.
        DeviceError: an input, state or reset mask on another device than the parameters.
        ArgumentError: a reset mask for a form that cannot reset; ``dt`` for a mixer or form that
            does not read times, a negative ``dt``, or one that makes the state overflow; in every
            constructor, a size below 1 or an option outside its range.
        UnknownNameError: a value that is not one of the choices of an option.

    Example:
        >>> import torch
        >>> from linrnn.ops import linear_scan
        >>> from linrnn.state_spec import real
        >>> class Average(Mixer):
        ...     family = "diagonal"
        ...
        ...     def __init__(self, d_model, *, decay=0.9, device=None, dtype=None):
        ...         super().__init__()
        ...         self.d_model, self.decay = d_model, decay
        ...         self.gain = torch.nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))
        ...
        ...     def state_spec(self):
        ...         return real(d_model=self.d_model)
        ...
        ...     def _read(self, x, state, reset):
        ...         decay = torch.full_like(self.gain, self.decay)
        ...         return linear_scan(decay, (1 - decay) * self.gain * x, state, reset=reset)
        >>> layer = Average(4)
        >>> layer
        Average(d_model=4, decay=0.9)
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y_t, state = layer.step(torch.randn(2, 4), state)
    """

    d_model: int
    """Channels in and out, an integer of at least 1."""

    __prepare_scriptable__ = arguments.refuse_script  # torch.jit.script calls it for every layer

    def __new__(cls, *args: Any, **kwargs: Any) -> "Mixer":  # copies and pickles come here as well
        layer: Mixer = super().__new__(cls)
        if cls.after_update is not Mixer.after_update or cls.bounds is not Mixer.bounds:
            follow(layer)
        return layer

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forms" in vars(cls) and "form" not in vars(cls):
            cls.form = cls.forms[0]
        if "__init__" in vars(cls):
            fix = "Lower d_model, or the sizes among its options."
            constructor = bounded("the layer", fix)(cls.__init__)
            cls.__init__ = checked(constructor)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "d_model":
            check_positive_int(type(self).__name__, d_model=value)
        super().__setattr__(name, value)

    def state_spec(self) -> Spec:
        """The layout of the state: a part, or a plain tree of parts, of `linrnn.state_spec`."""
        if type(self).init_state is Mixer.init_state:
            raise NotImplementedError(
                f"{type(self).__name__}: a mixer must say what its state is made of, got no "
                "state_spec. Write `def state_spec(self): return real(d_state=self.d_state)`."
            )
        return of_state(self.init_state(1))

    def signal_spec(self) -> Mapping[str, Part]:
        """The sizes of the signals: the axes after batch and time, or of shared ones all axes.

        A carried one with an axis of size None is of all steps so far, those of earlier calls too:
        its axes are those after the batch, and the layer that makes it holds it as its state.
        """
        return {}

    @classmethod
    def shared_part(cls, layers: Iterable[Any]) -> nn.Module:
        """The parameters that these layers of a stack have in common, made once for all of them.

        Its ``forward()`` gives one mapping a layer, of the signals that the class ``shares``.
        """
        raise NotImplementedError(
            f"{cls.__name__}: a class that shares signals must say what of, got no shared_part."
        )

    def _read(self, x: Any, state: Any, reset: Any, *more: Any) -> tuple[Any, ...]:
        """Read a sequence of at least one step; every argument fits.

        Args:
            x: input (batch, time, d_model), of the caller's dtype.
            state: as `state_spec` says, never None.
            reset: boolean (batch, time), or None.
            signals: those the layer ``receives``; given only where the class has any.
            dt: real (batch, time), or None; given only where the mixer is `timed`.

        Returns:
            ``(y, state)``: y of any real dtype, which is cast to that of ``x``; and of a class with
            signals those that the layer makes.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: a mixer must say how a sequence is read, got no _read."
        )

    def _step(self, x_t: Any, state: Any, *more: Any) -> tuple[Any, ...]:
        """Read one step (batch, d_model); every argument fits. Default: a sequence of one."""
        signals = tuple(as_sequence(self, z) for z in more if isinstance(z, Mapping))
        times = (None if z is None else z.unsqueeze(1) for z in more[len(signals) :])  # (B, 1) each
        # (B, 1, d_model)
        y, state, *outgoing = self._read(x_t.unsqueeze(1), state, None, *signals, *times)
        return y.squeeze(1), state, *(as_step(self, new) for new in outgoing)  # (B, d_model)

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        signals: None = None,
    ) -> tuple[Read, State]: ...

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        signals: Signals,
    ) -> tuple[Read, State, Signals]: ...

    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        signals: Signals | None = None,
    ) -> tuple[Read, State] | tuple[Read, State, Signals]:
        """Read a whole sequence.

        Args:
            x: input (batch, time, d_model).
            state: what an earlier call returned, or None for `init_state`.
            reset: boolean (batch, time); True starts a new sequence at that step, with no memory
                of the steps before.
            dt: time since the previous step (batch, time), in any unit, at least 0; default: 1. At
                the first step it is the time since the initial state. Only for `timed` mixers.
            signals: tensors from other layers of a stack, by name: ``(batch, time, ...)`` from
                earlier layers, and those that all share. The layer reads those that it
                `receives`. Only for a class that ``carries`` or ``shares`` any. Default: none.

        Returns:
            ``(y, state)``: the output, shape and dtype of ``x``, and the state after the last step.
            With signals, ``(y, state, signals)``: those that this layer makes for later ones.
        """
        alone = dt is None and signals is None
        if alone and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            done = recorded_sequence(self, x, state, reset)
            if done is not None:
                return done
        self._check_input(x, time=True)
        if current() is not None:
            self.check_split()
        if reset is not None:
            self._check_reset(reset, x)
        times = self._times("forward", dt, x)
        handed = received(self, "forward", signals, x)
        spec = self.state_spec()
        start = self._start(state, x, spec)
        if x.shape[1] == 0:
            start = start if state is None else map_state(torch.clone, start)
            return (x, start) if signals is None else (x, start, made_of_nothing(self, x))
        begins = self._begins(spec)
        if reset is not None and x.shape[1] == 1:
            start = _forgotten(start, reset)
        y, state, *outgoing = self._read(x, opened(start, begins), reset, *handed, *times)
        if dt is not None:
            check_reach(f"{type(self).__name__}.forward", dt, x, start, y, state)
        y, state = half_cast(y, x.dtype), closed(state, begins)
        return (y, state) if signals is None else (y, state, *outgoing)

    @overload
    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: None = None
    ) -> tuple[ReadToken, State]: ...

    @overload
    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: Signals
    ) -> tuple[ReadToken, State, Signals]: ...

    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: Signals | None = None
    ) -> tuple[ReadToken, State] | tuple[ReadToken, State, Signals]:
        """Read one time step (batch, d_model) in constant time: ``(y_t, state)``.

        ``dt`` (batch,) is the time since the step before; default: 1. ``signals`` are those of
        `forward` without the axis of time; with them it returns ``(y_t, state, signals)``.
        """
        if signals is not None:
            return step_with_signals(self, x_t, state, dt, signals)
        done = None if dt is not None else recorded_step(self, self._step_by_operators, x_t, state)
        return self._step_by_operators(x_t, state, dt) if done is None else done

    def _step_by_operators(
        self, x_t: Any, state: State, dt: Tensor | None = None, signals: Signals | None = None
    ) -> tuple[Any, ...]:
        self._check_input(x_t, time=False)
        times = self._times("step", dt, x_t)
        handed = received(self, "step", signals, x_t)
        spec = self.state_spec()
        start = self._start(state, x_t, spec)
        begins = self._begins(spec)
        y, state, *outgoing = self._step(x_t, opened(start, begins), *handed, *times)
        if dt is not None:
            check_reach(f"{type(self).__name__}.step", dt, x_t, start, y, state)
        y, state = apart(y.to(x_t.dtype), closed(state, begins))
        return (y, state) if signals is None else (y, state, *outgoing)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first step, zeros, for ``batch_size`` sequences.

        A row of zeros in any state starts a new sequence, so ``h * (1 - done)`` ends episodes.
        Device and dtype default to those of the parameters. ``dtype`` is real: complex states get
        the complex dtype of the same precision, and half precision becomes float32.
        """
        where, like = type(self).__name__, self._parameter()
        state: State = initial(where, self.state_spec(), batch_size, like, device, dtype)
        return state

    def asks_for_loss(self) -> bool:
        """Whether `add_loss` has an effect: in training, with gradients.

        A layer asks this in `_read` before it computes a loss, which costs nothing elsewhere.
        """
        return self.training and asked_now() is not None

    def add_loss(self, loss: Tensor) -> None:
        """Add a loss of this layer to the training loss.

        Args:
            loss: a scalar, the mean over the rows and steps of the call. If a sequence is read in
                windows, each window adds its own, with the weight of the window's loss. It must
                depend on the same parameters at every call, because distributed training waits
                for the gradients of all of them.
        """
        collector = asked_now()
        if self.training and collector is not None:
            collector.add(loss)

    def bounds(self) -> Mapping[str, tuple[float, float]]:
        """The least and the largest value of parameters that are constrained, by name."""
        return {}

    @torch.no_grad()
    def after_update(self) -> None:
        """Clip parameters to `bounds`.

        Every optimiser of `torch.optim` that updates a parameter of the layer calls this after its
        step, also in a training loop of your own. Call it yourself if you update parameters
        without such an optimiser.
        """
        for name, (low, high) in self.bounds().items():
            self.get_parameter(name).clamp_(low, high)

    def eigenvalues(self) -> Complex[Tensor, " d_state"] | None:
        """Eigenvalues of a transition that does not depend on the input, else None."""
        return None

    def piecewise_linear(self, x_t: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """``A, W, h`` of a step ``z -> A z + W relu(z) + h`` with the input held, or None.

        Args:
            x_t: the input (d_model,).

        Returns:
            As `linrnn.dynamics.scyfi` takes them, or None where the layer is no such.
        """
        return None

    def impulse_responses(self, length: int) -> Tensor | None:
        """The filters of a layer that is long convolutions, with gates and maps around them.

        Args:
            length: of each, in steps; what is beyond the reach of a filter is zero.

        Returns:
            (filters, channels, length) in float64, without a gradient, or None where the layer is
            no such: `linrnn.distill` leaves it as it is then.
        """
        return None

    def distilled(self, modes: Iterable[Modes]) -> "Mixer":
        """A copy of this layer with recurrences instead of filters.

        Args:
            modes: of each filter of `impulse_responses`, all of the same number of modes.

        Raises:
            ArgumentError: it has no such filters.
        """
        raise ArgumentError(
            f"{type(self).__name__}: a layer must have long filters to be distilled, got one "
            "without. Leave it as it is."
        )

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``."""
        return arguments.described(self)

    _parameter = arguments.one_parameter
    _check_input = arguments.check_input
    _check_reset = arguments.check_mask

    def _times(self, call: str, dt: Tensor | None, x: Tensor) -> tuple[Tensor | None, ...]:
        """The argument ``dt`` of `_read` and `_step`: none if the mixer does not read times."""
        if dt is None:
            return (None,) if self.timed else ()
        arguments.check_dt(self, f"{type(self).__name__}.{call}", dt, x)
        return (dt.to(accumulator_dtype(self._parameter().dtype)),)

    def check_split(self) -> None:
        """Raise `BackendError` where `linrnn.ops.sequence_parallel` cannot split the layer."""
        arguments.check_split(self)

    def _begins(self, spec: Spec) -> Spec:
        """The specification with learned initial values of its parts."""
        return spec if self.learned is None else self.learned.put(self, spec)

    def _start(self, state: State | None, x: Tensor, spec: Spec) -> Any:
        """The state a call begins from: `init_state` for None, else the caller's, checked.

        Raises:
            DTypeError, ShapeError, DeviceError: a state this layer cannot have returned.
        """
        if state is None:
            if type(self).init_state is Mixer.init_state:  # it would make the specification again
                name = type(self).__name__
                return initial(name, spec, x.shape[0], self._parameter(), x.device)
            return self.init_state(x.shape[0], device=x.device)
        where, dtype = type(self).__name__, self._parameter().dtype
        return check_state(where, state, spec, x.shape[0], x.device, dtype)


def _forgotten(state: State, reset: Tensor) -> State:
    """The state before a single step, of zeros in rows that restart: 0 times NaN would be NaN."""

    def forget(h: Tensor) -> Tensor:
        if not (h.is_floating_point() or h.is_complex()):
            return h
        return torch.where(reset.view(-1, *[1] * (h.ndim - 1)), 0, h)

    return map_state(forget, state)

"""A residual block around a mixer, of the kinds that are published with them."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.block._parts import (
    BEHIND_NARROW,
    BLOCKS,
    FEED_FORWARD,
    MODULES,
    WITH_OPTIONS,
    Place,
    chains_of,
    check_part_options,
    check_sizes,
    has_width,
    norm_name,
)
from linrnn.engine.replay.program import ready
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError, DTypeError, check_in, check_positive, check_probability
from linrnn.mixers import Mixer
from linrnn.nn import CausalConv, ChannelMix, make_norm
from linrnn.nn.lengths import check_lengths, steps_before
from linrnn.nn.norm import normalise
from linrnn.nn.parameters import parameters_of
from linrnn.state_spec import check_state
from linrnn.typing import Lengths, ResetMask, Sequence, Signals, State, Time, Times, Token

__all__ = [
    "BEHIND_NARROW",
    "BLOCKS",
    "FEED_FORWARD",
    "MODULES",
    "WITH_OPTIONS",
    "Block",
    "Place",
    "check_part_options",
    "has_width",
]


def __dir__() -> list[str]:
    return sorted(__all__)


# What the backbone reads and is no part of the reference.
_SHARED = {"check_part_options", "has_width"}


class Block(nn.Module):
    """Residual block around a mixer: a chain of parts, each with its norm and its skip.

    Equation::

        pre-norm:   x = a x + c drop(part(norm(x)))    for each part
        post-norm:  x = norm(a x + c drop(part(x)))    for each part
        out-norm:   x = a x + c drop(norm(part(x)))    for each part

    where a is ``skip_scale`` and c ``residual_scale``, without ``a x`` where ``skip`` is False, and
    without the norm before a mixer that norms its input itself (`Mixer.norms_input`).

    The parts, by the block's kind, a row of `BLOCKS`:

    - ``glu``: ``z -> GLU(drop(GELU(mixer(z))))``, the block of the LRU paper.
    - ``glu_mlp``: the same, then a `linrnn.nn.MLP`, of four times the width: the blocks of SaShiMi.
    - ``mlp``: the mixer, then such an MLP.
    - ``channel_mix``: the mixer, then a `linrnn.nn.ChannelMix`, as in RWKV. It starts as published
      where the mixer was told to with ``init="published"``, or as there with "trainer".
    - ``relu_mix``: the mixer, then a `linrnn.nn.ChannelMix` without a receptance, as in RWKV-7.
    - ``geglu``: the mixer, then a `linrnn.nn.GatedMLP` of three times the width, as in Hawk and
      Griffin.
    - ``swiglu``: the mixer, then one with SiLU and without biases, of 8/3 of the width, rounded up,
      as in xLSTM 7B and most language models of today.
    - ``relu2``: the mixer, then a `linrnn.nn.MLP` of four times the width with squared ReLUs and
      without biases, as in Nemotron-H.
    - ``moe``: the mixer, then a `linrnn.nn.MoE`, of which each step is read by a few networks.
    - ``xlstm``: the mixer, and behind one that does not widen its channels itself, as mLSTM does
      and sLSTM does not, a `linrnn.nn.GatedMLP` without biases of 4/3 of the width, rounded up to a
      multiple of 64.
    - ``bare``: the mixer alone, for one that already has gates.

    With ``conv_width`` a `linrnn.nn.CausalConv` is the first part of any kind. The state is that of
    the mixer where no other part has one, else a dict: ``mixer``, and ``conv``, ``channel_mix`` or
    ``relu_mix``, those there are.

    Args:
        mixer: what mixes along time.
        kind: a row of `BLOCKS`: see above.
        norm: ``batch``, ``layer``, ``rms`` or ``none``.
        norm_eps: see `linrnn.nn.make_norm`.
        prenorm: normalise before each part (True) or after its skip (False).
        out_norm: normalise what each part adds instead; with ``prenorm`` True alone.
        skip: add the input of each part to its output.
        dropout: probability, on the output of each part, and before the GLU.
        conv_width: taps of the convolution; 0 leaves it out.
        d_ffn: hidden width of the part that has one. Default: see above.
        options: arguments of the parts of `WITH_OPTIONS`, by the name of the part.
        residual_scale: c, factor of what each part adds.
        skip_scale: a, factor of what skips it.
        layer, n_layers: place in the stack, counted from 0, for what starts differently there.
        device, dtype: of the parameters, as in torch.nn.
    """

    mixer: Mixer

    def __init__(
        self,
        mixer: Mixer,
        *,
        kind: Literal[
            "glu",
            "glu_mlp",
            "mlp",
            "channel_mix",
            "relu_mix",
            "geglu",
            "swiglu",
            "relu2",
            "moe",
            "xlstm",
            "bare",
        ] = "glu",
        norm: str = "batch",
        norm_eps: float | None = None,
        prenorm: bool = True,
        out_norm: bool = False,
        skip: bool = True,
        dropout: float = 0.0,
        conv_width: int = 0,
        d_ffn: int | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        residual_scale: float = 1.0,
        skip_scale: float = 1.0,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("block", "kind", kind, BLOCKS)
        check_probability("Block", dropout=dropout)
        _check_scales(residual_scale, skip_scale, skip)
        if out_norm and not prenorm:
            raise ArgumentError("Block: prenorm must be True with out_norm, got False.")
        check_sizes(kind, conv_width, d_ffn)
        check_part_options("Block", options)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.kind, self.prenorm, self.out_norm, self.skip = kind, prenorm, out_norm, skip
        self.residual_scale, self.skip_scale = residual_scale, skip_scale
        place = Place(mixer, layer, n_layers, conv_width, d_ffn, factory, options or {})
        # each with its norm, in the order of computation
        self._parts = [(chain, norm_name(chain[0])) for chain in chains_of(kind, place)]
        self._stateful: list[str] = []
        # drawn, and so stored, in another: the mixer, which is there already, comes first
        for chain, name in sorted(self._parts, key=lambda part: part[0][0] != "mixer"):
            self._add(chain[0], place)
            reads = prenorm and not out_norm
            itself = chain[0] == "mixer" and reads and mixer.norms_input
            of_part = "none" if itself else norm
            self.add_module(name, make_norm(of_part, mixer.d_model, eps=norm_eps, **factory))
            for link in chain[1:]:
                self._add(link, place)
        self.dropout = nn.Dropout(dropout)

    def _add(self, name: str, place: Place) -> None:
        if name in MODULES:
            self.add_module(name, MODULES[name](place))
            if hasattr(self._modules[name], "init_state"):
                self._stateful.append(name)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first step."""
        states = {
            name: cast(Mixer, getattr(self, name)).init_state(
                batch_size, device=device, dtype=dtype
            )
            for name in self._stateful
        }
        return states["mixer"] if len(states) == 1 else states

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
        valid: ResetMask | None = None,
        signals: None = None,
    ) -> tuple[Sequence, State]: ...

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
        valid: ResetMask | None = None,
        signals: Signals,
    ) -> tuple[Sequence, State, Signals]: ...

    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        lengths: Lengths | None = None,
        dt: Times | None = None,
        valid: ResetMask | None = None,
        signals: Signals | None = None,
    ) -> tuple[Sequence, State] | tuple[Sequence, State, Signals]:
        """Read a whole sequence: see `Mixer.forward`.

        Args:
            x: (batch, time, d_model).
            state: as `init_state` gives it.
            reset, dt, signals: of the mixer.
            lengths: valid steps of each row, for a mixer that takes them; norms count these alone.
            valid: boolean (batch, time), False at padding, for norms; in place of lengths.
        """
        if valid is None and lengths is not None:
            stops = check_lengths("Block", lengths, x)
            valid = steps_before(stops, x.shape[1], x.device)
        arguments = {"lengths": lengths, "dt": dt, "signals": signals}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        outgoing: list[Signals] = []

        def read(name: str, z: Tensor, previous_state: State | None) -> tuple[Tensor, State]:
            part = cast(Callable[..., tuple[Any, ...]], self._modules[name])
            if name != "mixer":
                return part(z, previous_state, reset)
            y, next_state, *new = part(z, previous_state, reset=reset, **arguments)
            outgoing.extend(new)
            return y, next_state

        y, next_state = self._chain(x, state, read, F.gelu, valid)
        return (y, next_state) if signals is None else (y, next_state, outgoing[0])

    @overload
    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: None = None
    ) -> tuple[Token, State]: ...

    @overload
    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: Signals
    ) -> tuple[Token, State, Signals]: ...

    def step(
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: Signals | None = None
    ) -> tuple[Token, State] | tuple[Token, State, Signals]:
        """Read one time step: see `Mixer.step`."""
        if dt is None and signals is None:
            recorded = recorded_step(self, self._step_by_operators, x_t, state)
            return self._step_in_parts(x_t, state) if recorded is None else recorded
        arguments = {"dt": dt, "signals": signals}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        y, next_state, outgoing = self._step_with(x_t, state, arguments)
        return (y, next_state) if signals is None else (y, next_state, outgoing[0])

    def _step_by_operators(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        y, next_state, _ = self._step_with(x_t, state, {})
        return y, next_state

    def _step_in_parts(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """A step around a mixer that no program runs: what is behind it is one native call."""
        chain, norm = self._parts[0]
        if chain[0] != "mixer" or not ready(x):
            return self._step_by_operators(x, state)
        states = self._split(state, x)
        norms_first = self.prenorm and not self.out_norm
        z = normalise(self._modules[norm], x, None) if norms_first else x
        z, mixed = self.mixer.step(z, cast(State, states.pop("mixer")))
        tree: Any = {"x": x, "states": states}
        recorded = recorded_step(self, self._behind_mixer, z, tree, "behind the mixer")
        y, tree = self._behind_mixer(z, tree) if recorded is None else recorded
        new = {"mixer": mixed, **tree["states"]}
        return y, mixed if len(self._stateful) == 1 else cast(State, new)

    def _behind_mixer(self, mixed: Tensor, tree: Any) -> tuple[Tensor, Any]:
        """A step from the mixer's output on."""

        def read(name: str, z: Tensor, previous_state: State | None) -> tuple[Tensor, State]:
            if name == "mixer":
                return mixed, ()
            return cast(Any, self._modules[name]).step(z, previous_state)  # type: ignore[no-any-return]

        alone = len(self._stateful) == 1
        states: Any = () if alone else {**tree["states"], "mixer": ()}
        y, new = self._chain(tree["x"], states, read, _gelu_of_few, behind_mixer=True)
        next_states = {} if alone else {name: cast(Any, new)[name] for name in tree["states"]}
        return y, {"x": tree["x"], "states": next_states}

    def _step_with(
        self, x_t: Tensor, state: State, arguments: Mapping[str, Any]
    ) -> tuple[Tensor, State, list[Signals]]:
        """A step whose mixer has arguments, and the signals that come out."""
        outgoing: list[Signals] = []

        def read(name: str, z: Tensor, previous_state: State | None) -> tuple[Tensor, State]:
            part = cast(Any, self._modules[name])
            if not arguments or name != "mixer":
                return part.step(z, previous_state)  # type: ignore[no-any-return]
            y, next_state, *new = part.step(z, previous_state, **arguments)
            outgoing.extend(new)
            return y, next_state

        y, next_state = self._chain(x_t, state, read, _gelu_of_few)
        return y, next_state, outgoing

    def _chain(
        self,
        x: Tensor,
        state: State | None,
        read: Callable[[str, Tensor, State | None], tuple[Tensor, State]],
        gelu: Callable[[Tensor], Tensor],
        valid: Tensor | None = None,
        behind_mixer: bool = False,
    ) -> tuple[Tensor, State]:
        """Every part with its skip; ``read(part, z, state)`` is a whole sequence or one step.

        ``behind_mixer``: the mixer has read, so its input needs no norm.
        """
        # each look-up of a module and each call of one that does nothing is felt by a single step
        modules = cast(dict[str, Callable[[Tensor], Tensor]], self._modules)
        drop = modules["dropout"] if self.dropout.training else None
        previous_states, next_states, stateful = self._split(state, x), {}, self._stateful
        for chain, norm in self._parts:
            norms_first = self.prenorm and not self.out_norm
            norms_first = norms_first and not (behind_mixer and chain[0] == "mixer")
            z = normalise(self._modules[norm], x, valid) if norms_first else x
            for name in chain:
                if name in stateful:
                    z, next_states[name] = read(name, z, previous_states[name])
                elif name == "gelu":
                    z = gelu(z)
                elif name != "drop":
                    z = modules[name](z)
                elif drop is not None:
                    z = drop(z)
            z = normalise(self._modules[norm], z, valid) if self.out_norm else z
            z = z if drop is None else drop(z)
            z = z if self.residual_scale == 1 else z * self.residual_scale
            x = x if self.skip_scale == 1 else x * self.skip_scale
            x = x + z if self.skip else z
            if not self.prenorm:
                x = normalise(self._modules[norm], x, valid)
        return x, (next_states["mixer"] if len(stateful) == 1 else cast(State, next_states))

    def _split(self, state: State | None, x: Tensor) -> dict[str, State | None]:
        """The state of each part, those that do not check their own checked here."""
        if len(self._stateful) == 1:
            return {"mixer": state}
        if state is None:
            state = self.init_state(x.shape[0], device=x.device)
        if not isinstance(state, dict) or state.keys() != set(self._stateful):
            got = (
                f"a dict with {sorted(state)}" if isinstance(state, dict) else type(state).__name__
            )
            raise DTypeError(
                f"Block: state must be a dict with {sorted(self._stateful)}, got {got}. "
                "Pass what this block returned for the same batch, or None."
            )
        checked = {**state}
        for name in self._stateful:
            if name != "mixer":
                part = cast(CausalConv | ChannelMix, self._modules[name])
                dtype, label = parameters_of(part)[0].dtype, f"state[{name!r}]"
                spec, rows = part.state_spec(), x.shape[0]
                checked[name] = check_state(
                    "Block", state[name], spec, rows, x.device, dtype, name=label
                )
        return checked


def _check_scales(residual_scale: float, skip_scale: float, skip: bool) -> None:
    check_positive("Block", residual_scale=residual_scale, skip_scale=skip_scale)
    if skip_scale != 1 and not skip:
        raise ArgumentError(
            f"Block: skip_scale must be 1 where nothing is skipped, got {skip_scale}."
        )


def _gelu_of_few(z: Tensor) -> Tensor:
    """GELU of one step: what PyTorch calls for float32 on a CPU takes longer to start than to run.

    Measured for 256 numbers in a model whose weights fill the second-level cache: 28 us a call,
    and 14 us for the definition, ``z`` times the normal distribution function.
    """
    if z.dtype == torch.float32 and z.device.type == "cpu" and not torch.compiler.is_compiling():
        phi: Tensor = torch.special.ndtr(z)
        return z * phi
    return F.gelu(z)

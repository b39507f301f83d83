"""Reading a sequence in both directions with any mixer."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn.errors import ArgumentError, check_in
from linrnn.mixers._contract.base import Mixer
from linrnn.mixers._contract.catalogue import build, redrawn
from linrnn.nn.lengths import check_lengths, reverse, until_next
from linrnn.state_spec import Part, Spec
from linrnn.typing import (
    Complex,
    Float,
    Lengths,
    ResetMask,
    Sequence,
    Signals,
    State,
    Time,
    Times,
    Token,
)

MERGES = ("sum", "concat")
WAYS = ("ahead", "back")


class Bidirectional(Mixer):
    r"""Two mixers of one kind: one reads forward, the other from the end of each sequence.

    Equation::

        y_t = forward(x)_t + backward(x reversed)_{T-1-t}     merge "sum"
        y_t = [forward(x)_t, backward(x reversed)_{T-1-t}]    merge "concat"

    It is no causal layer: an output depends on the whole sequence. So `step` is an error, and the
    state is that of the forward mixer alone. It may be carried from piece to piece, but the
    backward mixer starts anew in every call, at the end of each sequence it is given: reading in
    pieces is another computation than reading the whole.

    Each direction has its own signals, by names that begin with ``ahead.`` and ``back.``; those
    of a step belong to that step, in whichever direction it is read.

    Args:
        mixer: what reads forward.
        backward: what reads backward. Default: a copy of ``mixer`` with separate parameters,
            drawn anew.
        shared: the two have the recurrence in common, that is the parameters in the mixer's
            ``recurrent_parameters``; for the LRU these are its eigenvalues, B and gamma. They
            are stored under both names, as tied weights are in PyTorch.
        merge: ``sum``, or ``concat`` with ``2 * d_model`` channels out, forward ones first.

    Raises:
        UnknownNameError: an unknown merge.
        ArgumentError: the two mixers differ in class or width, or have nothing to share; `step`.
        ShapeError, DTypeError: an input or ``lengths`` that does not fit.

    Example:
        >>> layer = Bidirectional.build("lru", 4, {"d_state": 8}, merge="concat")
        >>> y, state = layer(torch.randn(2, 100, 4))
        >>> y.shape, state.shape
        (torch.Size([2, 100, 8]), torch.Size([2, 8]))
    """

    family: ClassVar[str] = "bidirectional"
    causal: ClassVar[bool] = False
    declared: ClassVar[Mapping[str, str]] = {
        "causal": "the backward mixer has read the future",
    }

    def __init__(
        self,
        mixer: Mixer,
        backward: Mixer | None = None,
        *,
        shared: bool = False,
        merge: Literal["sum", "concat"] = "sum",
    ) -> None:
        super().__init__()
        check_in("Bidirectional", "merge", merge, MERGES)
        self.d_model = mixer.d_model
        # what is true of the mixer is true of two
        self.cost, self.constant_state = mixer.cost, mixer.constant_state  # type: ignore[misc]
        self.widening = mixer.widening  # type: ignore[misc]
        self.norms_input = mixer.norms_input  # type: ignore[misc]
        self.timed = mixer.timed  # type: ignore[misc]
        self.random_training = mixer.random_training  # type: ignore[misc]
        self.declared = {**mixer.declared, **type(self).declared}  # type: ignore[misc]
        self.shared, self.merge = shared, merge
        self.ahead = mixer
        self.back = redrawn("Bidirectional: mixer", mixer) if backward is None else backward
        if type(self.back) is not type(mixer) or self.back.d_model != mixer.d_model:
            raise ArgumentError(
                "Bidirectional: backward must be of the class and width of the forward mixer, "
                f"{type(mixer).__name__} with d_model={mixer.d_model}, got "
                f"{type(self.back).__name__} with d_model={self.back.d_model}."
            )
        for attribute in ("carries", "shares", "receives"):
            names = {way: getattr(getattr(self, way), attribute) for way in WAYS}
            setattr(self, attribute, tuple(f"{way}.{n}" for way in WAYS for n in names[way]))
        if shared:
            self._share()

    @classmethod
    def build(
        cls,
        mixer: str | type[Mixer] | Mixer,
        d_model: int,
        options: Mapping[str, Any] | None = None,
        *,
        shared: bool = False,
        merge: Literal["sum", "concat"] = "sum",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> "Bidirectional":
        """Construct as `linrnn.mixers.build` does, drawing the forward mixer first."""
        ahead, back = (build(mixer, d_model, options, device=device, dtype=dtype) for _ in range(2))
        return cls(ahead, back, shared=shared, merge=merge)

    @property
    def d_output(self) -> int:
        """Channels out."""
        return self.d_model if self.merge == "sum" else 2 * self.d_model

    def extra_repr(self) -> str:
        """Arguments, for ``print(layer)``; the mixers print themselves."""
        return f"shared={self.shared}, merge={self.merge!r}"

    def reset_parameters(self) -> None:
        """Draw every parameter of both mixers anew."""
        for mixer in (self.ahead, self.back):
            mixer.reset_parameters()  # type: ignore[operator]

    def eigenvalues(self) -> Complex[Tensor, " d_state"] | None:
        """Those of both mixers, forward ones first, or of the recurrence they share."""
        ahead = self.ahead.eigenvalues()
        if ahead is None or self.shared:
            return ahead
        back = self.back.eigenvalues()
        return None if back is None else torch.cat([ahead, back])

    def state_spec(self) -> Spec:
        """Specify the state of the forward mixer."""
        return self.ahead.state_spec()

    def signal_spec(self) -> dict[str, Part]:
        """Those of both mixers, by names that say the direction."""
        mixers = {way: getattr(self, way) for way in WAYS}
        return {f"{w}.{name}": part for w in WAYS for name, part in mixers[w].signal_spec().items()}

    @classmethod
    def shared_part(cls, layers: Iterable["Bidirectional"]) -> nn.Module:
        """One part for each direction, or one for both where they share their recurrence."""
        layers = list(layers)
        make = type(layers[0].ahead).shared_part
        ahead = make([layer.ahead for layer in layers])
        both = all(layer.shared for layer in layers)
        return _BothWays(ahead, None if both else make([layer.back for layer in layers]))

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """Return the initial state of the forward mixer."""
        return self.ahead.init_state(batch_size, device=device, dtype=dtype)

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        lengths: Lengths | None = None,
        signals: None = None,
    ) -> tuple[Float[Tensor, "batch time d_output"], State]: ...

    @overload
    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        lengths: Lengths | None = None,
        signals: Signals,
    ) -> tuple[Float[Tensor, "batch time d_output"], State, Signals]: ...

    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        dt: Times | None = None,
        lengths: Lengths | None = None,
        signals: Signals | None = None,
    ) -> (
        tuple[Float[Tensor, "batch time d_output"], State]
        | tuple[Float[Tensor, "batch time d_output"], State, Signals]
    ):
        """Read whole sequences.

        Args:
            x: input (batch, time, d_model).
            state: of the forward mixer, from an earlier call; None starts anew.
            reset: boolean (batch, time); True starts a new sequence at that step, and so ends
                one, for the backward mixer, at the step before.
            dt: time since the step before (batch, time), see `Mixer.forward`. The backward mixer
                reads that until the next step, and 1 where it begins.
            lengths: valid steps of each row when rows are padded at their end, a tensor, an array
                or a list. What padded steps give means nothing, and the state returned has read
                them too.
            signals: as of `Mixer.forward`, of both directions.
        """
        self._check_input(x, time=True)
        times = {} if dt is None else {"dt": self._times("forward", dt, x)[0]}
        stops = None
        if lengths is not None:
            stops = check_lengths("Bidirectional.forward", lengths, x)
        handed = {way: _of(way, signals) for way in WAYS}
        y, state, *outgoing = self.ahead(x, state, reset=reset, **times, **handed["ahead"])
        # a sequence that starts at t ends, read backward, with t; the next to be read is t - 1
        ends = None if reset is None else F.pad(reset[:, 1:], (0, 1))[:, : x.shape[1]]  # (B, T)
        if dt is not None:
            times = {"dt": reverse(until_next(dt, stops, ends), stops)}
        if signals is not None:
            back_signals = handed["back"]["signals"].items()
            handed["back"]["signals"] = {
                name: reverse(s, stops) if name in self.back.carries else s
                for name, s in back_signals
            }
        z, _, *outgoing_back = self.back(
            reverse(x, stops),
            reset=None if ends is None else reverse(ends, stops),
            **times,
            **handed["back"],
        )
        z = reverse(z, stops)
        # (B, T, d_model) or (B, T, 2 d_model)
        y = y + z if self.merge == "sum" else torch.cat([y, z], -1)
        if signals is None:
            return y, state
        new = {f"ahead.{name}": s for name, s in outgoing[0].items()}
        new |= {f"back.{name}": reverse(s, stops) for name, s in outgoing_back[0].items()}
        return y, state, new

    def step(  # type: ignore[override]
        self, x_t: Token, state: State, *, dt: Time | None = None, signals: Signals | None = None
    ) -> tuple[Token, State]:
        """An error: the first output needs the last input."""
        raise ArgumentError(
            "Bidirectional.step: the input must be a whole sequence, got one step of it. "
            "Call the layer on (batch, time, d_model), or stream with the mixer alone."
        )

    def _share(self) -> None:
        """Give the backward mixer the forward one's recurrent parameters."""
        ahead = dict(self.ahead.named_parameters())
        names = [name for name in self.ahead.recurrent_parameters if name in ahead]
        if not names:
            raise ArgumentError(
                "Bidirectional: shared must be False for a mixer that names no "
                f"recurrent_parameters, got {self.shared} for {type(self.ahead).__name__}."
            )
        for path in names:
            owner, _, name = path.rpartition(".")
            setattr(self.back.get_submodule(owner), name, ahead[path])


class _BothWays(nn.Module):
    """The shared signals of both directions."""

    def __init__(self, ahead: nn.Module, back: nn.Module | None) -> None:
        super().__init__()
        self.ahead, self.back = ahead, back

    def forward(self) -> list[dict[str, Tensor]]:
        """For each layer its signals of both directions."""
        ahead = self.ahead()
        back = ahead if self.back is None else self.back()
        ways = [{"ahead": a, "back": b} for a, b in zip(ahead, back, strict=True)]
        return [
            {f"{way}.{name}": z for way, part in layer.items() for name, z in part.items()}
            for layer in ways
        ]


def _of(way: str, signals: Signals | None) -> dict[str, Any]:
    """The argument of one direction: its signals by their own names, or none at all."""
    if signals is None:
        return {}
    names = {n: n.removeprefix(f"{way}.") for n in signals if n.startswith(f"{way}.")}
    return {"signals": {name: signals[n] for n, name in names.items()}}

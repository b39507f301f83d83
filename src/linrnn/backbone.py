"""The one backbone: a residual stack around any mixer, by default the LRU paper's Figure 1."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linrnn import mixers
from linrnn.errors import ArgumentError, DTypeError, check_in, check_positive_int, check_shape
from linrnn.mixers._base import Mixer
from linrnn.mixers._bidirectional import Bidirectional, check_lengths
from linrnn.mixers._state import check_state
from linrnn.nn import GLU, MLP, CausalConv, ChannelMix, Pair, Pool, make_norm
from linrnn.ops import _step_program
from linrnn.ops._step_program import NativeStep, Stack
from linrnn.typing import Bool, Float, Inexact, Integer, ResetMask, Sequence, State, Token

BLOCKS = ("glu", "mlp", "channel_mix", "bare")


class Block(nn.Module):
    """Residual block around a mixer: a chain of parts, each with its norm and its skip.

    Equation::

        pre-norm:   x = x + drop(part(norm(x)))    for each part
        post-norm:  x = norm(x + drop(part(x)))    for each part

    The parts, by the block's kind:

    - ``glu``: ``z -> GLU(drop(GELU(mixer(z))))``, the block of the LRU paper.
    - ``mlp``: the mixer, then a `linrnn.nn.MLP` of four times the width.
    - ``channel_mix``: the mixer, then a `linrnn.nn.ChannelMix`, as in RWKV.
    - ``bare``: the mixer alone, for one that has gates of its own.

    With ``conv_width`` a `linrnn.nn.CausalConv` is the first part of any kind. The state is that of
    the mixer where no other part has one, else a dict: ``mixer``, and ``conv`` or
    ``channel_mix`` or both.

    Args:
        mixer: what mixes along time.
        kind: ``glu``, ``mlp``, ``channel_mix`` or ``bare``.
        norm: ``batch``, ``layer``, ``rms`` or ``none``.
        norm_eps: see `linrnn.nn.make_norm`.
        prenorm: normalise before each part (True) or after its skip (False).
        dropout: probability, on the output of each part, and before the GLU.
        conv_width: taps of the convolution; 0 leaves it out.
        layer, n_layers: place in the stack, counted from 0, for the initial channel mixing.
        device, dtype: of the parameters, as in torch.nn.
    """

    def __init__(
        self,
        mixer: Mixer,
        *,
        kind: Literal["glu", "mlp", "channel_mix", "bare"] = "glu",
        norm: str = "batch",
        norm_eps: float | None = None,
        prenorm: bool = True,
        dropout: float = 0.0,
        conv_width: int = 0,
        layer: int = 0,
        n_layers: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_in("Block", "kind", kind, BLOCKS)
        if isinstance(conv_width, bool) or not isinstance(conv_width, int) or conv_width < 0:
            raise ArgumentError(
                f"Block: conv_width must be an integer of at least 0, got {conv_width!r}."
            )
        width = mixer.d_model
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.kind, self.prenorm = kind, prenorm
        self.mixer = mixer
        self.norm = make_norm(norm, width, eps=norm_eps, **factory)
        self.glu = GLU(width, **factory) if kind == "glu" else None
        self.dropout = nn.Dropout(dropout)
        self._parts = [("mixer", "norm")]  # each with its norm, in the order of computation
        self._stateful = ["mixer"]

        def add(name: str, part: nn.Module, first: bool = False) -> None:
            self._add(name, part, make_norm(norm, width, eps=norm_eps, **factory), first)

        if conv_width:
            add("conv", CausalConv(width, conv_width, **factory), first=True)
        if kind == "mlp":
            add("mlp", MLP(width, **factory))
        if kind == "channel_mix":
            add("channel_mix", ChannelMix(width, layer=layer, n_layers=n_layers, **factory))

    def _add(self, name: str, part: nn.Module, norm: nn.Module, first: bool) -> None:
        self.add_module(name, part)
        self.add_module(f"{name}_norm", norm)
        self._parts.insert(0 if first else len(self._parts), (name, f"{name}_norm"))
        if not isinstance(part, MLP):
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

    def forward(
        self,
        x: Sequence,
        state: State | None = None,
        *,
        reset: ResetMask | None = None,
        lengths: Integer[Tensor, " batch"] | None = None,
    ) -> tuple[Sequence, State]:
        """Read a whole sequence: see `Mixer.forward`; ``lengths`` is for a mixer that takes it."""

        def read(name: str, z: Tensor, before: State | None) -> tuple[Tensor, State]:
            part = cast(Callable[..., tuple[Tensor, State]], self._modules[name])
            if name != "mixer":
                return part(z, before, reset)
            if lengths is None:
                return part(z, before, reset=reset)
            return part(z, before, reset=reset, lengths=lengths)

        return self._chain(x, state, read, F.gelu)

    def step(self, x_t: Token, state: State) -> tuple[Token, State]:
        """Read one time step."""

        def read(name: str, z: Tensor, before: State | None) -> tuple[Tensor, State]:
            return cast(Any, self._modules[name]).step(z, before)  # type: ignore[no-any-return]

        return self._chain(x_t, state, read, _gelu_of_few)

    def _chain(
        self,
        x: Tensor,
        state: State | None,
        read: Callable[[str, Tensor, State | None], tuple[Tensor, State]],
        gelu: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, State]:
        """Every part with its skip; ``read(part, z, state)`` is a whole sequence or one step."""
        # each look-up of a module and each call of one that does nothing is felt by a single step
        modules = cast(dict[str, Callable[[Tensor], Tensor]], self._modules)
        glu, drop = modules.get("glu"), modules["dropout"] if self.dropout.training else None
        before, after = self._split(state, x), {}
        for name, norm in self._parts:
            z = modules[norm](x) if self.prenorm else x
            if name == "mlp":
                z = modules[name](z)
            else:
                z, after[name] = read(name, z, before[name])
            if name == "mixer" and glu is not None:
                z = gelu(z)
                z = glu(z if drop is None else drop(z))
            x = x + (z if drop is None else drop(z))
            if not self.prenorm:
                x = modules[norm](x)
        return x, (after["mixer"] if len(self._stateful) == 1 else cast(State, after))

    def native_parts(self) -> list[tuple[NativeStep, NativeStep]] | None:
        """What computes a step of each part and of its norm, None where there is no kernel."""
        if not self.prenorm or self.glu is not None:
            return None
        found = []
        for name, norm_name in self._parts:
            describe = getattr(self._modules[name], "native_step", None)
            part = None if describe is None else describe()
            norm = _step_program.norm(self._modules[norm_name], self.mixer.d_model)
            if part is None or norm is None:
                return None
            found.append((norm, part))
        return found

    def apart(self, state: State) -> list[State | None]:
        """The state of each part, None where there is none, in the order of computation."""
        if len(self._stateful) == 1:
            return [state]
        states = state if isinstance(state, dict) else {}
        return [states.get(name) for name, _ in self._parts]

    def together(self, states: list[State]) -> State:
        """The state of the block: the inverse of `apart`."""
        if len(self._stateful) == 1:
            return states[0]
        return {name: state for (name, _), state in zip(self._parts, states, strict=True)}

    def _split(self, state: State | None, x: Tensor) -> dict[str, State | None]:
        """The state of each part, those that do not check their own checked here."""
        if len(self._stateful) == 1:
            return {"mixer": state}
        if state is None:
            state = self.init_state(len(x), device=x.device)
        if not isinstance(state, dict) or state.keys() != set(self._stateful):
            got = (
                f"a dict with {sorted(state)}" if isinstance(state, dict) else type(state).__name__
            )
            raise DTypeError(
                f"Block: state must be a dict with {sorted(self._stateful)}, got {got}. "
                "Pass what this block returned for the same batch, or None."
            )
        for name in self._stateful:
            if name != "mixer" and not self._keeps(name, state[name], x):
                like = cast(CausalConv, getattr(self, name)).init_state(len(x), device=x.device)
                state = {**state, name: check_state("Block", state[name], like, f"state[{name!r}]")}
        return cast(dict[str, State | None], state)

    def _keeps(self, name: str, past: object, x: Tensor) -> bool:
        """Whether a part's state fits at a glance, which spares every step the long check."""
        part = cast(CausalConv | ChannelMix, self._modules[name])
        steps = part.width - 1 if isinstance(part, CausalConv) else 1
        return (
            type(past) is Tensor
            and past.shape == (x.shape[0], steps, x.shape[-1])
            and past.dtype is torch.float32
            and x.dtype is torch.float32
            and past.device == x.device
        )


class SequenceModel(nn.Module):
    r"""Encoder, a stack of residual blocks around one kind of mixer, pooling, linear head.

    Equation::

        x = encoder(input);   x = block_i(x) for each layer;   y = head(pool(x))

    Args:
        d_input: channels of a real input, or the vocabulary size when ``encoder="tokens"``.
        d_output: outputs of the head: classes, regression targets, or vocabulary.
        mixer: a name from `linrnn.mixers.names`.
        mixer_options: keyword arguments of that mixer besides ``d_model``. A mixer that depends
            on its place in the stack, with options ``layer`` and ``n_layers``, is told it.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        norm: ``batch``, ``layer``, ``rms`` or ``none``.
        norm_eps: see `linrnn.nn.make_norm`.
        prenorm: normalise before the mixer (True) or after the skip (False).
        dropout: probability, on what each part of a block adds, and before the GLU.
        block: ``glu``, ``mlp``, ``channel_mix`` or ``bare``: see `Block`.
        conv_width: taps of a causal convolution before each mixer; 0 leaves it out. A minGRU in
            blocks as published has ``block="mlp", conv_width=4, norm="rms"``.
        bidirectional: read in both directions and add the two; see `linrnn.mixers.Bidirectional`.
            Such a model needs whole sequences: it has no `step`.
        pool: ``mean`` or ``last`` over time for one output a sequence, ``none`` for one a step.
        encoder: ``linear`` for real inputs (batch, time, d_input), ``tokens`` for integer ones
            (batch, time).
        encoder_norm: normalise what the encoder gives, by the same ``norm``, as RWKV does.
        final_norm: normalise once more before pooling and head, by the same ``norm``.
        head_bias: add a bias to each output.
        tie_embeddings: the head's matrix is that of the embedding, initially normal with variance
            1 / d_model; needs tokens, and as many outputs as there are tokens.
        documents: 1, or 2 for a question about a pair: both are read by the same layers, and
            ``y = head(pair(pool(x_1), pool(x_2)))`` with `linrnn.nn.Pair`.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: an unknown mixer, option of the mixer, norm, pool or encoder.
        ArgumentError: a size below 1, a probability outside [0, 1).
        ShapeError, DTypeError: an input that does not fit.

    Example:
        >>> model = SequenceModel(1, 10, mixer="lru", d_model=16, n_layers=2)
        >>> y, state = model(torch.randn(3, 50, 1))
        >>> y.shape
        torch.Size([3, 10])

    Reference:
        Orvieto et al. 2023, arXiv:2303.06349, Figure 1.
    """

    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        mixer: str = "lru",
        mixer_options: Mapping[str, Any] | None = None,
        d_model: int = 64,
        n_layers: int = 4,
        norm: Literal["batch", "layer", "rms", "none"] = "batch",
        norm_eps: float | None = None,
        prenorm: bool = True,
        dropout: float = 0.0,
        block: Literal["glu", "mlp", "channel_mix", "bare"] = "glu",
        conv_width: int = 0,
        bidirectional: bool = False,
        pool: Literal["mean", "last", "none"] = "mean",
        encoder: Literal["linear", "tokens"] = "linear",
        encoder_norm: bool = False,
        final_norm: bool = False,
        head_bias: bool = True,
        tie_embeddings: bool = False,
        documents: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = "SequenceModel"
        check_positive_int(
            where, d_input=d_input, d_output=d_output, d_model=d_model, n_layers=n_layers
        )
        check_in(where, "encoder", encoder, ("linear", "tokens"))
        if not 0 <= dropout < 1:
            raise ArgumentError(f"{where}: dropout must be in [0, 1), got {dropout}.")
        if documents not in (1, 2) or (documents == 2 and pool == "none"):
            raise ArgumentError(
                f"{where}: documents must be 1, or 2 with a pool over time, got {documents} with "
                f"pool={pool!r}."
            )
        self.d_input, self.d_output, self.d_model = d_input, d_output, d_model
        self.documents = documents
        self._reads_tokens = encoder == "tokens"
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder: nn.Module
        if encoder == "tokens":
            self.encoder = nn.Embedding(d_input, d_model, **factory)
        else:
            self.encoder = nn.Linear(d_input, d_model, **factory)
        self.bidirectional = bidirectional
        build = Bidirectional.build if bidirectional else mixers.build
        options = dict(mixer_options or {})
        placed = "n_layers" in inspect.signature(mixers.load(mixer)).parameters
        self.blocks = nn.ModuleList()
        for layer in range(n_layers):
            place: dict[str, Any] = {"layer": layer, "n_layers": n_layers}
            own = options | place if placed else options
            self.blocks.append(
                Block(
                    build(mixer, d_model, own, **factory),
                    kind=block,
                    norm=norm,
                    norm_eps=norm_eps,
                    prenorm=prenorm,
                    dropout=dropout,
                    conv_width=conv_width,
                    **place,
                    **factory,
                )
            )
        self.pool = Pool(pool)
        outer = (
            make_norm(norm, d_model, eps=norm_eps, **factory) if wanted else None
            for wanted in (encoder_norm, final_norm)
        )
        self.encoder_norm, self.final_norm = outer
        self.pair = Pair(d_model, **factory) if documents == 2 else None
        self.head = nn.Linear(d_model, d_output, bias=head_bias, **factory)
        self.tie_embeddings = tie_embeddings
        if tie_embeddings:
            self._tie()

    def _tie(self) -> None:
        if not isinstance(self.encoder, nn.Embedding) or self.d_input != self.d_output:
            raise ArgumentError(
                "SequenceModel: tie_embeddings must be False unless tokens go in and as many "
                f"outputs come out, got d_input={self.d_input} and d_output={self.d_output}."
            )
        nn.init.normal_(self.encoder.weight, std=self.d_model**-0.5)  # logits of variance 1
        self.head.weight = self.encoder.weight

    @property
    def mixers(self) -> list[Mixer]:
        """The mixer of every layer, first to last."""
        return [cast(Mixer, block.mixer) for block in self.blocks]

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, State]:
        """The state before the first step: one tree a layer, and what the pooling has summed.

        Of pairs of documents it has two rows each, neighbours.
        """
        weight, batch_size = self.head.weight, batch_size * self.documents
        device, real = device or weight.device, dtype or weight.dtype
        return {
            "layers": [
                cast(Block, b).init_state(batch_size, device=device, dtype=dtype)
                for b in self.blocks
            ],
            "pool": cast(
                State, self.pool.init_state(batch_size, self.d_model, device=device, dtype=real)
            ),
        }

    def forward(
        self,
        x: Float[Tensor, "batch *documents time d_input"]
        | Integer[Tensor, "batch *documents time"],
        state: State | None = None,
        *,
        reset: Bool[Tensor, "batch *documents time"] | None = None,
        lengths: Integer[Tensor, "batch *documents"] | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_output"], dict[str, State]]:
        """Read a whole sequence.

        Args:
            x: (batch, time, d_input) real, or (batch, time) token ids.
            state: what an earlier call returned; None starts anew.
            reset: boolean (batch, time); True starts a new sequence at that step.
            lengths: valid steps of each row when rows are padded at their end; the pooling, and
                mixers that read backward, ignore the rest. The returned state has read the
                padding too.

        With pairs of documents x, reset and lengths have an axis of 2 after the batch.

        Returns:
            ``(y, state)``: y is (batch, d_output), or (batch, time, d_output) for pool "none".
        """
        z, state = self.features(x, state, reset=reset, lengths=lengths)
        return self.head(z), state

    def features(
        self,
        x: Float[Tensor, "batch *documents time d_input"]
        | Integer[Tensor, "batch *documents time"],
        state: State | None = None,
        *,
        reset: Bool[Tensor, "batch *documents time"] | None = None,
        lengths: Integer[Tensor, "batch *documents"] | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_model"], dict[str, State]]:
        """What the head reads, ``(z, state)``: `forward` but for its last matrix product.

        Where the vocabulary is large and only the last output is wanted, that product is what
        most of the memory, and much of the time, would go to.
        """
        self._check(x, time=True)
        state = self.init_state(len(x), device=x.device) if state is None else state
        if self.documents > 1:
            x, reset, lengths = _apart(x, reset, lengths)
        if lengths is not None:
            check_lengths("SequenceModel", lengths, x)
        layers, pool = _split(state, len(self.blocks))
        z, new = self._encode(x), []
        ends = lengths if self.bidirectional else None
        for block, before in zip(self.blocks, layers, strict=True):
            z, after = block(z, before, reset=reset, lengths=ends)
            new.append(after)
        if self.final_norm is not None:
            z = self.final_norm(z)
        z, pool = self.pool(z, pool, reset=reset, lengths=lengths)
        if self.pair is not None:
            z = self.pair(z.unflatten(0, (-1, 2)))
        return z, {"layers": new, "pool": cast(State, pool)}

    def step(
        self, x_t: Float[Tensor, "batch d_input"] | Integer[Tensor, " batch"], state: State
    ) -> tuple[Inexact[Tensor, "batch d_output"], dict[str, State]]:
        """Read one time step; with pooling, the output is for everything read so far."""
        if self.documents > 1:
            raise ArgumentError(
                "SequenceModel.step: documents must be 1 to read step by step, got "
                f"{self.documents}. Call the model on whole documents."
            )
        self._check(x_t, time=False)
        layers, pool = _split(state, len(self.blocks))
        z, new = self._encode(x_t), []
        done = self._native_step(z, layers)
        if done is not None:
            return done
        for block, before in zip(self.blocks, layers, strict=True):
            z, after = cast(Block, block).step(z, before)
            new.append(after)
        if self.final_norm is not None:
            z = self.final_norm(z)
        z, pool = self.pool.step(z, pool)
        return _few(self.head, z), {"layers": new, "pool": cast(State, pool)}

    def _native_step(
        self, z: Tensor, layers: list[State]
    ) -> tuple[Tensor, dict[str, State]] | None:
        """Everything behind the encoder in one call, where there are kernels for all of it."""
        if self.pool.kind != "none" or type(self.blocks[0]) is not Block or self.pair is not None:
            return None
        blocks = cast(list[Block], list(self.blocks))
        parts = [block.apart(state) for block, state in zip(blocks, layers, strict=True)]
        states = [state for part in parts for state in part]
        done = _step_program.stack_step(self, self._native_stack, z, states)
        if done is None:
            return None
        y, after = done[0], iter(done[1])
        new = [b.together([next(after) for _ in p]) for b, p in zip(blocks, parts, strict=True)]
        return y, {"layers": new, "pool": {}}

    def _native_stack(self) -> Stack | None:
        """What computes a step of all layers and the head."""
        found = [cast(Block, block).native_parts() for block in self.blocks]
        final_norm = _step_program.norm(self.final_norm, self.d_model)
        head = _step_program.linear(self.head)
        if final_norm is None or head is None or any(parts is None for parts in found):
            return None
        layers = [part for parts in found for part in cast(list[Any], parts)]
        return Stack(tuple(layers), final_norm, head)

    def _encode(self, x: Tensor) -> Tensor:
        z: Tensor = self.encoder(x)
        return z if self.encoder_norm is None else cast(Tensor, self.encoder_norm(z))

    def _check(self, x: Tensor, *, time: bool) -> None:
        pairs = {"documents": 2} if self.documents > 1 else {}
        axes: dict[str, int | None] = {"batch": None, **pairs, "time": None}
        axes["d_input"] = self.d_input
        if not time:
            del axes["time"]
        if self._reads_tokens:
            del axes["d_input"]
            if x.is_floating_point() or x.is_complex():
                raise DTypeError(f"SequenceModel: x must be integer token ids, got {x.dtype}.")
        check_shape("SequenceModel", "x" if time else "x_t", x.shape, axes)


def _apart(
    x: Tensor, reset: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Both documents of each pair as rows of one batch."""
    axes: dict[str, int | None] = {"batch": len(x), "documents": 2}
    if lengths is not None:
        check_shape("SequenceModel", "lengths", lengths.shape, axes)
    ends, cut = (None if v is None else v.flatten(0, 1) for v in (lengths, reset))
    return x.flatten(0, 1), cut, ends


def _gelu_of_few(z: Tensor) -> Tensor:
    """GELU of one step: what PyTorch calls for float32 on a CPU takes longer to start than to run.

    Measured for 256 numbers in a model whose weights fill the second-level cache: 28 us a call,
    and 14 us for the definition, ``z`` times the normal distribution function.
    """
    if z.dtype == torch.float32 and z.device.type == "cpu" and not torch.compiler.is_compiling():
        phi: Tensor = torch.special.ndtr(z)
        return z * phi
    return F.gelu(z)


def _few(linear: nn.Linear, z: Tensor) -> Tensor:
    """``linear(z)`` for a few rows, by a kernel where it can."""
    done = _step_program.layer_step(linear, lambda: _step_program.linear(linear), z, None)
    return cast(Tensor, linear(z)) if done is None else done[0]


def _split(state: State, n_layers: int) -> tuple[list[State], dict[str, Tensor]]:
    if not (isinstance(state, dict) and {"layers", "pool"} <= set(state)):
        raise DTypeError(
            "SequenceModel: state must be what this model returned "
            f"({{'layers': ..., 'pool': ...}}), got {type(state).__name__}."
        )
    layers = list(cast(list[State], state["layers"]))
    if len(layers) != n_layers:
        raise ArgumentError(
            f"SequenceModel: state must hold {n_layers} layers like the model, got {len(layers)}."
        )
    return layers, cast(dict[str, Tensor], state["pool"])

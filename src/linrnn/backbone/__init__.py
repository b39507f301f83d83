"""The one backbone: a residual stack around any mixer, by default the LRU paper's Figure 1."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from linrnn._options.declared import OF_THE_MODEL, Option, declared
from linrnn._process.memory import bounded
from linrnn.backbone.model import Model as Model
from linrnn.backbone.pattern import MOST_LAYERS, MixerLike, choose, label, labels
from linrnn.backbone.signals import AHEAD, Shared, handed, made_ahead
from linrnn.backbone.tiers import (
    Marks,
    Reader,
    Shape,
    as_tiers,
    joined,
    read_in_graph,
    read_step,
    split_state,
)
from linrnn.block import BLOCKS, Block, check_part_options, has_width
from linrnn.compute.arguments import check_like_parameters, check_tensor
from linrnn.compute.modes import eager
from linrnn.compute.sequence_parallel import current, refuse
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import (
    ArgumentError,
    DTypeError,
    check_at_most,
    check_in,
    check_positive,
    check_positive_int,
    check_probability,
    check_shape,
)
from linrnn.mixers import Mixer, check_timed
from linrnn.nn import CausalConv, ChannelMix, Pair, Pool, Resample, make_head, make_norm
from linrnn.nn.channel_mix import start_ends
from linrnn.nn.head import hand_on
from linrnn.nn.lengths import as_lengths, check_lengths, steps_before, without_padding
from linrnn.nn.norm import normalise
from linrnn.state_spec import check_start
from linrnn.typing import Bool, Float, Inexact, Integer, Lengths, Signals, State, Time

__all__ = [
    "Around",
    "Model",
    "SequenceModel",
    "model_options",
]

Around: TypeAlias = Callable[
    [Callable[..., tuple[Tensor, State]], Tensor, State], tuple[Tensor, State]
]
"""Calls a block for `SequenceModel.features_of`. The tree beside z holds the block's state,
and of a layer with signals these too, so that nothing goes in or comes out but by arguments."""


def model_options(leave_out: Collection[str] = (), **defaults: Any) -> list[Option]:
    """The options of a model, read from the constructor of `SequenceModel`.

    Args:
        leave_out: those that are no choice.
        **defaults: used instead of the constructor's.

    Example:
        >>> [o.default for o in model_options(dropout=0.1) if o.name in ("d_model", "dropout")]
        [64, 0.1]
    """
    options = declared(SequenceModel, (*OF_THE_MODEL, *leave_out))
    return [o._replace(default=defaults.get(o.name, o.default)) for o in options]


_WHERE = "SequenceModel"


class SequenceModel(Model):
    r"""Encoder, a stack of residual blocks around mixers, pooling, linear head.

    Equation::

        x = encoder(input);   x = block_i(x) for each layer;   y = head(pool(x))

    With ``tiers`` the blocks between form tiers, each with its own rate and width::

        tier(x) = x' + blocks(x'),   x' = x + up(tier_below(down(x)))     innermost: x + blocks(x)

    where `linrnn.nn.Resample` does the down- and up-pooling; what is made of a group of steps comes
    back a group later, so the model stays causal and is streamed as any other. Groups begin at a
    reset. With ``unet`` there are blocks before ``down``, and each block after ``up`` adds the
    input of its counterpart to its output.

    Args:
        d_input: channels of a real input, or the vocabulary size when ``encoder="tokens"``.
        d_output: outputs of the head: classes, regression targets, or vocabulary.
        mixer: a name from `linrnn.mixers.names`, an import path such as ``pkg.module:Mine``, a
            class, an instance, or a pattern of these, ``("lru", "lru", "attention")`` or
            ``"2*lru,attention"``, which is repeated along the depth. An instance is taken as it
            is where one layer alone has it; else each has a copy with parameters drawn anew.
        mixer_options: keyword arguments of that mixer besides ``d_model``. For a pattern each goes
            to every mixer that has it, ``{"attention": {"n_heads": 2}}`` to the mixer of that name,
            or class, alone. A mixer that depends on its place in the stack, with options ``layer``
            and ``n_layers``, is told it.
        d_model: width of the residual stream, in channels.
        n_layers: number of residual blocks; with ``tiers`` of each tier.
        tiers: steps that are pooled into one between each two tiers of a stack at several rates, as
            in SaShiMi, ``(4, 4)``; see below. Default: one rate.
        expand: width of a tier, in multiples of that above it.
        unet: with ``tiers``, read ``n_layers`` blocks on the way down as well.
        norm: normalisation of each block: ``batch``, ``layer``, ``rms`` or ``none``.
        norm_eps: added to the variance, or mean square, under the root of every norm. Default:
            PyTorch's, 1e-5, and for ``rms`` the rounding of the dtype.
        prenorm: normalise before the mixer; False normalises after the skip connection.
        out_norm: names of mixers, or classes, in whose blocks the norms stand behind the parts,
            ``x + norm(part(x))``, as around the attention of OLMo; with ``prenorm`` True alone.
        skip: add the input of each part of a block to its output. False leaves a plain stack, in
            which each layer reads the output of the one before.
        dropout: probability of dropping a channel, on what each part of a block adds, and before
            the GLU.
        block: what follows the mixer in a block, a row of `linrnn.block.BLOCKS`: GELU and GLU
            (``glu``), with an MLP behind it as in SaShiMi (``glu_mlp``), an MLP (``mlp``), RWKV's
            channel mixing (``channel_mix``; without a receptance, as in RWKV-7, ``relu_mix``), an
            MLP gated by GELU as in Hawk and Griffin
            (``geglu``) or by SiLU (``swiglu``), one with squared ReLUs (``relu2``), a mixture of
            experts (``moe``), an MLP behind mixers without an up-projection of their
            own as in xLSTM (``xlstm``), or nothing (``bare``).
        block_pattern: kinds of blocks where they differ, repeated along the depth, instead of
            ``block``.
        block_options: arguments of the parts ``swiglu``, ``relu2`` and ``moe`` of blocks, by the
            name of the part: ``{"moe": {"n_experts": 16}}``. See `linrnn.nn.MoE`.
        residual_scale: factor of what each part of a block adds, as in Granite.
        skip_scale: factor of what skips each part of a block, as in MiniMax.
        conv_width: taps of a causal convolution before each mixer; 0 leaves it out. A minGRU in
            blocks as published has ``block="mlp", conv_width=4, norm="rms"``.
        d_ffn: hidden width of a block's part that has one, ``expand`` times that in the next tier.
            Default: 4 d_model; of ``geglu`` 3 d_model, of ``swiglu`` 8/3, rounded up, of ``xlstm``
            4/3, up to a multiple of 64.
        bidirectional: read in both directions and add the two: see `linrnn.mixers.Bidirectional`.
            Such a model needs whole sequences and cannot be streamed: it has no `step`.
        pool: how the outputs over time become one: their ``mean``, the ``last`` one, or ``none``
            for one output a step.
        encoder: ``linear`` for real inputs (batch, time, d_input), ``tokens`` for integer ones
            (batch, time).
        identity_ends: ends that hand on what they get and are not learned: ``none``, ``in`` (the
            encoder) or ``both`` (the head as well). For a layer alone, with nothing around it.
        ends_init: how the weights of both ends start: ``default``, as in torch.nn, or ``rwkv``, as
            in RWKV's training program: the encoder uniform within 1e-4, the head orthogonal with
            gain 1/2, times the root of d_output / d_model where that is above 1.
        encoder_norm: normalise what the encoder gives, by the same ``norm``, as RWKV does.
        encoder_scale: what the encoder gives is multiplied by this number, as Griffin's embeddings
            are by the root of their width.
        final_norm: normalise once more before the pooling and the head, by the same ``norm``.
        head_bias: add a bias to each output.
        head_scale: what the head reads is multiplied by this number, and so are outputs without
            a bias.
        logit_soft_cap: bound of each output, ``cap tanh(y / cap)`` for y. Default: none.
        tie_embeddings: one matrix for the embedding of tokens and for the head, which must be of
            the same size; it is initially normal with variance 1 / d_model.
        documents: 1, or 2 for a question about a pair: both are read by the same layers, and
            ``y = head(pair(pool(x_1), pool(x_2)))`` with `linrnn.nn.Pair`.
        device, dtype: of the parameters, as in torch.nn.

    Raises:
        UnknownNameError: an unknown mixer, option of the mixer, norm, pool or encoder.
        ArgumentError: a size below 1, a probability outside [0, 1), ends that cannot hand on.
        ShapeError, DTypeError: an input that does not fit.

    Example:
        >>> model = SequenceModel(1, 10, mixer="lru", d_model=16, n_layers=2)
        >>> y, state = model(torch.randn(3, 50, 1))
        >>> y.shape
        torch.Size([3, 10])

    Reference:
        Orvieto et al. 2023, arXiv:2303.06349, Figure 1.
    """

    head: nn.Linear

    @bounded("the model", "Lower d_model, n_layers, or the sizes of the mixer or the vocabulary.")
    def __init__(
        self,
        d_input: int,
        d_output: int,
        *,
        mixer: MixerLike = "lru",
        mixer_options: Mapping[str, Any] | None = None,
        d_model: int = 64,
        n_layers: int = 4,
        tiers: tuple[int, ...] = (),
        expand: int = 2,
        unet: bool = False,
        norm: Literal["batch", "layer", "rms", "none"] = "batch",
        norm_eps: float | None = None,
        prenorm: bool = True,
        out_norm: tuple[str, ...] = (),
        skip: bool = True,
        dropout: float = 0.0,
        block: Literal[
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
        block_pattern: tuple[str, ...] = (),
        block_options: Mapping[str, Any] | None = None,
        residual_scale: float = 1.0,
        skip_scale: float = 1.0,
        conv_width: int = 0,
        d_ffn: int | None = None,
        bidirectional: bool = False,
        pool: Literal["mean", "last", "none"] = "mean",
        encoder: Literal["linear", "tokens"] = "linear",
        identity_ends: Literal["none", "in", "both"] = "none",
        ends_init: Literal["default", "rwkv"] = "default",
        encoder_norm: bool = False,
        encoder_scale: float = 1.0,
        final_norm: bool = False,
        head_bias: bool = True,
        head_scale: float = 1.0,
        logit_soft_cap: float | None = None,
        tie_embeddings: bool = False,
        documents: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"d_input": d_input, "d_output": d_output, "d_model": d_model, "n_layers": n_layers}
        shape = Shape(n_layers, as_tiers(_WHERE, tiers), expand, unet)
        _check_stack(sizes, shape, dropout, bidirectional)
        check_in(_WHERE, "ends_init", ends_init, ("default", "rwkv"))
        _check_ends(encoder, identity_ends, documents, pool, encoder_scale, logit_soft_cap)
        check_positive(_WHERE, head_scale=head_scale)
        kinds = _kinds(block, block_pattern, n_layers)
        check_part_options(_WHERE, block_options)
        self.d_input, self.d_output, self.d_model = d_input, d_output, d_model
        self.encoder_scale, self.documents = encoder_scale, documents
        self.head_scale = head_scale
        self.bidirectional, self.tie_embeddings = bidirectional, tie_embeddings
        self.shape = shape
        self._reads_tokens = encoder == "tokens"
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder: nn.Module = (nn.Embedding if self._reads_tokens else nn.Linear)(
            d_input, d_model, **factory
        )
        parts: dict[str, Any] = {
            "norm": norm,
            "norm_eps": norm_eps,
            "prenorm": prenorm,
            "skip": skip,
            "skip_scale": skip_scale,
        }
        parts |= {"dropout": dropout, "conv_width": conv_width, "options": block_options}
        parts |= {"residual_scale": residual_scale}
        layers = mixer, mixer_options, kinds, d_ffn, out_norm
        self.blocks = self._stack(*layers, parts, factory)
        self.shared = Shared(_WHERE, self.mixers, self.shape.runs(), AHEAD)
        self.between = self._joints(factory)
        self.pool = Pool(pool)
        norms = [
            make_norm(norm, d_model, eps=norm_eps, **factory) if present else None
            for present in (encoder_norm, final_norm)
        ]
        self.encoder_norm, self.final_norm = norms
        self.pair = Pair(d_model, **factory) if documents == 2 else None
        self.head = make_head(d_model, d_output, logit_soft_cap, bias=head_bias, **factory)
        if ends_init == "rwkv":
            _check_apart(tie_embeddings, identity_ends)
            start_ends(self.encoder.weight, self.head.weight)
        if tie_embeddings:
            self._tie()
        ends = {"none": (), "in": (self.encoder,), "both": (self.encoder, self.head)}
        for end in ends[identity_ends]:
            hand_on(_WHERE, "identity_ends", identity_ends, end)

    def _stack(
        self,
        mixer: MixerLike,
        mixer_options: Mapping[str, Any] | None,
        kinds: Sequence[str],
        d_ffn: int | None,
        out_norm: tuple[str, ...],
        parts: Mapping[str, Any],
        factory: Mapping[str, Any],
    ) -> nn.ModuleList:
        """The blocks, in the order in which they are read; those of a tier are as wide as it is."""
        names = labels(mixer)
        for name in out_norm:
            check_in(_WHERE, "out_norm", name, names)
        blocks, depths = nn.ModuleList(), self.shape.depths()
        runs = self.shape.runs()
        with_width = [kind for kind in kinds if has_width(kind)]
        without = set(kinds).difference(with_width) if with_width else ()
        choices = choose(_WHERE, mixer, mixer_options, len(depths), runs, AHEAD)
        for choice, depth, kind in zip(choices, depths, cycle(kinds), strict=False):
            times = self.shape.expand**depth
            layer = choice.build(times * self.d_model, both_ways=self.bidirectional, **factory)
            width = None if d_ffn is None or kind in without else times * d_ffn
            place: dict[str, Any] = {name: choice.place[name] for name in ("layer", "n_layers")}
            place |= {"kind": kind, "out_norm": label(choice.mixer) in out_norm}
            blocks.append(Block(layer, d_ffn=width, **place, **parts, **factory))
        return blocks

    def _joints(self, factory: Mapping[str, Any]) -> nn.ModuleList:
        """The modules that pool the steps between each two tiers."""
        joints, depths, expand = nn.ModuleList(), self.shape.depths(), self.shape.expand
        for tier, factor in enumerate(self.shape.tiers):
            timed = any(m.timed for m, k in zip(self.mixers, depths, strict=True) if k > tier)
            width = expand**tier * self.d_model
            joints.append(Resample(width, factor, expand=expand, timed=timed, **factory))
        return joints

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

    @property
    def timed(self) -> bool:
        """Whether a layer knows the time between steps."""
        return any(mixer.timed for mixer in self.mixers)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, State]:
        """The state before the first step: one tree a layer, and what the pooling has summed.

        With ``tiers`` also what is between each two. Pairs of documents have two rows each,
        neighbours.
        """
        check_start("SequenceModel", batch_size, device, dtype)
        weight = cast(Tensor, self.encoder.weight)
        batch_size = batch_size * self.documents
        device, real = device or weight.device, dtype or weight.dtype
        state: dict[str, Any] = {
            "layers": [
                cast(Block, b).init_state(batch_size, device=device, dtype=dtype)
                for b in self.blocks
            ],
            "pool": self.pool.init_state(batch_size, self.d_model, device=device, dtype=real),
        }
        if self.between:
            state["tiers"] = [
                cast(Resample, part).init_state(batch_size, device=device, dtype=dtype)
                for part in self.between
            ]
        return state

    def forward(
        self,
        x: Float[Tensor, "batch *documents time d_input"]
        | Integer[Tensor, "batch *documents time"],
        state: State | None = None,
        *,
        reset: Bool[Tensor, "batch *documents time"] | None = None,
        lengths: Lengths | None = None,
        dt: Float[Tensor, "batch *documents time"] | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_output"], dict[str, State]]:
        """Read a whole sequence.

        Args:
            x: (batch, time, d_input) of the dtype of the parameters, or (batch, time) token ids,
                integers of any dtype.
            state: what an earlier call returned; None starts anew.
            reset: boolean (batch, time); True starts a new sequence at that step.
            lengths: valid steps of each row when rows are padded at their end, a tensor, an array
                or a list. The rest is read as zeros, whatever is there, and neither the pooling,
                nor batch norm as it trains, nor mixers that read backward count it. The returned
                state has read the padding too.
            dt: time since the step before (batch, time), see `Mixer.forward`. It is for the layers
                whose mixers are `timed`; the others count steps, and so does the pooling.

        With pairs of documents x, reset, lengths and dt have an axis of 2 after the batch.

        Returns:
            ``(y, state)``: y is (batch, d_output), or (batch, time, d_output) for pool "none".
        """
        z, state = self.features(x, state, reset=reset, lengths=lengths, dt=dt)
        return self.head(z), state

    def features(
        self,
        x: Float[Tensor, "batch *documents time d_input"]
        | Integer[Tensor, "batch *documents time"],
        state: State | None = None,
        *,
        reset: Bool[Tensor, "batch *documents time"] | None = None,
        lengths: Lengths | None = None,
        dt: Float[Tensor, "batch *documents time"] | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_model"], dict[str, State]]:
        """The input of the head and the state, ``(z, state)``: `forward` without its last product.

        Where the vocabulary is large and only the last output is wanted, that product is what
        most of the memory, and much of the time, would go to.
        """
        x = self._check(x, time=True)
        if lengths is not None:
            lengths = self._lengths(x, lengths)  # here too, for the gradient of the encoder
            x = without_padding(x, steps_before(lengths, x.shape[lengths.ndim], x.device))
        return self.features_of(self.encoder(x), state, reset=reset, lengths=lengths, dt=dt)

    def features_of(
        self,
        z: Float[Tensor, "batch *documents time d_model"],
        state: State | None = None,
        *,
        reset: Bool[Tensor, "batch *documents time"] | None = None,
        lengths: Lengths | None = None,
        dt: Float[Tensor, "batch *documents time"] | None = None,
        valid: Bool[Tensor, "batch *documents time"] | None = None,
        around: Around | None = None,
    ) -> tuple[Inexact[Tensor, "batch *time d_model"], dict[str, State]]:
        """`features` of what the encoder gives, z, which may be embeddings of another origin.

        ``valid`` is boolean (batch, time), False at padding, which may be anywhere: for a model
        without a pool, instead of lengths.

        ``around(read, z, state)`` calls ``read(z, state)``, a block, and returns what that does; it
        sees what goes in, and may have it computed again for the gradient. Its state is a tree of
        tensors, in which are the signals as well that the layer is handed and makes.
        """
        if current() is not None:
            self._check_split(lengths)
        check_timed("SequenceModel.forward", dt, self.mixers)
        fresh = state is None
        state = self.init_state(z.shape[0], device=z.device) if state is None else state
        stops = None if lengths is None else self._lengths(z, lengths)
        if self.documents > 1:
            z, reset, stops, dt = _pairs(z, reset, stops, dt)
        valid = self._valid(z, stops, valid)
        if valid is not None:
            z, reset = without_padding(z, valid), None if reset is None else reset & valid
            dt = None if dt is None else without_padding(dt, valid, 1.0)
        parts = split_state(state, len(self.blocks), len(self.between))
        ends = stops if self.bidirectional else None

        read = partial(_read_block, lengths=ends, around=around)
        reader = Reader(self.shape, read, graph=False)
        stack = list(self.blocks), list(self.between)
        z, marks = self._scaled(z, valid), (reset, dt, valid)
        common = self.shared(len(self.blocks))
        z, new = reader.read(*stack, z, parts, common, marks, fresh=fresh)
        if self.final_norm is not None:
            z = normalise(self.final_norm, z, valid)
        z, pool = self.pool(z, parts["pool"], reset=reset, lengths=stops)
        if self.pair is not None:
            z = self.pair(z.unflatten(0, (-1, 2)))
        return self._to_head(z), joined(new, pool)

    def _lengths(self, x: Tensor, lengths: Lengths) -> Tensor:
        """Checked, (batch,), or (batch, 2) of pairs."""
        stops = as_lengths("SequenceModel", lengths)
        if self.documents == 1:
            return check_lengths("SequenceModel", stops, x)
        check_shape("SequenceModel", "lengths", stops.shape, {"batch": len(x), "documents": 2})
        check_lengths("SequenceModel", stops.flatten(), x.flatten(0, 1))
        return stops

    def _valid(self, z: Tensor, stops: Tensor | None, valid: Tensor | None) -> Tensor | None:
        """Which steps of z (batch, time, d_model) are not padding; None where there is none."""
        if valid is not None:
            check_shape(
                "SequenceModel", "valid", valid.shape, {"batch": len(z), "time": z.shape[1]}
            )
            if stops is not None or self.pool.kind != "none":
                raise ArgumentError(
                    "SequenceModel: valid must be None with lengths or a pool, got a mask with "
                    f"pool={self.pool.kind!r}. Put padding at the end of rows, and pass lengths."
                )
            return valid
        return None if stops is None else steps_before(stops, z.shape[1], z.device)

    def _check_split(self, lengths: Lengths | None) -> None:
        """Raise inside of `sequence_parallel` unless nothing but the mixers looks along time."""

        def has(kind: type[nn.Module]) -> bool:
            return any(isinstance(part, kind) for part in self.modules())

        for mixer in self.mixers:
            mixer.check_split()
        wrong = {
            'pool must be "none"': self.pool.kind != "none",
            "conv_width must be 0": has(CausalConv),
            'norm must be "layer", "rms" or "none"': has(nn.BatchNorm1d) and self.training,
            'block must not be "channel_mix" or "relu_mix"': has(ChannelMix),
            "tiers must be ()": bool(self.between),
            "lengths must be None": lengths is not None,
        }
        for rule, broken in wrong.items():
            if broken:
                refuse("SequenceModel.forward", rule, "Build the model so.")

    def step(
        self,
        x_t: Float[Tensor, "batch d_input"] | Integer[Tensor, " batch"],
        state: State,
        *,
        dt: Time | None = None,
    ) -> tuple[Inexact[Tensor, "batch d_output"], dict[str, State]]:
        """Read one time step; with pooling, the output is for everything read so far.

        ``dt`` (batch,) is the time since the step before, as in `forward`.
        """
        if self.documents > 1:
            raise ArgumentError(
                "SequenceModel.step: documents must be 1 to read step by step, got "
                f"{self.documents}. Call the model on whole documents."
            )
        recorded = None
        # of several rates most steps leave the lower tiers alone; of tokens see below
        if dt is None and not self.between and not self._reads_tokens:
            recorded = recorded_step(self, self._step_by_operators, x_t, state)
        return self._step_by_operators(x_t, state, dt) if recorded is None else cast(Any, recorded)

    def _step_by_operators(
        self, x_t: Tensor, state: State, dt: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        x_t = self._check(x_t, time=False)
        parts = split_state(state, len(self.blocks), len(self.between))
        z = self._scaled(self.encoder(x_t))
        if dt is not None:
            check_timed("SequenceModel.step", dt, self.mixers)
        elif self._reads_tokens and not self.between:  # what is recorded begins behind the rows
            recorded = recorded_step(self, self._step_on, z, cast(State, parts))
            if recorded is not None:
                return recorded
        return self._step_on(z, parts, dt)

    def _step_on(self, z: Tensor, state: Any, dt: Tensor | None = None) -> tuple[Tensor, Any]:
        """Everything behind the encoder."""
        if self.between:
            graph = not eager(z)
            reader = Reader(self.shape, read_in_graph if graph else read_step, graph, single=True)
            times = None if dt is None else dt[:, None]
            stack = list(self.blocks), list(self.between)
            marks, common = (None, times, None), self.shared(len(self.blocks))
            z, new = reader.read(*stack, z[:, None], state, common, marks)
            z = z[:, 0]
        else:
            z, new = self._steps_of_blocks(z, state["layers"], dt)
        if self.final_norm is not None:
            z = self.final_norm(z)
        z, pool = self.pool.step(z, state["pool"])
        return self.head(self._to_head(z)), joined(new, pool)

    def _steps_of_blocks(
        self, z: Tensor, states: list[State], dt: Tensor | None
    ) -> tuple[Tensor, dict[str, list[State]]]:
        new: list[State] = []
        carried = made_ahead(z)
        shared = self.shared(len(self.blocks))
        for part, previous_state, common in zip(self.blocks, states, shared, strict=True):
            block = cast(Block, part)
            times = dt if block.mixer.timed else None
            signals = handed(block.mixer, carried, common)
            z, next_state, *outgoing = block.step(z, previous_state, dt=times, signals=signals)
            carried = carried if signals is None else {**carried, **outgoing[0]}
            new.append(next_state)
        return z, {"layers": new}

    def _scaled(self, z: Tensor, valid: Tensor | None = None) -> Tensor:
        z = z if self.encoder_scale == 1 else z * self.encoder_scale
        return z if self.encoder_norm is None else normalise(self.encoder_norm, z, valid)

    def _to_head(self, z: Tensor) -> Tensor:
        return z if self.head_scale == 1 else z * self.head_scale

    def _check(self, x: Tensor, *, time: bool) -> Tensor:
        """The input as the encoder takes it."""
        name = "x" if time else "x_t"
        check_tensor("SequenceModel", name, x)
        pairs = {"documents": 2} if self.documents > 1 else {}
        axes: dict[str, int | None] = {"batch": None, **pairs, "time": None}
        axes["d_input"] = self.d_input
        if not time:
            del axes["time"]
        if self._reads_tokens:
            del axes["d_input"]
            if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
                raise DTypeError(f"SequenceModel: {name} must be integer token ids, got {x.dtype}.")
        check_shape("SequenceModel", name, x.shape, axes)
        if self._reads_tokens:  # an embedding takes none of fewer bits, as bytes have
            return x if x.dtype in (torch.int64, torch.int32) else x.long()
        dtype = cast(Tensor, self.encoder.weight).dtype
        check_like_parameters("SequenceModel", name, x, dtype)
        return x


def _read_block(
    block: Block,
    z: Tensor,
    state: State,
    marks: Marks,
    signals: Signals | None,
    *,
    lengths: Tensor | None,
    around: Around | None,
) -> tuple[Tensor, State, Signals]:
    """A call of a block as `linrnn.backbone.tiers.Call`; ``around`` sees one tree beside z."""
    reset, dt, valid = marks
    times = dt if block.mixer.timed else None
    call = partial(block, reset=reset, lengths=lengths, dt=times, valid=valid)
    if signals is None:
        y, state = call(z, state) if around is None else around(call, z, state)
        return y, state, {}

    def with_signals(z: Tensor, tree: Any) -> tuple[Tensor, Any]:
        y, state, outgoing = call(z, tree["state"], signals=tree["signals"])
        return y, {"state": state, "signals": outgoing}

    tree: Any = {"state": state, "signals": signals}
    y, tree = with_signals(z, tree) if around is None else around(with_signals, z, tree)
    return y, tree["state"], tree["signals"]


def _pairs(
    x: Tensor, reset: Tensor | None, lengths: Tensor | None, dt: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Both documents of each pair as rows of one batch."""
    ends, cut, dt = (None if v is None else v.flatten(0, 1) for v in (lengths, reset, dt))
    return x.flatten(0, 1), cut, ends, dt


def _check_stack(
    sizes: Mapping[str, int], shape: Shape, dropout: float, bidirectional: bool
) -> None:
    check_positive_int(_WHERE, **sizes)
    check_at_most(_WHERE, MOST_LAYERS, n_layers=sizes["n_layers"])
    shape.check(_WHERE)
    if bidirectional and shape.tiers:
        raise ArgumentError(
            f"{_WHERE}: bidirectional must be False with tiers, which read forward, got True."
        )
    check_probability(_WHERE, one=False, dropout=dropout)


def _kinds(block: str, pattern: Sequence[str], n_layers: int) -> tuple[str, ...]:
    """The kinds of blocks, to be repeated along the depth."""
    check_in("Block", "kind", block, BLOCKS)
    for kind in pattern:
        check_in(_WHERE, "block_pattern", kind, BLOCKS)
    if len(pattern) > n_layers:
        raise ArgumentError(
            f"{_WHERE}: block_pattern must have at most n_layers={n_layers} kinds, got "
            f"{len(pattern)}."
        )
    return tuple(pattern) or (block,)


def _check_ends(
    encoder: str,
    identity_ends: str,
    documents: int,
    pool: str,
    encoder_scale: float,
    logit_soft_cap: float | None,
) -> None:
    check_in(_WHERE, "encoder", encoder, ("linear", "tokens"))
    check_in(_WHERE, "identity_ends", identity_ends, ("none", "in", "both"))
    if documents not in (1, 2) or (documents == 2 and pool == "none"):
        raise ArgumentError(
            f"{_WHERE}: documents must be 1, or 2 with a pool over time, got {documents} with "
            f"pool={pool!r}."
        )
    check_positive(_WHERE, encoder_scale=encoder_scale)
    if logit_soft_cap is not None:
        check_positive(_WHERE, logit_soft_cap=logit_soft_cap)


def _check_apart(tie_embeddings: bool, identity_ends: str) -> None:
    """Raise where the weights of both ends start in another way."""
    if tie_embeddings or identity_ends == "both":
        name, value = ("tie_embeddings", True) if tie_embeddings else ("identity_ends", "both")
        raise ArgumentError(
            f"{_WHERE}: ends_init must be 'default' with {name}={value!r}, got 'rwkv'. Leave one "
            "of the two out."
        )

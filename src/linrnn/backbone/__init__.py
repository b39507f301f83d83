"""The one backbone: a residual stack around any mixer, by default the LRU paper's Figure 1."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from linrnn._options.call import checked
from linrnn._options.declared import OF_THE_MODEL, Option, declared
from linrnn._process.memory import bounded
from linrnn.backbone._calls import Around, pairs, read_block
from linrnn.backbone._checks import (
    WHERE,
    check_ends,
    check_input,
    check_lengths_of,
    check_split,
    check_stack,
    embed,
    kinds_of,
    mask_of,
)
from linrnn.backbone._ends import start_both
from linrnn.backbone._stack import Stack
from linrnn.backbone.model import Model as Model
from linrnn.backbone.pattern import MixerLike, choose, labels
from linrnn.backbone.signals import AHEAD, Shared, handed, made_ahead
from linrnn.backbone.tiers import (
    Reader,
    Shape,
    as_tiers,
    joined,
    read_in_graph,
    read_step,
    split_state,
)
from linrnn.block import Block, check_part_options
from linrnn.compute.modes import eager
from linrnn.compute.sequence_parallel import current
from linrnn.engine.replay.step import recorded_step
from linrnn.errors import ArgumentError, check_in, check_positive
from linrnn.mixers import Mixer, check_timed
from linrnn.nn import Pair, Pool, Resample, make_head, make_norm
from linrnn.nn.lengths import steps_before, without_padding
from linrnn.nn.linear import Linear
from linrnn.nn.norm import normalise
from linrnn.state_spec import check_start
from linrnn.typing import Bool, Float, Inexact, Integer, Lengths, State, Time

__all__ = [
    "Around",
    "Model",
    "SequenceModel",
    "model_options",
]


def __dir__() -> list[str]:
    return sorted(__all__)


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
            is if only one layer uses it; else each layer has a copy with newly drawn parameters.
        mixer_options: keyword arguments of that mixer besides ``d_model``. In a pattern each goes
            to every mixer that has it; ``{"attention": {"n_heads": 2}}`` goes only to the mixer of
            that name or class. The stack sets the options ``layer`` and ``n_layers`` of a mixer
            that depends on its place.
        d_model: width of the residual stream, in channels.
        n_layers: number of residual blocks; with ``tiers``, in each tier.
        tiers: number of steps pooled into one between two tiers, for a stack at several rates as
            in SaShiMi, ``(4, 4)``. Default: one rate.
        expand: width of a tier, in multiples of the width of the tier above it.
        unet: with ``tiers``, read ``n_layers`` blocks on the way down as well.
        norm: normalisation of each block: ``batch``, ``layer``, ``rms`` or ``none``.
        norm_eps: number added to the variance, or mean square, in every norm. Default: that of
            PyTorch, 1e-5, and for ``rms`` the machine epsilon of the dtype.
        prenorm: normalise before the mixer; False normalises after the skip connection.
        out_norm: names of mixers, or classes, whose blocks have the norms after the parts,
            ``x + norm(part(x))``, as around the attention of OLMo; needs ``prenorm`` True.
            Default: none.
        skip: add the input of each part of a block to its output. False makes a plain stack, in
            which each layer reads the output of the previous one.
        dropout: probability of dropping a channel, of the output of each part of a block and
            before the GLU.
        block: the part after the mixer in a block, a row of `linrnn.block.BLOCKS`: GELU and GLU
            (``glu``), with an MLP after it as in SaShiMi (``glu_mlp``), an MLP (``mlp``), RWKV's
            channel mixing (``channel_mix``; without a receptance, as in RWKV-7, ``relu_mix``), an
            MLP gated by GELU as in Hawk and Griffin
            (``geglu``) or by SiLU (``swiglu``), one with squared ReLUs (``relu2``), a mixture of
            experts (``moe``), an MLP after mixers that do not widen their channels as in xLSTM
            (``xlstm``), or nothing (``bare``).
        block_pattern: kinds of blocks, repeated along the depth, if they differ. Default: ``block``
            in every layer.
        block_options: arguments of the parts ``swiglu``, ``relu2`` and ``moe`` of blocks, by the
            name of the part: ``{"moe": {"n_experts": 16}}``. See `linrnn.nn.MoE`.
        residual_scale: factor of the output of each part of a block, as in Granite.
        skip_scale: factor of the skip connection of each part of a block, as in MiniMax.
        conv_width: taps of a causal convolution before each mixer; 0 leaves it out. The published
            blocks of minGRU have ``block="mlp", conv_width=4, norm="rms"``.
        d_ffn: hidden width of a block's MLP; in the next tier it is ``expand`` times as large.
            Default: 4 d_model; for ``geglu`` 3 d_model, for ``swiglu`` 8/3, rounded up, for
            ``xlstm`` 4/3, rounded up to a multiple of 64.
        bidirectional: read in both directions and add the two: see `linrnn.mixers.Bidirectional`.
            Such a model needs whole sequences and cannot be streamed: it has no `step`.
        pool: pooling over time: the ``mean`` of the outputs, the ``last`` output, or ``none`` for
            one output per step.
        encoder: ``linear`` for real inputs (batch, time, d_input), ``tokens`` for integer ones
            (batch, time).
        identity_ends: ends replaced by the identity: ``none``, ``in`` (the encoder) or ``both``
            (the head as well). Use it for a layer alone, with nothing around it.
        ends_init: initial weights of encoder and head: ``default``, as in torch.nn, or ``rwkv``, as
            in RWKV's training program: the encoder uniform within 1e-4, the head orthogonal with
            gain 1/2, times the square root of d_output / d_model if that is above 1.
        encoder_norm: normalise the output of the encoder, by the same ``norm``, as RWKV does.
        encoder_scale: factor of the output of the encoder; Griffin multiplies its embeddings by
            the square root of their width.
        final_norm: normalise once more before the pooling and the head, by the same ``norm``.
        head_bias: add a bias to each output.
        head_scale: factor of the input of the head, and so of its outputs before the bias.
        logit_soft_cap: bound of each output, ``cap tanh(y / cap)`` for y. Default: none.
        tie_embeddings: use one matrix for the embedding of tokens and for the head, whose sizes
            must agree; it is initially normal with variance 1 / d_model.
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

    @checked
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
        shape = Shape(n_layers, as_tiers(WHERE, tiers), expand, unet)
        check_stack(sizes, shape, dropout, bidirectional)
        check_in(WHERE, "ends_init", ends_init, ("default", "rwkv"))
        check_ends(encoder, identity_ends, documents, pool, encoder_scale, logit_soft_cap)
        check_positive(WHERE, head_scale=head_scale)
        kinds = kinds_of(block, block_pattern, n_layers)
        check_part_options(WHERE, block_options)
        self.d_input, self.d_output, self.d_model = d_input, d_output, d_model
        self.encoder_scale, self.documents = encoder_scale, documents
        self.head_scale = head_scale
        self.bidirectional, self.tie_embeddings = bidirectional, tie_embeddings
        self.shape = shape
        self._reads_tokens = encoder == "tokens"
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.encoder: nn.Module = (nn.Embedding if self._reads_tokens else Linear)(
            d_input, d_model, **factory
        )
        parts: dict[str, Any] = {"norm": norm, "norm_eps": norm_eps, "prenorm": prenorm}
        parts |= {"skip": skip, "skip_scale": skip_scale, "residual_scale": residual_scale}
        parts |= {"dropout": dropout, "conv_width": conv_width, "options": block_options}
        for name in out_norm:
            check_in(WHERE, "out_norm", name, labels(mixer))
        choices = choose(WHERE, mixer, mixer_options, len(shape.depths()), shape.runs(), AHEAD)
        stack = Stack(d_model, shape, bidirectional, factory)
        self.blocks = stack.blocks(choices, kinds, d_ffn, out_norm, parts)
        self.shared = Shared(WHERE, self.mixers, self.shape.runs(), AHEAD)
        self.between = stack.joints(self.mixers)
        self.pool = Pool(pool)
        norms = [
            make_norm(norm, d_model, eps=norm_eps, **factory) if present else None
            for present in (encoder_norm, final_norm)
        ]
        self.encoder_norm, self.final_norm = norms
        self.pair = Pair(d_model, **factory) if documents == 2 else None
        self.head = make_head(d_model, d_output, logit_soft_cap, bias=head_bias, **factory)
        start_both(self.encoder, self.head, ends_init, identity_ends, tied=tie_embeddings)

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
        x = check_input(x, ("batch", "time"), self.d_input, self.documents, self.encoder)
        if lengths is not None:
            # here too, for the gradient of the encoder
            lengths = check_lengths_of(x, lengths, self.documents)
            x = without_padding(x, steps_before(lengths, x.shape[lengths.ndim], x.device))
        return self.features_of(embed(self.encoder, x), state, reset=reset, lengths=lengths, dt=dt)

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
            rules = {
                'pool must be "none"': self.pool.kind != "none",
                "tiers must be ()": bool(self.between),
                "lengths must be None": lengths is not None,
            }
            check_split(self, self.mixers, rules)
        check_timed("SequenceModel.forward", dt, self.mixers)
        fresh = state is None
        state = self.init_state(z.shape[0], device=z.device) if state is None else state
        stops = None if lengths is None else check_lengths_of(z, lengths, self.documents)
        if self.documents > 1:
            z, reset, stops, dt = pairs(z, reset, stops, dt)
        if stops is not None or valid is not None:
            valid = mask_of(z, stops, valid, self.pool.kind)
            z, reset = without_padding(z, valid), None if reset is None else reset & valid
            dt = None if dt is None else without_padding(dt, valid, 1.0)
        parts = split_state(state, len(self.blocks), len(self.between))
        ends = stops if self.bidirectional else None

        read = partial(read_block, lengths=ends, around=around)
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
        x_t = check_input(x_t, ("batch",), self.d_input, self.documents, self.encoder)
        parts = split_state(state, len(self.blocks), len(self.between))
        z = self._scaled(embed(self.encoder, x_t))
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

"""`outer_scan`: linear attention with decays, a matrix a head written to by outer products."""

from torch import Tensor

from linrnn.ops.matrix._memory._again import Tensors, again, remember
from linrnn.ops.matrix._memory._ops import OUTER
from linrnn.ops.matrix._memory._problem import checked
from linrnn.ops.matrix.turns import in_frame
from linrnn.typing import CuSeqlens, Float, ResetMask


def outer_scan(
    q: Float[Tensor, "batch time *reads query_heads d_key"],
    k: Float[Tensor, "batch time *writes key_heads d_key"],
    v: Float[Tensor, "batch time *writes value_heads d_value"],
    g: Float[Tensor, "..."] | None = None,
    initial_state: Float[Tensor, "seqs heads d_key columns"] | None = None,
    *,
    value_decay: Float[Tensor, "batch time _ d_value"] | None = None,
    bonus: Float[Tensor, "heads d_key"] | None = None,
    sign: Float[Tensor, "..."] | None = None,
    angle: Float[Tensor, "..."] | None = None,
    normalizer: bool = False,
    read: str = "after",
    scale: float = 1.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[
    Float[Tensor, "batch time *reads heads columns"], Float[Tensor, "seqs heads d_key columns"]
]:
    r"""Write every step's outer product of key and value into a matrix that decays, and read it.

    Equation, in every head::

        S' = sign_t exp(g_t) R_t S_{t-1} exp(value_decay_t)         (d_key, d_value)
        S_t = S' + sum_r k_tr v_tr^T                                over the writes of a step
        o_t = scale S_t^T q_t
        o_t = scale S'^T q_t                                        with read="before"
        o_t = scale (S_{t-1} + diag(bonus) k_t v_t^T)^T q_t         where there is a bonus

    Args:
        q, k: queries and keys (batch, time, heads of their own, d_key). Everything may have fewer
            heads than what has the most: their number divides it, and head h takes what several
            share in head ``h // (heads / heads of their own)``.
        v: values (batch, time, heads of their own, d_value). Where a step makes several writes, k
            and v are (batch, time, rank, heads, ...); q then has the axis as well, for as many
            reads of the same memory (Mamba-3's MIMO), or not, for one.
        g: logarithms of decays of the rows of S, at most 0: constant (heads,) or
            (heads, d_key), or of every step, (batch, time, heads) or
            (batch, time, heads, d_key). None keeps everything. A step decays once, before its
            writes.
        initial_state: S before the first step, (batch, heads, d_key, d_value), one for each
            packed sequence; None is zeros.
        value_decay: logarithms of decays of the columns of S, at most 0, like v without a rank.
        bonus: weight (heads, d_key) of the current write in a read that is made before it, of
            steps with one write. Zeros read the memory before the step.
        sign: 1 or -1 for every decay, shaped like g, which may be None: decays from -1 to 1.
            There is no gradient to it.
        angle: what pairs of rows (2i, 2i + 1) of S turn by at every step, in radians: R_t is a
            complex decay ``exp(g + i angle)`` of each. For a head, (heads,) or (batch, time,
            heads), for all pairs; or (heads, pairs) or (batch, time, heads, pairs) for the first
            ones. Then ``g`` and ``sign`` by channel have one number for each of these pairs and
            one for each channel behind them. Sums of angles are float64 and start at each call:
            S is always in the frame of its step. Not with a bonus.
        normalizer: give every value one more channel that is always 1 and that ``value_decay``
            spares: the last column of S is then the decayed sum of keys, and the last channel of
            o what attention divides by.
        read: when a step reads: ``"after"`` its writes, or ``"before"`` them, what has decayed.
        scale: of the queries.
        reset: boolean (batch, time); True clears S before that step.
        cu_seqlens, reverse: as in `linear_scan`. The writes of a step keep their order.
        backend: ``cpu`` or ``triton`` for the kernels; ``tree`` or ``reference`` for chunks of
            PyTorch's operators; None takes what `use_backend` or ``LINRNN_BACKEND`` asks for,
            else the fastest that supports the call. `explain` says what a kernel declines.

    Returns:
        ``(o, final_state)``: outputs like q with the most heads and with channels of values, one
        more with ``normalizer``, in the dtype of q, k and v, and the last S. float16 and bfloat16
        are storage: S is float32. On processors with AVX-512-BF16 products of rows in bfloat16
        round their factors to it. Gradients of any order flow to every tensor but ``sign``.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: an option that is no truth value or not one of its words, a scale that is no
            number, a bonus with several writes, with angles or with ``read="before"``, or
            ``cu_seqlens`` that do not rise from 0 to ``time``.
        UnknownNameError, BackendError: a backend that there is not, or that cannot compute this.

    Example:
        >>> import torch
        >>> from linrnn.ops import outer_scan
        >>> one, half = torch.ones(1, 3, 1, 1), torch.tensor([0.5])
        >>> outer_scan(one, one, one, half.log())[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
        >>> outer_scan(one, one, one, half.log(), sign=torch.tensor([-1.0]))[0].flatten()
        tensor([1.0000, 0.5000, 0.7500])
        >>> pair = torch.tensor([1.0, 0.0]).expand(1, 3, 1, 2)
        >>> outer_scan(pair, pair, one, half.log(), angle=torch.tensor([torch.pi]))[0].flatten()
        tensor([1.0000, 0.5000, 0.7500])

    Reference:
        Katharopoulos et al., "Transformers are RNNs", 2020, arXiv:2006.16236; with decays, Yang et
        al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023,
        arXiv:2312.06635; with several writes and reads, Lahoti et al., "Mamba-3", 2026,
        arXiv:2603.15569; with signs, Grazzi et al., "Unlocking State-Tracking in Linear RNNs
        Through Negative Eigenvalues", 2024, arXiv:2411.12537; with angles, Katsch, "GateLoop",
        2023, arXiv:2311.01927.
    """
    tensors: Tensors = (q, k, v, g, value_decay, bonus, None, None, None, initial_state, sign)
    options = (normalizer, read, scale, reverse)
    turning = None
    if angle is not None:
        layout = (reset, cu_seqlens, reverse)
        tensors, turning = in_frame("outer_scan", angle, tensors, *layout)
    results, key = again(tensors, reset, cu_seqlens, False, *options, backend)
    if results is None:
        problem = checked("outer_scan", tensors, reset, cu_seqlens, False, *options)
        results = OUTER(*problem, backend=backend)
        remember(key, OUTER, problem, tensors, results)
    return results if turning is None else turning.back(results)

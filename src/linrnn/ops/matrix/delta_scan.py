"""`delta_scan`: memories that correct what they hold, by the delta rule and its relatives."""

from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.ops.matrix._memory._again import Tensors, again, remember
from linrnn.ops.matrix._memory._ops import DELTA
from linrnn.ops.matrix._memory._problem import checked
from linrnn.ops.matrix.turns import in_frame
from linrnn.typing import CuSeqlens, Float, ResetMask


def delta_scan(
    q: Float[Tensor, "batch time *reads query_heads d_key"],
    k: Float[Tensor, "batch time *writes key_heads d_key"],
    v: Float[Tensor, "batch time *writes value_heads d_value"],
    beta: Float[Tensor, "batch time ..."] | None = None,
    g: Float[Tensor, "..."] | None = None,
    initial_state: Float[Tensor, "seqs heads d_key columns"] | None = None,
    *,
    a: Float[Tensor, "batch time *writes _ d_key"] | None = None,
    b: Float[Tensor, "batch time *writes _ d_key"] | None = None,
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
    r"""Write to a matrix what its answer to a key is short of, and read it.

    Equation, in every head::

        S'  = sign_t exp(g_t) R_t S_{t-1} exp(value_decay_t)        (d_key, d_value)
        S_t = S' + k_t (beta_t * (v_t - S'^T k_t))^T                the delta rule
        S_t = S' + b_t (S_{t-1}^T a_t)^T + k_t (beta_t * v_t)^T     with a and b
        o_t = scale S_t^T q_t
        o_t = scale S'^T q_t                                        with read="before"
        o_t = scale (S_{t-1} + diag(bonus) W)^T q_t                 where there is a bonus

    and W is the term with beta. Several writes of a step follow one another: each corrects what
    those before it left, and only the first finds the memory decayed.

    The eigenvalue along a key is ``1 - beta |k|^2``: the memory stays bounded where that is within
    [-1, 1], as with keys of length 1 and beta in [0, 2]. With ``a`` and ``b`` the transition is
    ``diag(exp(g)) + b a^T``, of which the delta rule is the case ``a = exp(g) k, b = -beta k``.

    Args:
        q, k, v, g, initial_state, value_decay, bonus, sign, angle, scale: as in `outer_scan`.
        reset, cu_seqlens, reverse, backend: as in `outer_scan`.
        beta: how much of the difference is written, (batch, time, heads), or of every channel,
            (batch, time, heads, d_value), with the rank of k before the heads; None is 1.
        a, b: what a write reads of the memory before it, before it decays, and where it writes
            that, like k; both or none.
        normalizer: give every value one more channel that is always 1: the last channel of o is
            what its weights of all values sum to. Not with a beta of every channel, whose
            channels weigh values each in its own way.
        read: as in `outer_scan`. What ``read="before"`` gives for ``q = k`` is what the write is
            short of: Oja's rule and test-time training need it.

    Returns:
        ``(o, final_state)`` as of `outer_scan`.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: one of ``a`` and ``b`` without the other, a normalizer with a beta of every
            channel, and as `outer_scan`.
        UnknownNameError, BackendError: a backend that there is not, or that cannot compute this.

    Example:
        >>> import torch
        >>> from linrnn.ops import delta_scan
        >>> one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
        >>> delta_scan(one, one, one, half)[0].flatten()
        tensor([0.5000, 0.7500, 0.8750])
        >>> twice = torch.ones(1, 3, 2, 1, 1)  # two writes a step
        >>> delta_scan(one, twice, twice, twice[..., 0] / 2)[0].flatten()
        tensor([0.7500, 0.9375, 0.9844])

    Reference:
        Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight Programmers",
        2021, arXiv:2102.11174; in chunks, Yang et al., "Parallelizing Linear Transformers with the
        Delta Rule over Sequence Length", 2024, arXiv:2406.06484; with several writes, Siems et
        al., "DeltaProduct", 2025, arXiv:2502.10297.
    """
    tensors: Tensors = (q, k, v, g, value_decay, bonus, beta, a, b, initial_state, sign)
    options = (normalizer, read, scale, reverse)
    turning = None
    if angle is not None:
        layout = (reset, cu_seqlens, reverse)
        tensors, turning = in_frame("delta_scan", angle, tensors, *layout)
    results, key = again(tensors, reset, cu_seqlens, True, *options, backend)
    if results is None:
        if (a is None) != (b is None):
            missing = "a" if a is None else "b"
            raise ArgumentError(
                f"delta_scan: a and b must be given together, got {missing}=None. "
                f"For the delta rule leave out both."
            )
        problem = checked("delta_scan", tensors, reset, cu_seqlens, True, *options)
        results = DELTA(*problem, backend=backend)
        remember(key, DELTA, problem, tensors, results)
    return results if turning is None else turning.back(results)

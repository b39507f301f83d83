"""`delta_scan`: memories that correct what they hold, by the delta rule and its relatives."""

from torch import Tensor

from linrnn.errors import ArgumentError
from linrnn.ops.matrix._memory._again import again, remember
from linrnn.ops.matrix._memory._ops import DELTA
from linrnn.ops.matrix._memory._problem import checked
from linrnn.typing import CuSeqlens, Float, ResetMask


def delta_scan(
    q: Float[Tensor, "batch time key_heads d_key"],
    k: Float[Tensor, "batch time key_heads d_key"],
    v: Float[Tensor, "batch time heads d_value"],
    beta: Float[Tensor, "batch time heads"] | None = None,
    g: Float[Tensor, "..."] | None = None,
    initial_state: Float[Tensor, "seqs heads d_key d_value"] | None = None,
    *,
    a: Float[Tensor, "batch time key_heads d_key"] | None = None,
    b: Float[Tensor, "batch time key_heads d_key"] | None = None,
    scale: float = 1.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time heads d_value"], Float[Tensor, "seqs heads d_key d_value"]]:
    r"""Write to a matrix what its answer to a key is short of, and read it.

    Equation, in every head::

        S'  = exp(g_t) S_{t-1}                                     (d_key, d_value)
        S_t = S' + beta_t k_t (v_t - S'^T k_t)^T                   the delta rule
        S_t = S' + b_t (S_{t-1}^T a_t)^T + beta_t k_t v_t^T        with a and b
        o_t = scale S_t^T q_t

    The eigenvalue along a key is ``1 - beta |k|^2``: the memory stays bounded where that is within
    [-1, 1], as with keys of length 1 and beta in [0, 2]. With ``a`` and ``b`` the transition is
    ``diag(exp(g)) + b a^T``, of which the delta rule is the case ``a = exp(g) k, b = -beta k``.

    Args:
        q, k, v, g, initial_state, scale, reset, cu_seqlens, reverse, backend: as in `outer_scan`.
        beta: how much of the difference is written, (batch, time, heads); None is 1.
        a, b: what a step reads of the memory before it, and where it writes that, like k; both
            or none.

    Returns:
        ``(o, final_state)`` as of `outer_scan`.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: one of ``a`` and ``b`` without the other, and as `outer_scan`.
        UnknownNameError, BackendError: a backend that there is not, or that cannot compute this.

    Example:
        >>> import torch
        >>> from linrnn.ops import delta_scan
        >>> one, half = torch.ones(1, 3, 1, 1), torch.full((1, 3, 1), 0.5)
        >>> delta_scan(one, one, one, half)[0].flatten()
        tensor([0.5000, 0.7500, 0.8750])

    Reference:
        Schlag, Irie and Schmidhuber, "Linear Transformers Are Secretly Fast Weight Programmers",
        2021, arXiv:2102.11174; in chunks, Yang et al., "Parallelizing Linear Transformers with the
        Delta Rule over Sequence Length", 2024, arXiv:2406.06484.
    """
    tensors = (q, k, v, g, None, None, beta, a, b, initial_state)
    results, key = again(tensors, reset, cu_seqlens, True, False, scale, reverse, backend)
    if results is not None:
        return results
    if (a is None) != (b is None):
        missing = "a" if a is None else "b"
        raise ArgumentError(
            f"delta_scan: a and b must be given together, got {missing}=None. "
            f"For the delta rule leave out both."
        )
    optional = {"g": g, "beta": beta, "a": a, "b": b, "initial_state": initial_state}
    problem = checked(
        "delta_scan", q, k, v, optional, reset, cu_seqlens, delta=True, scale=scale, reverse=reverse
    )
    o, final = DELTA(*problem, backend=backend)
    remember(key, DELTA, problem, tensors, (o, final))
    return o, final

"""`outer_scan`: linear attention with decays, a matrix a head written to by outer products."""

from torch import Tensor

from linrnn.ops.matrix._memory._again import again, remember
from linrnn.ops.matrix._memory._ops import OUTER
from linrnn.ops.matrix._memory._problem import checked
from linrnn.typing import CuSeqlens, Float, ResetMask


def outer_scan(
    q: Float[Tensor, "batch time key_heads d_key"],
    k: Float[Tensor, "batch time key_heads d_key"],
    v: Float[Tensor, "batch time heads d_value"],
    g: Float[Tensor, "..."] | None = None,
    initial_state: Float[Tensor, "seqs heads d_key columns"] | None = None,
    *,
    value_decay: Float[Tensor, "batch time heads d_value"] | None = None,
    bonus: Float[Tensor, "heads d_key"] | None = None,
    normalizer: bool = False,
    scale: float = 1.0,
    reset: ResetMask | None = None,
    cu_seqlens: CuSeqlens | None = None,
    reverse: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "batch time heads columns"], Float[Tensor, "seqs heads d_key columns"]]:
    r"""Write every step's outer product of key and value into a matrix that decays, and read it.

    Equation, in every head::

        S_t = exp(g_t) S_{t-1} exp(value_decay_t) + k_t v_t^T      (d_key, d_value)
        o_t = scale S_t^T q_t
        o_t = scale (S_{t-1} + diag(bonus) k_t v_t^T)^T q_t         where there is a bonus

    Args:
        q, k: queries and keys (batch, time, key_heads, d_key).
        v: values (batch, time, heads, d_value); heads is a multiple of key_heads, and head h
            takes queries and keys of head ``h // (heads / key_heads)``.
        g: logarithms of decays of the rows of S, at most 0: constant (heads,) or
            (heads, d_key), or of every step, (batch, time, heads) or
            (batch, time, heads, d_key). None keeps everything.
        initial_state: S before the first step, (batch, heads, d_key, d_value), one for each
            packed sequence; None is zeros.
        value_decay: logarithms of decays of the columns of S, at most 0.
        bonus: weight (heads, d_key) of the current write in a read that is made before it.
        normalizer: give every value one more channel that is always 1 and that ``value_decay``
            spares: the last column of S is then the decayed sum of keys, and the last channel of
            o what attention divides by.
        scale: of the queries.
        reset: boolean (batch, time); True clears S before that step.
        cu_seqlens, reverse: as in `linear_scan`.
        backend: ``cpu`` or ``triton`` for the kernels; ``tree`` or ``reference`` for chunks of
            PyTorch's operators; None takes what `use_backend` or ``LINRNN_BACKEND`` asks for,
            else the fastest that can.

    Returns:
        ``(o, final_state)``: outputs (batch, time, heads, d_value), one channel more with
        ``normalizer``, in the dtype of q, k and v, and the last S. float16 and bfloat16 are
        storage: S is float32. Gradients of any order flow to every tensor from both.

    Raises:
        ShapeError, DTypeError, DeviceError: tensors that do not fit together.
        ArgumentError: an option that is no truth value, a scale that is no number, or
            ``cu_seqlens`` that do not rise from 0 to ``time``.
        UnknownNameError, BackendError: a backend that there is not, or that cannot compute this.

    Example:
        >>> import torch
        >>> from linrnn.ops import outer_scan
        >>> one, half = torch.ones(1, 3, 1, 1), torch.tensor([0.5])
        >>> outer_scan(one, one, one, half.log())[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])

    Reference:
        Katharopoulos et al., "Transformers are RNNs", 2020, arXiv:2006.16236; with decays, Yang et
        al., "Gated Linear Attention Transformers with Hardware-Efficient Training", 2023,
        arXiv:2312.06635.
    """
    tensors = (q, k, v, g, value_decay, bonus, None, None, None, initial_state)
    results, key = again(tensors, reset, cu_seqlens, False, normalizer, scale, reverse, backend)
    if results is not None:
        return results
    optional = {"g": g, "value_decay": value_decay, "bonus": bonus, "initial_state": initial_state}
    options = {"normalizer": normalizer, "reverse": reverse}
    problem = checked(
        "outer_scan", q, k, v, optional, reset, cu_seqlens, delta=False, scale=scale, **options
    )
    o, final = OUTER(*problem, backend=backend)
    remember(key, OUTER, problem, tensors, (o, final))
    return o, final

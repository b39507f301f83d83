"""`outer_scan` and `delta_scan` by the native kernel in ``src/native/kernels/memory_scan.cpp``."""

from typing import Any

import torch
from torch import Tensor

from linrnn.compute import native
from linrnn.compute.layout import checked_offsets, dense, unit_channels
from linrnn.compute.native import array, pointer
from linrnn.compute.parts import like_parts
from linrnn.ops.matrix._memory._problem import Problem
from linrnn.ops.matrix._memory._unrolled import joined, parted

#: Steps between the memories kept for the backward pass, which computes those between once more. No
#: more than 4 chunks: `MOST` in src/native/memory_adjoint.h is the room for them. As many as a
#: chunk of bfloat16 rows has, `C` in src/native/memory_half_chunk.h.
WINDOW = 64
#: Writes of a chunk.
CHUNK = 16
#: As many independent parts as keep a processor busy; where there are fewer heads, their columns
#: are cut, but not into slices narrower than this. Both follow from shapes, never from threads.
_ENOUGH, _NARROWEST = 8, 32

SCAN = native.Kernel(
    "memory_scan",
    "reverse delta before normalizer channels constant scale seqs time heads keys rank reads "
    "key_heads q_share k_share v_share a_share b_share g_share value_decay_share beta_share values "
    "offsets window width parts q k v a b g sign value_decay beta rates reset bonus initial kept o "
    "final backward grad_q grad_k grad_a grad_b single grad_v grad_g grad_value_decay grad_beta "
    "grad_initial sums",
)
_NO_GRADIENTS = (0,) * 28


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot compute on that device and dtype, or None."""
    return native.unavailable(device, dtype, real=True)


def declines(*inputs: Any) -> str | None:
    """Why PyTorch's operators are the better way, or None."""
    p = Problem(*inputs[: len(Problem._fields)])
    if p.delta and p.a is not None and p.value_decay is not None:
        return "a low rank with decays of values has no kernel"
    if p.reads > 1 and (p.rank > CHUNK or p.value_decay is not None or p.a is not None):
        return (
            f"several reads of over {CHUNK} writes, a low rank or decays of values have no kernel"
        )
    return None


def window(p: Problem) -> int:
    """Writes from one memory to the next that are kept for the gradient."""
    if p.delta and p.g is None and p.reads == 1 and p.q.dtype is torch.bfloat16:
        # nothing forgets what chunks of 64 steps round: 0.0096 of the norm, of 16 below
        # 0.006 (test_memory_native.py, AVX-512-BF16). With this window the kernel takes the latter.
        return WINDOW - CHUNK
    # reads of a step must be in one chunk with all its writes
    return WINDOW if p.reads == 1 else WINDOW // CHUNK * (CHUNK // p.rank * p.rank)


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of a `Problem`; memories kept on the way go to the last input."""
    *fields, memories = inputs
    problem = Problem(*fields)
    p = _prepare(problem)
    memory = p.memory
    o = p.v.new_empty(*p.q.shape[:2], memory[1], memory[3])
    final = p.v.new_empty(memory, dtype=p.wide)
    width = _width(p, memory[1])
    parts = _parts(p, width, memory[1])
    _run(problem, p, width, parts, memories, o, final, _NO_GRADIENTS)
    return parted(problem, o) if problem.reads > 1 else o, final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the ten tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by the kept memories and the gradients of the results.
    """
    *fields, memories, grad_o, grad_final = inputs
    problem = Problem(*fields)
    p = _prepare(problem)
    width = _width(p, p.heads)
    slots = _Slopes(p, width)
    grad_o = joined(problem, grad_o) if problem.reads > 1 else grad_o
    ends = _rows(grad_o), dense(grad_final)
    _run(problem, p, width, slots.parts, memories, *ends, slots.outputs())
    gradients = slots.gradients()
    for i, x in enumerate(problem.tensors):
        gradient = gradients[i]
        if x is None or gradient is None:
            gradients[i] = None
        elif x.ndim == 5 or (i == _BETA and problem.k.ndim == 5):
            gradients[i] = parted(problem, gradient)
    return tuple(gradients)


_BETA = Problem._fields.index("beta")


class _Slopes:
    """Room for gradients of a prepared problem, of parts and slices that are added up at last."""

    def __init__(self, p: Problem, width: int) -> None:
        self.p, heads = p, p.heads
        slices, self.parts = max(1, -(-p.columns // width)), _parts(p, width, heads)
        # who computes a gradient of keys is alone with it: it is rounded at once
        self.single = slices == 1 and _key_heads(p) == heads
        # what nothing depends on has a gradient of zeros
        self.empty = p.v.new_empty if heads * p.columns else p.v.new_zeros
        self.q, self.k, self.a, self.b = (self._of_keys(x) for x in (p.q, p.k, p.a, p.b))
        self.v = self.empty(_each(p.v, heads))
        if self.single and self.parts == 1 and p.q.shape[2] == p.k.shape[2] == p.v.shape[2]:
            self._lay_side_by_side()
        self.initial = self.empty(p.memory, dtype=p.wide)
        self.g = self.e = self.beta = None
        if p.g is not None and p.g.ndim > 2:
            self.g = self.empty(slices, *_each(p.g, heads), dtype=p.wide)
        if p.beta is not None:
            copies = 1 if p.beta_by_channel else slices
            self.beta = self.empty(copies, *_each(p.beta, heads), dtype=p.wide)
        if p.value_decay is not None:
            self.e = self.empty(_each(p.value_decay, heads), dtype=p.wide)
        sums = (slices, p.seqs, heads, 2, p.memory[2])
        self.sums = p.v.new_zeros(sums, dtype=torch.float64)

    def _lay_side_by_side(self) -> None:
        """Gradients of q, k and v that are parts of one tensor are so as well: see `parts`."""
        vectors = self.p.q, self.p.k, self.p.v
        laid = like_parts([x.flatten(2) for x in vectors])  # (B, T, H channels) each
        if laid is not None:
            # (B, T, H, K or V)
            q, k, self.v = (d.view(x.shape) for d, x in zip(laid, vectors, strict=True))
            self.q, self.k = q[None], k[None]

    def _of_keys(self, x: Tensor | None) -> Tensor | None:
        """The gradient of q, k, a or b, by parts: of heads together, or of each."""
        if x is None:
            return None
        p, heads = self.p, x.shape[2]
        if heads == _key_heads(p):
            return self.empty(self.parts, *x.shape, dtype=x.dtype if self.single else p.wide)
        # a part computes some heads alone
        empty = self.empty if self.parts == 1 else p.v.new_zeros
        return empty(self.parts, *_each(x, p.heads), dtype=p.wide)

    def outputs(self) -> tuple[int, ...]:
        """The last fields of the kernel's record."""
        firsts = [None if x is None else x[0] for x in (self.q, self.k, self.a, self.b)]
        more = [self.v, None if self.g is None else self.g[0], self.e]
        more += [None if self.beta is None else self.beta[0]]
        keys, others = ([field for x in part for field in array(x)] for part in (firsts, more))
        return True, *keys, self.single, *others, self.initial.data_ptr(), self.sums.data_ptr()

    def gradients(self) -> list[Tensor | None]:
        """In the order of a `Problem`."""
        p = self.p
        q, k, a, b, g, beta = (
            None if x is None else x.sum(0) if x.shape[0] > 1 else x.squeeze(0)
            for x in (self.q, self.k, self.a, self.b, self.g, self.beta)
        )  # (B, T, H, ...) each
        if p.g is not None and p.g.ndim < 3:
            g = self.sums[:, :, :, 0].sum((0, 1)).to(p.wide)
            g = g[:, 0].clone() if p.g.ndim == 1 else g
        bonus = self.sums[:, :, :, 1].sum((0, 1)).to(p.wide)
        every = (q, k, self.v, g, self.e, bonus, beta, a, b, self.initial)
        return [
            None if x is None or d is None else _of_shared(d, x)
            for d, x in zip(every, p.tensors, strict=True)
        ]


def _each(x: Tensor, heads: int) -> tuple[int, ...]:
    """The shape with a share of every head."""
    return (*x.shape[:2], heads, *x.shape[3:])


def _key_heads(p: Problem) -> int:
    """How many heads those of q, k, a and b that have the fewest have."""
    fewest = min(p.q.shape[2], p.k.shape[2])
    return fewest if p.a is None or p.b is None else min(fewest, p.a.shape[2], p.b.shape[2])


def _of_shared(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of an argument: summed over the heads that share it, in a fixed order."""
    if gradient.shape != x.shape:
        gradient = gradient.unflatten(2, (x.shape[2], -1)).sum(3)  # (B, T, H, ...)
    return gradient.to(x.dtype)


def _run(problem: Problem, p: Problem, *arguments: Any) -> None:
    SCAN(p.q.dtype, *_values(problem, p, *arguments))


def _values(
    problem: Problem,
    p: Problem,
    width: int,
    parts: int,
    memories: Tensor | None,
    o: Tensor,
    final: Tensor,
    outputs: tuple[int, ...],
) -> tuple[float, ...]:
    """Return the fields of the kernel's record, of a problem and of what was prepared of it."""
    q, k, v, g, e, bonus, beta, a, b, _, sign = p[:11]
    constant, heads = g is not None and g.ndim < 3, o.shape[2]
    decays = (pointer(g), 0, 0, pointer(sign), 0, 0) if constant else (*array(g), *array(sign))
    shared = (q, k, v, a, b, None if constant else g, e, beta)
    return (
        p.reverse,
        p.delta,
        p.before,
        p.normalizer,
        0 if g is None else 1 + (g.ndim % 2 == 0),
        constant,
        p.scale,
        p.seqs,
        problem.q.shape[1],
        heads,
        q.shape[3],
        problem.rank,
        problem.reads,
        _key_heads(p),
        *(1 if x is None else heads // max(1, x.shape[2]) for x in shared),
        v.shape[3],
        pointer(p.cu_seqlens),
        window(problem),
        width,
        parts,
        *(*array(q), *array(k), *array(v), *array(a), *array(b)),
        *decays,
        *(*array(e), *array(beta)),
        p.beta_by_channel,
        *array(p.reset),
        pointer(bonus),
        pointer(p.initial_state),
        pointer(memories),
        *array(o),
        final.data_ptr(),
        *outputs,
    )


def record(fields: Problem, o: Tensor, final: Tensor) -> bytes | None:
    """Build the record of a call without a gradient; None where an argument must be copied."""
    p = _prepare(fields)
    if any(x is not y for x, y in zip(p[:13], fields[:13], strict=True)):
        return None
    width = _width(p, o.shape[-2])
    parts = _parts(p, width, o.shape[-2])
    values = _values(fields, p, width, parts, None, o, final, _NO_GRADIENTS)
    return SCAN.pack(native.DTYPES[p.q.dtype], native.threads(), *values)


def _rows(x: Tensor) -> Tensor:
    """``x`` (B, T, heads, channels) with heads and channels of a step side by side."""
    heads, channels = x.shape[2:]
    together = x.stride(3) == 1 and (heads == 1 or x.stride(2) == channels)
    return unit_channels(x) if together else dense(x)


def _prepare(p: Problem) -> Problem:
    """Inputs as the kernel reads them, all writes of a row one behind the other."""
    time = p.q.shape[1]
    if p.k.ndim == 5:
        k, v, beta, a, b = (
            None if x is None else joined(p, x) for x in (p.k, p.v, p.beta, p.a, p.b)
        )
        assert k is not None
        assert v is not None
        q = joined(p, p.q) if p.q.ndim == 5 else p.q
        p = p._replace(q=q, k=k, v=v, beta=beta, a=a, b=b)
    q, k, v = (_rows(x) for x in p[:3])
    e, a, b = (None if x is None else _rows(x) for x in (p.value_decay, p.a, p.b))
    bonus, initial = (None if x is None else dense(x) for x in (p.bonus, p.initial_state))
    g, sign, beta = (
        None if x is None else dense(x) if x.ndim < 3 else _rows(x) if x.ndim == 4
        else unit_channels(x) for x in (p.g, p.sign, p.beta)
    )  # fmt: skip
    offsets = checked_offsets("delta_scan" if p.delta else "outer_scan", p.cu_seqlens, time)
    return Problem(q, k, v, g, e, bonus, beta, a, b, initial, sign, p.reset, offsets, *p[-5:])


def _width(p: Problem, heads: int) -> int:
    """Columns of a slice, a multiple of any vector unless there is one slice."""
    units, columns = p.seqs * heads, max(p.columns, 1)
    slices = -(-_ENOUGH // max(units, 1))
    width = -(-columns // (slices * _NARROWEST)) * _NARROWEST
    return columns if width + 16 > columns else width


def _parts(p: Problem, width: int, heads: int) -> int:
    """Return how many parts add up the gradients of keys that heads and slices share."""
    key_heads = _key_heads(p)
    items = max(1, heads // max(1, key_heads) * -(-p.columns // width))
    share = -(-items // min(items, -(-_ENOUGH // max(p.seqs * key_heads, 1))))
    return -(-items // share)  # each has something to do

"""Who computes matrix memories: our ops, PyTorch's attention, and other people's chunk forms.

Every problem has queries, keys and values (B, T, H, K or V), log decays, and rates of the delta
rule. A peer gets them in its own layout, prepared outside the clock, and only those of the kind it
computes; what comes out is what is timed, forward or with the gradients of all it was given.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from _timing import Candidate
from linrnn.ops import delta_scan, fenwick_scan, outer_scan

#: What is forgotten, and whether a write corrects what is held; "value" decays are those of d_value
#: too, a "low rank" is a second write of a and b, and "levels" are those of log-linear attention.
KINDS = (
    *("head", "channel", "delta", "channel delta", "channel value", "channel low rank"),
    *("head levels", "delta levels"),
)
CHUNK = 64


class Shape(NamedTuple):
    """Batch, time, heads, d_key, d_value."""

    B: int
    T: int
    H: int
    K: int
    V: int

    def text(self) -> str:
        """For tables."""
        return ", ".join(str(n) for n in self)


class Peer(NamedTuple):
    """Somebody else: the package it is in, the kinds it computes, how it is set up."""

    package: str
    kinds: tuple[str, ...]
    prepare: Callable[[dict[str, Tensor]], tuple[Callable[..., Tensor], list[Tensor]]]

    def missing(self) -> bool:
        """Whether the package is not installed."""
        return importlib.util.find_spec(self.package) is None


def problem(kind: str, shape: Shape) -> dict[str, Tensor]:
    """Random arguments of a kind: keys of length 1, decays of 0.9 on the average."""
    B, T, H, K, V = shape
    q, k, v = torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, H, V)
    given = {"q": q, "k": F.normalize(k, dim=-1), "v": v}
    given["g"] = F.logsigmoid(torch.randn(B, T, H, *((K,) if "channel" in kind else ())) + 2)
    if "delta" in kind:
        given["beta"] = torch.rand(B, T, H)
    if "value" in kind:
        given["value_decay"] = F.logsigmoid(torch.randn(B, T, H, V) + 2)
    if "low rank" in kind:
        given["a"] = F.normalize(torch.randn(B, T, H, K), dim=-1)
        given["b"] = -given["a"] * torch.rand(B, T, H, K)
    if "levels" in kind:
        given["level_scales"] = torch.rand(B, T, H, T.bit_length())
    return given


def op_of(given: dict[str, Tensor]) -> Any:
    """`fenwick_scan` or `delta_scan` if something is its own, else `outer_scan`."""
    if "level_scales" in given:
        return fenwick_scan
    return delta_scan if given.keys() & {"beta", "a"} else outer_scan


def ours(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """`outer_scan`, `delta_scan` or `fenwick_scan`."""
    names = list(given)
    op = op_of(given)
    return lambda *x: op(**dict(zip(names, x, strict=True)))[0], list(given.values())


def products(shape: Shape) -> Callable[[], object]:
    """Two bare batched products in chunks: the arithmetic that cannot be avoided.

    Into memory that is there already, for new memory costs more than such a product.
    """
    B, T, H, K, V = shape
    chunks = B * H * max(1, T // CHUNK)
    read, write = torch.randn(chunks, CHUNK, K), torch.randn(chunks, K, CHUNK)
    memory, values = torch.randn(chunks, K, V), torch.randn(chunks, CHUNK, V)
    o, S = torch.empty(chunks, CHUNK, V), torch.empty(chunks, K, V)
    return lambda: (torch.bmm(read, memory, out=o), torch.bmm(write, values, out=S))


def call(prepared: tuple[Callable[..., Tensor], list[Tensor]], train: bool) -> Candidate:
    """A forward, or one with all gradients."""
    function, given = prepared
    if not train:
        return Candidate(lambda: _without_grad(function, given))
    given = [x.clone().requires_grad_() for x in given]
    into = torch.randn_like(_without_grad(function, given))
    return Candidate(lambda: torch.autograd.grad(function(*given), given, into))


def _without_grad(function: Callable[..., Tensor], given: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return function(*given)


def _heads_first(given: dict[str, Tensor], *names: str) -> list[Tensor]:
    return [given[name].transpose(1, 2).contiguous() for name in names]


def _softmax(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    def run(*qkv: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*qkv, is_causal=True)

    return run, _heads_first(given, "q", "k", "v")


def _theirs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by transformers itself, not the GPU kernel that an installed package offers."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found


def _mamba2(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    A = -torch.ones(given["v"].shape[2])

    def run(v: Tensor, dt: Tensor, k: Tensor, q: Tensor) -> Tensor:
        found: Tensor = _theirs(mamba2_chunk_scan)(v, dt, A, k, q, chunk_size=CHUNK)
        return found

    return run, [given["v"], -given["g"], given["k"], given["q"]]


def _qwen(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    return (
        lambda *x: _theirs(torch_chunk_gated_delta_rule)(*x, chunk_size=CHUNK)[0],
        [given[name] for name in ("q", "k", "v", "g", "beta")],
    )


def _kimi(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi

    run = _theirs(kimi.chunk_kimi_delta_attention)
    return lambda *x: run(*x)[0], [given[n] for n in ("q", "k", "v", "g", "beta")]


def _mlstm(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from mlstm_kernels.torch.chunkwise.native import mlstm_chunkwise__native_custbw

    q, k, v, f = _heads_first(given, "q", "k", "v", "g")
    return lambda *x: mlstm_chunkwise__native_custbw(*x, chunk_size=CHUNK), [q, k, v, f, f + 2]


def _fla(kind: str) -> Callable[..., Any]:
    def prepare(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that its kernels do not run on a CPU
            from fla.ops.gated_delta_rule import naive as delta
            from fla.ops.kda import naive as kda
            from fla.ops.simple_gla import naive as gla
        run: Any = {
            "head": gla.naive_chunk_simple_gla,
            "delta": delta.naive_chunk_gated_delta_rule,
            "channel delta": kda.naive_chunk_kda,
        }[kind]
        return lambda *x: run(*x)[0], [given[n] for n in ("q", "k", "v", "g", "beta") if n in given]

    return prepare


def _fast_transformers(given: dict[str, Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    from fast_transformers.causal_product import causal_dot_product

    return causal_dot_product, _heads_first(given, "q", "k", "v")


#: By the name in the tables. Softmax attention and the causal product forget nothing.
PEERS = {
    "softmax attention, fused": Peer("torch", KINDS, _softmax),
    "transformers Mamba-2": Peer("transformers", ("head",), _mamba2),
    "transformers gated delta": Peer("transformers", ("delta",), _qwen),
    "transformers KDA": Peer("transformers", ("channel delta",), _kimi),
    "mlstm_kernels native": Peer("mlstm_kernels", ("head",), _mlstm),
    "fast-transformers product": Peer("fast_transformers", ("head",), _fast_transformers),
    "fla naive chunks, head": Peer("fla", ("head",), _fla("head")),
    "fla naive chunks, delta": Peer("fla", ("delta",), _fla("delta")),
    "fla naive chunks, channel delta": Peer("fla", ("channel delta",), _fla("channel delta")),
}


def candidates(
    kind: str, shape: Shape, train: bool, peers: bool
) -> Iterator[tuple[str, Candidate]]:
    """Everyone who computes a kind, ours and the bare products first."""
    given = problem(kind, shape)
    yield "linrnn", call(ours(given), train)
    yield "products", Candidate(products(shape))
    for name, peer in PEERS.items() if peers else ():
        if kind in peer.kinds and not peer.missing():
            yield name, call(peer.prepare(given), train)

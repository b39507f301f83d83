"""`outer_scan` and `delta_scan` by the kernels in ``_triton_*.py``: what runs where.

Time is cut into chunks. What steps of a chunk have to do with one another is a matrix for each
chunk and head; one pass stores the memory before every chunk, tiles of it spread over programs, and
a second reads in all chunks at once. The backward pass mirrors that, with everything that the
forward pass computed on its way computed again.

Kernels know ``S <- exp(g) S + w u^T + k v^T`` with ``u = x + a^T S``. Without ``w`` that is
`outer_scan`; without ``k`` the delta rule, of ``w = k``, ``x = beta v`` and ``a = -beta k``,
which reads a memory that has decayed already; with both a low rank.
"""

import functools
import importlib
import importlib.util
from typing import Any, cast

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch
from linrnn.compute.layout import dense
from linrnn.ops.matrix._memory._problem import Problem
from linrnn.ops.matrix._memory._unrolled import each_head, rolled, spread_reads, unrolled

#: Steps of a chunk, and of a block of it inside of which pairs of steps are looked at one by one.
CHUNK, SIDE = 64, 16
#: Steps where a system is solved, whose rounding errors grow with them: of few keys, and of many.
SOLVED, SOLVED_WIDE = 32, 16
#: Keys below which nothing, and up to which no system that is solved, is faster on tensor cores.
FEW_KEYS = 64
#: Keys of a program that must have them all, at most, and from which on they are many.
MOST_KEYS, MANY_KEYS = 256, 128
#: Numbers of a tile of the memory: more spill out of the registers.
TILE = 2048

#: Which products of steps a chunk needs, of what reads with what writes.
PAIRS = {"near": ("q", "k"), "mix": ("q", "w"), "past": ("a", "k"), "system": ("a", "w")}

#: The gradient of a last memory that nobody reads is None, and costs no kernel that writes zeros.
SPARSE_GRADS = (1,)
#: Arguments that some calls of a layout have and some have not.
OPEN = {"grad_final"}

WALKS = ("run_states", "run_adjoint")
#: Warps of each kernel, the fastest on an H100: where no system is solved, and where one is. Two
#: and fewer keep clear of the instructions for four, of whose errors Triton has open reports.
WARPS = {
    "run_states": (8, 8), "run_adjoint": (4, 8), "run_outputs": (2, 2), "run_values": (2, 2),
    "run_asked": (2, 2), "run_written": (2, 2), "run_pairs": (2, 2), "run_pairs_back": (8, 2),
    "run_channel_pairs": (4, 4), "run_channel_pairs_back": (2, 2), "run_products": (2, 1),
    "run_solve": (1, 1),
}  # fmt: skip
_MODULES = {
    "run_solve": "_triton_solve",
    **dict.fromkeys(
        ("run_states", "run_outputs", "run_adjoint", "run_values", "run_asked", "run_written"),
        "_triton_kernels",
    ),
    **dict.fromkeys(("run_pairs", "run_channel_pairs"), "_triton_pairs"),
    **dict.fromkeys(
        ("run_products", "run_pairs_back", "run_channel_pairs_back"), "_triton_pairs_back"
    ),
}  # fmt: skip


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the kernels cannot compute on that device and dtype, or None."""
    if dtype.is_complex:
        return f"it has no kernel for {dtype}"
    if dtype == torch.float64 and device.type == "cuda":
        return "its numbers of float64 were wrong on a GPU"
    return gpu.unavailable(device, dtype)


def declines(*inputs: Any) -> str | None:
    """Why PyTorch's operators are the better way, or None."""
    p = Problem(*inputs[: len(Problem._fields)])
    keys = p.q.shape[-1]
    reasons = {
        "decays of values have no kernel": p.value_decay is not None,
        "rates of each channel have no kernel": p.beta_by_channel,
        "signs of decays have no kernel": p.sign is not None,
        "several reads of a step have no kernel": p.reads > 1,
        "one step is less than a chunk": p.q.shape[1] * p.rank == 1 and p.cu_seqlens is None,
        "there are no values": p.v.numel() == 0,
        f"{keys} channels of a key are more than the {MOST_KEYS} of a program": (
            p.delta and keys > MOST_KEYS
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _precision(p: Problem, solving: bool = False) -> str:
    """How kernels multiply: as exactly as a loop does.

    Three products of TF32 are as exact as one of single precision, and on tensor cores faster. One
    is as exact as numbers of half precision are, but not where a system is solved, which makes
    errors larger; and it is what whoever lets PyTorch use TF32 asks for.
    """
    keys = p.q.shape[3]
    if p.wide == torch.float64 or keys < FEW_KEYS:
        return "ieee"
    if not solving and (p.v.dtype != torch.float32 or _allows_tf32()):
        return "tf32"
    return "ieee" if p.delta and keys == FEW_KEYS else "tf32x3"


def _allows_tf32() -> bool:
    """As ``torch.set_float32_matmul_precision("high")`` does, or its newer name."""
    matmul = torch.backends.cuda.matmul
    newer = getattr(matmul, "fp32_precision", None)  # from PyTorch 2.9 on
    return bool(matmul.allow_tf32) if newer is None else newer == "tf32"


def window(p: Problem) -> int | None:
    """Steps from one memory to the next that are kept for the gradient.

    None where a system is solved: what comes out of it is computed again, and they with it.
    """
    return None if p.delta else CHUNK


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of a `Problem`; memories before chunks go to the last input."""
    *fields, memories = inputs
    given = Problem(*fields)
    p = _prepared(given)
    with torch.cuda.device_of(p.v):
        run = _Run(p)
        pairs = run.all_pairs()
        memories, u, final = run.states(pairs, memories)
        o = p.v.new_empty(*p.v.shape[:3], p.columns)
        run.launch(
            "run_outputs", run.tiles(p.columns), near=pairs["near"], mix=pairs["mix"],
            kept=memories, u=u, o=o,
        )  # fmt: skip
    return rolled(given, o), final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the ten tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by what `forward` kept and by the gradients of the results.
    """
    *fields, memories, grad_o, grad_final = inputs
    given = Problem(*fields)
    if all(x is y for x, y in zip(_prepared(given), given, strict=True)):
        return _backward(given, memories, grad_o, grad_final)
    leaves = [None if x is None else x.detach().requires_grad_() for x in given.tensors]
    with torch.enable_grad():
        p = _prepared(Problem._make([*leaves, *given[len(leaves) :]]))
    outputs = [(i, x) for i, x in enumerate(p.tensors) if x is not None]
    alone = Problem._make(x.detach() if isinstance(x, Tensor) else x for x in p)
    grads = _backward(alone, memories, spread_reads(given, grad_o), grad_final)
    inner = iter(
        torch.autograd.grad(
            [x for _, x in outputs],
            [x for x in leaves if x is not None],
            [grads[i] for i, _ in outputs],
        )
    )
    return tuple(None if x is None else next(inner) for x in leaves)


def _prepared(p: Problem) -> Problem:
    """One write a step, and what only q, k, a and b may share repeated for every head."""
    p, heads = unrolled(p), p.heads
    g, beta = (x if x is None or x.ndim < 3 else each_head(x, heads) for x in (p.g, p.beta))
    v, ones = each_head(p.v, heads), p.normalizer
    if p.delta and ones:  # which what is solved for must have in memory
        v, ones = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1), False
    return p._replace(v=v, g=g, beta=beta, normalizer=ones)


def _backward(
    p: Problem, memories: Tensor, grad_o: Tensor, grad_final: Tensor | None
) -> tuple[Tensor | None, ...]:
    u = None
    with torch.cuda.device_of(p.v):
        run = _Run(p)
        pairs = run.all_pairs()
        if p.delta:
            memories, u, _ = run.states(pairs, None)
        run.shared |= {"do": dense(grad_o), "u": u}
        behind, dz, initial = run.adjoint(pairs, None if grad_final is None else dense(grad_final))
        grads = _Gradients(run, memories, behind, dz)
        dv = dz
        if run.shared["k"] is not None:
            dv = p.v.new_empty(p.v.shape, dtype=p.wide)
            run.launch(
                "run_values", run.tiles(p.v.shape[3]), near=pairs["near"], past=pairs["past"],
                kept=behind, dz=dz, dv=dv,
            )  # fmt: skip
        assert dv is not None
        return grads.of_arguments(dv, initial)


class _Run:
    """A problem as kernels see it, and the kernels run on it."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        batch, time, heads, values = p.v.shape
        self.low_rank = p.a is not None
        self.chunk = CHUNK
        if p.delta:
            self.chunk = SOLVED if p.q.shape[3] <= MANY_KEYS else SOLVED_WIDE
        self.solving = _precision(p, True)
        self.launches = _launches(_layout(p), _precision(p), self.solving, p.v.device)
        g, offsets = p.g, p.cu_seqlens
        self.count = batch * -(-time // self.chunk)
        slots = None
        if offsets is not None:
            offsets = offsets.to(p.v.device, torch.int64).contiguous()
            self.count = time // self.chunk + p.seqs
            first_slot = offsets[:-1] // self.chunk + torch.arange(p.seqs, device=p.v.device)
            places = torch.arange(self.count, device=p.v.device)
            slots = torch.searchsorted(first_slot, places, right=True) - 1
        kind = 0 if g is None else 2 if g.ndim in (2, 4) else 1
        self.shared: dict[str, Any] = {
            "time": time, "heads": heads, "keys": p.q.shape[3], "values": values,
            "columns": p.columns, "g": g if g is None else dense(g), "reset": p.reset,
            "slots": slots, "cu_seqlens": offsets, "G": kind, "CHUNK": self.chunk,
            "CONSTANT": g is not None and g.ndim < 3, "EARLY": p.bonus is not None,
            "ASKS_EARLY": self.low_rank, "ONES": p.normalizer, "SCALE": p.scale,
            "REVERSE": p.reverse, "STRICT": p.bonus is not None or p.before,
            "bonus": None if p.bonus is None else dense(p.bonus),
        }  # fmt: skip
        if p.reset is not None:
            self.shared["reset"] = dense(p.reset)
        self.shared |= self._operands()

    def _operands(self) -> dict[str, Any]:
        """The tensors of steps, and how many heads share each."""
        p = self.p
        beta = None if p.beta is None else p.beta[..., None]
        v = p.v if beta is None else p.v * beta
        of_steps = {"q": p.q, "k": p.k, "v": v, "w": None, "a": None, "x": None}
        if self.low_rank:
            of_steps |= {"w": p.b, "a": p.a}
        elif p.delta:
            a = -p.k if beta is None else -_repeat_shared(p.k, p.v.shape[2]) * beta
            of_steps |= {"k": None, "v": None, "w": p.k, "a": a, "x": v}
        tensors = {n: None if x is None else dense(x) for n, x in of_steps.items()}
        return tensors | {f"{n}_heads": _heads(x) for n, x in tensors.items()}

    def launch(self, name: str, programs: int, **operands: Any) -> None:
        """Run a kernel for every head of every chunk, each with the same number of programs.

        Args:
            name: of the kernel.
            programs: of a head and chunk.
            operands: its arguments, beside those of the problem.
        """
        self._start(name, programs * self.count * self.p.v.shape[2], operands)

    def tiles(self, columns: int) -> int:
        """Tiles of columns that programs of all keys have."""
        return -(-columns // self._tile()["COLUMNS"])

    def _tile(self, name: str = "") -> dict[str, int]:
        """Keys and columns at once, of what walks over a sequence and of other kernels."""
        keys, columns = _rounded(self.p.q.shape[3]), _rounded(self.p.columns)
        if not (self.p.delta and name in WALKS):  # which must have all keys
            keys = min(keys, 32 if name in WALKS else 64)
        return {"KEYS": keys, "COLUMNS": max(16, min(columns, 32, TILE // keys))}

    def _start(self, name: str, programs: int, operands: dict[str, Any]) -> None:
        launch = self.launches.get(name)
        if launch is None:
            launch = self.launches[name] = self._prepared(name, programs, operands)
        shared = self.shared
        launch(*[operands[n] if n in operands else shared[n] for n in launch.tensors])

    def _prepared(self, name: str, programs: int, operands: dict[str, Any]) -> Launch:
        """A kernel with its arguments but for tensors: the same in all calls of one layout."""
        kernel = getattr(_module(_MODULES[name]), name)
        tile, tl = self._tile(name), gpu.language()
        values = {
            **self.shared, **tile, "SIDE": SIDE, "PRECISION": _precision(self.p),
            "SOLVING": self.solving, **operands,
            "DTYPE": tl.float64 if self.p.wide == torch.float64 else tl.float32,
        }  # fmt: skip
        open_names = {n for n in kernel.arg_names if isinstance(values[n], Tensor)} | OPEN
        fixed = {n: values[n] for n in kernel.arg_names if n not in open_names}
        warps = WARPS[name][self.p.delta]
        if name in WALKS and tile["KEYS"] * tile["COLUMNS"] <= 512:
            warps = 4
        elif name in WALKS and self.p.delta and tile["KEYS"] > FEW_KEYS and self.shared["G"] < 2:
            warps = 2
        # chunks under way at once (num_stages) would be faster still, but made a layer of few
        # channels read memory that is not its own (H100, Triton 3.6)
        return Launch(kernel, programs, fixed, {"num_warps": warps, "num_stages": 1})

    def _walk(self, name: str, operands: dict[str, Any]) -> None:
        """Run a kernel for every tile of the memories of a sequence."""
        tile, p = self._tile(name), self.p
        tiles = -(-p.q.shape[3] // tile["KEYS"]) * -(-p.columns // tile["COLUMNS"])
        self._start(name, p.seqs * p.v.shape[2] * tiles, operands)

    def empty(self, *shape: int) -> Tensor:
        """Room for numbers that are computed with."""
        return self.p.v.new_empty(shape, dtype=self.p.wide)

    def squares(self, *names: str) -> dict[str, Tensor | None]:
        """Room for a matrix of steps by steps for every chunk and head; None for what is absent."""
        shape = (self.count, self.p.v.shape[2], self.chunk, self.chunk)
        return {n: self.empty(*shape) if self._has(n) else None for n in names}

    def _has(self, name: str) -> bool:
        """Whether both tensors of pairs are there."""
        return all(self.shared[n] is not None for n in PAIRS.get(name, PAIRS["system"]))

    def blocks(self) -> tuple[str, int]:
        """Names of the kernels of pairs, and their programs for each chunk and head."""
        return (
            ("run_channel_pairs", self.chunk // SIDE) if self.shared["G"] == 2 else ("run_pairs", 1)
        )

    def all_pairs(self) -> dict[str, Tensor | None]:
        """Products of steps, for every chunk and head, and the solved system."""
        pairs = self.squares(*PAIRS, "solved")
        kernel, blocks = self.blocks()
        self.launch(kernel, blocks, **pairs)
        if pairs["system"] is not None:
            self.launch("run_solve", 1, A=pairs["system"], T=pairs["solved"])
        return pairs

    def states(
        self, pairs: dict[str, Tensor | None], memories: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The memory before each chunk, what is solved for, and the last memory.

        The first goes to ``memories``, if that has room for it.
        """
        p, final = self.p, self.empty(*self.p.memory)
        if memories is None or p.delta:
            memories = self.empty(self.count, *p.memory[1:])
        u = self.empty(*p.v.shape[:3], p.columns) if p.delta else None
        initial = None if p.initial_state is None else dense(p.initial_state)
        operands = {n: pairs[n] for n in ("past", "system", "solved")} | {"EARLY": self.low_rank}
        operands |= {"initial": initial, "kept": memories, "u": u, "final": final}
        self._walk("run_states", operands)
        return memories, u, final

    def adjoint(
        self, pairs: dict[str, Tensor | None], grad_final: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The gradients of the memory behind each chunk, of what is solved for, of the first."""
        p = self.p
        grad_memories, initial = self.empty(self.count, *p.memory[1:]), self.empty(*p.memory)
        dz = self.empty(*p.v.shape[:3], p.columns) if p.delta else None
        operands = {n: pairs[n] for n in ("mix", "system", "solved")} | {"grad_final": grad_final}
        operands |= {"kept": grad_memories, "dz": dz, "grad_initial": initial}
        self._walk("run_adjoint", operands)
        return grad_memories, dz, initial


class _Gradients:
    """The gradients of the tensors of steps, each head by itself, added up part by part.

    Args:
        run: with what is read of all memories, and their gradients.
        memories, behind: memories before each chunk, and gradients of those behind.
        dz: of what is solved for.
    """

    def __init__(self, run: _Run, memories: Tensor, behind: Tensor, dz: Tensor | None) -> None:
        self.run, shared, p = run, run.shared, run.p
        each = (*p.v.shape[:3], p.q.shape[3])
        self.of = {n: run.empty(*each) for n in ("q", "k", "w", "a") if shared[n] is not None}
        self.dg = run.empty(*each[: shared["G"] + 2]) if shared["G"] else None
        kernel, blocks = run.blocks()
        self.dbonus: Tensor | None = None
        if p.bonus is not None:
            self.dbonus = run.empty(run.count, blocks, p.v.shape[2], p.q.shape[3])
        grads = {f"d{n}": self.of.get(n) for n in ("q", "k", "w", "a")}
        grads |= {"dg": self.dg, "dbonus": self.dbonus, "dz": dz}
        run.launch("run_asked", 1, kept=memories, **grads)  # the first, which stores and adds not
        run.launch("run_written", 1, before=memories, kept=behind, **grads)
        squares: dict[str, Tensor | None] = {}
        if shared["G"] == 2:
            squares = run.squares(*PAIRS)
            run.launch("run_products", 1, **squares, **grads)
        run.launch(f"{kernel}_back", blocks, **squares, **grads)

    def of_arguments(self, dv: Tensor, initial: Tensor) -> tuple[Tensor | None, ...]:
        """In the order of a `Problem`, from the gradient of values times beta."""
        p, of = self.run.p, self.of
        dbeta = None
        if p.beta is not None:
            dbeta = (dv * p.v).sum(-1)
            dv = dv * p.beta[..., None]
        if p.delta and not self.run.low_rank:
            k, weight = (
                _repeat_shared(p.k, p.v.shape[2]),
                1 if p.beta is None else p.beta[..., None],
            )
            if dbeta is not None:
                dbeta = dbeta - (of["a"] * k).sum(-1)
            of = {"q": of["q"], "k": of["w"] - of["a"] * weight}
        own = {"q": p.q, "k": p.k, "a": p.a, "w": p.b}
        of = {n: _sum_shared(x, cast(Tensor, own[n])) for n, x in of.items()}
        a, b = (of["a"], of["w"]) if self.run.low_rank else (None, None)
        dg = self.dg
        if dg is not None and self.run.shared["CONSTANT"]:
            dg = dg.sum((0, 1))
        bonus = None if self.dbonus is None else self.dbonus.sum((0, 1))
        state = None if p.initial_state is None else initial
        dv = dv.to(p.v.dtype)
        return of["q"], of["k"], dv, dg, None, bonus, dbeta, a, b, state


def _layout(p: Problem) -> tuple[Any, ...]:
    """Its options, and shapes and dtypes of its tensors, which kernels read as dense ones."""
    tensors = (*p.tensors, p.sign, p.reset, p.cu_seqlens)
    layouts = (None if x is None else (x.shape, x.dtype) for x in tensors)
    return *layouts, *p[len(tensors) :]


@functools.lru_cache(maxsize=256)
def _launches(*layout: Any) -> dict[str, Launch]:
    """The kernels of one layout, precision and device, by name."""
    return {}


def _repeat_shared(x: Tensor, heads: int) -> Tensor:
    """Repeat for each head what heads share."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def _sum_shared(x: Tensor, like: Tensor) -> Tensor:
    """The sum of the gradients of the heads that share something, in a fixed order."""
    if x.shape[2] != like.shape[2]:
        x = x.unflatten(2, (like.shape[2], -1)).sum(3)
    return x.to(like.dtype)


def _heads(x: Tensor | None) -> int:
    return 1 if x is None else x.shape[2]


def _rounded(size: int) -> int:
    """Up to a power of two, and to what products take."""
    return max(16, 1 << (size - 1).bit_length())


@functools.cache
def _module(name: str) -> Any:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module(f"linrnn.ops.matrix._memory.{name}")

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
import math
from typing import Any

import torch
from torch import Tensor

from linrnn.compute import gpu
from linrnn.compute.launch import Launch
from linrnn.compute.layout import dense
from linrnn.ops.matrix._memory._problem import Problem
from linrnn.ops.matrix._memory._triton_gradients import PAIRS, Gradients
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

#: Matrices of steps by steps.
SQUARES = (*PAIRS, "solved")

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
    "run_solve": (1, 1), "run_rates": (4, 4), "run_rates_back": (4, 4),
}  # fmt: skip
_MODULES = {
    "run_solve": "_triton_solve",
    **dict.fromkeys(("run_rates", "run_rates_back"), "_triton_rates"),
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
    if not solving and (p.v.dtype != torch.float32 or gpu.allows_tf32()):
        return "tf32"
    return "ieee" if p.delta and keys == FEW_KEYS else "tf32x3"


def window(p: Problem) -> int | None:
    """Steps from one memory to the next that are kept for the gradient.

    None where a system is solved: what comes out of it is computed again, and they with it.
    """
    return None if p.delta else CHUNK


def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    """``(o, final_state)`` of a `Problem`; memories before chunks go to the last input."""
    *fields, memories = inputs
    problem = Problem(*fields)
    p = _prepared(problem)
    with torch.cuda.device_of(p.v):
        run = _Run(p)
        more = ("memories", "u") if p.delta else ("memories",) if memories is None else ()
        room = run.all_pairs(*more)
        room.setdefault("memories", memories)
        final = run.states(room)
        o = p.v.new_empty(*p.v.shape[:3], p.columns)
        run.launch(
            "run_outputs", run.tiles(p.columns), near=room["near"], mix=room["mix"],
            states=room["memories"], u=room.get("u"), o=o,
        )  # fmt: skip
    return rolled(problem, o), final


def backward(*inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the ten tensors at the head of a `Problem`; None for those that are.

    Its fields are followed by what `forward` kept and by the gradients of the results.
    """
    *fields, memories, grad_o, grad_final = inputs
    problem = Problem(*fields)
    if all(x is y for x, y in zip(_prepared(problem), problem, strict=True)):
        return _backward(problem, memories, grad_o, grad_final)
    leaves = [None if x is None else x.detach().requires_grad_() for x in problem.tensors]
    with torch.enable_grad():
        p = _prepared(Problem._make([*leaves, *problem[len(leaves) :]]))
    outputs = [(i, x) for i, x in enumerate(p.tensors) if x is not None]
    alone = Problem._make(x.detach() if isinstance(x, Tensor) else x for x in p)
    grads = _backward(alone, memories, spread_reads(problem, grad_o), grad_final)
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
    with torch.cuda.device_of(p.v):
        run = _Run(p)
        room = run.all_pairs("behind", *(("memories", "u") if p.delta else ()))
        room.setdefault("memories", memories)
        if p.delta:
            run.states(room)
        run.tensors |= {"do": dense(grad_o), "u": room.get("u")}
        dz, initial = run.adjoint(room, None if grad_final is None else dense(grad_final))
        grads = Gradients(run, room, dz)
        dv = dz
        if run.tensors["k"] is not None:
            dv = run.empty(*p.v.shape)
            run.launch(
                "run_values", run.tiles(p.v.shape[3]), near=room["near"], past=room["past"],
                states=room["behind"], dz=dz, dv=dv,
            )  # fmt: skip
        assert dv is not None
        return grads.of_arguments(dv, initial)


class _Plan:
    """All of a problem that follows from its layout: made once, and used by every call like it.

    Args:
        p: the first of these problems, with one write a step.
    """

    def __init__(self, p: Problem) -> None:
        batch, time, heads, values = p.v.shape
        g, keys = p.g, p.q.shape[3]
        self.low_rank, self.wide = p.a is not None, p.wide
        self.chunk = CHUNK
        if p.delta:
            self.chunk = SOLVED if keys <= MANY_KEYS else SOLVED_WIDE
        self.count = batch * -(-time // self.chunk)
        if p.cu_seqlens is not None:
            self.count = time // self.chunk + p.seqs
        self.constants: dict[str, Any] = {
            "time": time, "heads": heads, "keys": keys, "values": values, "columns": p.columns,
            "G": 0 if g is None else 2 if g.ndim in (2, 4) else 1, "CHUNK": self.chunk,
            "CONSTANT": g is not None and g.ndim < 3, "EARLY": p.bonus is not None,
            "ASKS_EARLY": self.low_rank, "ONES": p.normalizer, "SCALE": p.scale,
            "REVERSE": p.reverse, "STRICT": p.bonus is not None or p.before, "SIDE": SIDE,
            "PRECISION": _precision(p), "SOLVING": _precision(p, True),
        }  # fmt: skip
        self.launches: dict[str, Launch] = {}
        self.rate_rows = max(1, 2 * TILE // _rounded(max(keys, values)))
        self._rooms: dict[tuple[str, ...], tuple[int, ...]] = {}
        square = self.count * heads * self.chunk**2
        memories, rows = self.count * math.prod(p.memory[1:]), batch * time * heads * p.columns
        self._sizes = {"memories": memories, "behind": memories, "u": rows}
        self._sizes |= dict.fromkeys(SQUARES, square)
        width, columns = _rounded(keys), _rounded(p.columns)
        few = {"walk": width if p.delta else min(width, 32), "": min(width, 64)}  # or all
        self._tiles = {
            n: {"KEYS": k, "COLUMNS": max(16, min(columns, 32, TILE // k))} for n, k in few.items()
        }

    def room(self, names: tuple[str, ...], like: Tensor) -> dict[str, Tensor]:
        """Memory for numbers that are computed with, by name: aligned pieces of one allocation."""
        sizes = self._rooms.get(names)
        if sizes is None:
            sizes = self._rooms[names] = tuple(-(-self._sizes[n] // 4) * 4 for n in names)
        pieces = like.new_empty(sum(sizes), dtype=self.wide).split(sizes)
        return dict(zip(names, pieces, strict=True))

    def tile(self, name: str = "") -> dict[str, int]:
        """Keys and columns at once, of what walks over a sequence and of other kernels."""
        return self._tiles["walk" if name in WALKS else ""]


class _Run:
    """A problem as kernels see it, and the kernels run on it."""

    def __init__(self, p: Problem) -> None:
        self.p, self.plan = p, _plan(p)
        g, offsets, plan = p.g, p.cu_seqlens, self.plan
        slots = None
        if offsets is not None:
            offsets = offsets.to(p.v.device, torch.int64).contiguous()
            first_slot = offsets[:-1] // plan.chunk + torch.arange(p.seqs, device=p.v.device)
            places = torch.arange(plan.count, device=p.v.device)
            slots = torch.searchsorted(first_slot, places, right=True) - 1
        #: The tensors that kernels are given, by the names of their arguments.
        self.tensors: dict[str, Tensor | None] = {
            "g": g if g is None else dense(g), "slots": slots, "cu_seqlens": offsets,
            "reset": p.reset if p.reset is None else dense(p.reset),
            "bonus": p.bonus if p.bonus is None else dense(p.bonus), **self._operands(),
        }  # fmt: skip
        self.beta: Tensor | None = None
        if p.delta and p.beta is not None and not self.plan.low_rank:
            self.beta = dense(p.beta)
            self.rates("run_rates", k=self.tensors["w"], v=dense(p.v), beta=self.beta)

    def rates(self, name: str, **operands: Any) -> None:
        """Run a kernel of the delta rule's rates, which no chunks concern."""
        batch, time, heads, _ = self.p.v.shape
        rows = self.plan.rate_rows
        if name not in self.plan.launches:
            keys, columns = _rounded(self.p.q.shape[3]), _rounded(self.p.v.shape[3])
            operands |= {"ROWS": rows, "KEYS": keys, "COLUMNS": columns, "batch": batch}
            operands["key_heads"] = self.p.k.shape[2]
        self._start(name, -(-batch * time * heads // rows), operands)

    def _operands(self) -> dict[str, Tensor | None]:
        """The tensors of steps."""
        p = self.p
        v, beta = p.v, p.beta
        if beta is not None and (self.plan.low_rank or not p.delta):
            v = v * beta[..., None]
        of_steps = {"q": p.q, "k": p.k, "v": v, "w": None, "a": None, "x": None}
        if self.plan.low_rank:
            of_steps |= {"w": p.b, "a": p.a}
        elif beta is None and p.delta:
            of_steps |= {"k": None, "v": None, "w": p.k, "a": -p.k, "x": p.v}
        elif beta is not None and p.delta:  # a and x are computed by `rates`
            keys = p.q.shape[3]
            shape, a, x = beta.shape, p.k.dtype, p.v.dtype
            a, x = torch.promote_types(a, beta.dtype), torch.promote_types(x, beta.dtype)
            of_steps |= {"k": None, "v": None, "w": p.k}
            of_steps |= {
                "a": v.new_empty(*shape, keys, dtype=a),
                "x": v.new_empty(v.shape, dtype=x),
            }
        return {n: None if x is None else dense(x) for n, x in of_steps.items()}

    def launch(self, name: str, programs: int, **operands: Any) -> None:
        """Run a kernel for every head of every chunk, each with the same number of programs.

        Args:
            name: of the kernel.
            programs: of a head and chunk.
            operands: its arguments, beside those of the problem.
        """
        self._start(name, programs * self.plan.count * self.p.v.shape[2], operands)

    def tiles(self, columns: int) -> int:
        """Tiles of columns that programs of all keys have."""
        return -(-columns // self.plan.tile()["COLUMNS"])

    def _start(self, name: str, programs: int, operands: dict[str, Any]) -> None:
        launch = self.plan.launches.get(name)
        if launch is None:
            launch = self.plan.launches[name] = self._prepared(name, programs, operands)
        tensors = self.tensors
        launch(*[operands[n] if n in operands else tensors[n] for n in launch.tensors])

    def _prepared(self, name: str, programs: int, operands: dict[str, Any]) -> Launch:
        """A kernel with its arguments but for tensors: the same in all calls of one layout."""
        kernel = getattr(_module(_MODULES[name]), name)
        plan, tl = self.plan, gpu.language()
        tile = plan.tile(name)
        values = {
            **plan.constants, **self.tensors, **tile, **operands,
            **{f"{n}_heads": _heads(self.tensors[n]) for n in ("q", "k", "v", "w", "a", "x")},
            "DTYPE": tl.float64 if plan.wide == torch.float64 else tl.float32,
        }  # fmt: skip
        open_names = {n for n in kernel.arg_names if isinstance(values[n], Tensor)} | OPEN
        fixed = {n: values[n] for n in kernel.arg_names if n not in open_names}
        warps = WARPS[name][self.p.delta]
        if name in WALKS and tile["KEYS"] * tile["COLUMNS"] <= 512:
            warps = 4
        elif name in WALKS and self.p.delta and tile["KEYS"] > FEW_KEYS and plan.constants["G"] < 2:
            warps = 2
        # chunks under way at once (num_stages) would be faster still, but made a layer of few
        # channels read memory that is not its own (H100, Triton 3.6)
        return Launch(kernel, programs, fixed, {"num_warps": warps, "num_stages": 1})

    def _walk(self, name: str, operands: dict[str, Any]) -> None:
        """Run a kernel for every tile of the memories of a sequence."""
        tile, p = self.plan.tile(name), self.p
        tiles = -(-p.q.shape[3] // tile["KEYS"]) * -(-p.columns // tile["COLUMNS"])
        self._start(name, p.seqs * p.v.shape[2] * tiles, operands)

    def empty(self, *shape: int) -> Tensor:
        """Room for numbers that are computed with."""
        return self.p.v.new_empty(shape, dtype=self.plan.wide)

    def room(self, *names: str) -> dict[str, Tensor | None]:
        """Memory by name: of pairs, where both of their tensors are there, and all else.

        Pairs are a matrix of steps by steps for every chunk and head; None for what is absent.
        """
        present = tuple(n for n in names if self._has(n))
        return dict.fromkeys(names) | self.plan.room(present, self.p.v)

    def _has(self, name: str) -> bool:
        """Whether both tensors of pairs are there."""
        square = "system" if name == "solved" else name
        first, second = PAIRS[square] if name in SQUARES else ("q", "q")
        return self.tensors[first] is not None and self.tensors[second] is not None

    def blocks(self) -> tuple[str, int]:
        """Names of the kernels of pairs, and their programs for each chunk and head."""
        by_channel = self.plan.constants["G"] == 2
        return ("run_channel_pairs", self.plan.chunk // SIDE) if by_channel else ("run_pairs", 1)

    def all_pairs(self, *further: str) -> dict[str, Tensor | None]:
        """Products of steps, for every chunk and head, and the solved system; room for others."""
        room = self.room(*SQUARES, *further)
        kernel, blocks = self.blocks()
        self.launch(kernel, blocks, **room)
        if room["system"] is not None:
            self.launch("run_solve", 1, A=room["system"], T=room["solved"])
        return room

    def states(self, room: dict[str, Tensor | None]) -> Tensor:
        """Fill the memory before each chunk and what is solved for; the last memory."""
        p, final = self.p, self.empty(*self.p.memory)
        initial = None if p.initial_state is None else dense(p.initial_state)
        operands: dict[str, Any] = {n: room[n] for n in ("past", "system", "solved")}
        operands |= {"initial": initial, "EARLY": self.plan.low_rank}
        operands |= {"states": room["memories"], "u": room.get("u"), "final": final}
        self._walk("run_states", operands)
        return final

    def adjoint(
        self, room: dict[str, Tensor | None], grad_final: Tensor | None
    ) -> tuple[Tensor | None, Tensor]:
        """Fill the gradient of the memory behind each chunk; that of what is solved for, the first.

        These two may be results, so each is allocated alone.
        """
        p = self.p
        initial = self.empty(*p.memory)
        dz = self.empty(*p.v.shape[:3], p.columns) if p.delta else None
        operands = {n: room[n] for n in ("mix", "system", "solved")} | {"grad_final": grad_final}
        operands |= {"states": room["behind"], "dz": dz, "grad_initial": initial}
        self._walk("run_adjoint", operands)
        return dz, initial


def _layout(p: Problem) -> tuple[Any, ...]:
    """Its options, and shapes and dtypes of its tensors, which kernels read as dense ones."""
    fields: tuple[Any, ...] = p
    tensors, options = fields[:_TENSORS], fields[_TENSORS:]
    return *[None if x is None else (x.shape, x.dtype) for x in tensors], *options


_TENSORS = Problem._fields.index("cu_seqlens") + 1
"""Fields of a problem that are tensors, the first ones."""


_MOST = 256
_plans: dict[tuple[Any, ...], _Plan] = {}


def _plan(p: Problem) -> _Plan:
    """The plan of all problems of one layout, device and permission to use TF32."""
    key = (gpu.allows_tf32(), p.v.device, CHUNK, SOLVED, *_layout(p))
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST:
            _plans.clear()
        plan = _plans[key] = _Plan(p)
    return plan


def _heads(x: Tensor | None) -> int:
    return 1 if x is None else x.shape[2]


def _rounded(size: int) -> int:
    """Up to a power of two, and to what products take."""
    return max(16, gpu.power_of_two(size))


@functools.cache
def _module(name: str) -> Any:
    """Triton is imported by the first call that runs on it."""
    return importlib.import_module(f"linrnn.ops.matrix._memory.{name}")

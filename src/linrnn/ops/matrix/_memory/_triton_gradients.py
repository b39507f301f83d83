"""The gradients of a matrix memory's arguments, from those of the numbers that kernels read."""

from typing import Any, cast

import torch
from torch import Tensor

from linrnn.compute.layout import dense

_DENSE = torch.contiguous_format

#: Which products of steps a chunk needs, of what reads with what writes.
PAIRS = {"near": ("q", "k"), "mix": ("q", "w"), "past": ("a", "k"), "system": ("a", "w")}


class Gradients:
    """The gradients of the tensors of steps, each head by itself, added up part by part.

    Args:
        run: the `_Run` with what is read of all memories, and their gradients.
        room: memories before each chunk, and gradients of those behind.
        dz: of what is solved for.
    """

    def __init__(self, run: Any, room: dict[str, Tensor | None], dz: Tensor | None) -> None:
        self.run, tensors, p = run, run.tensors, run.p
        each, kind = (*p.v.shape[:3], p.q.shape[3]), run.plan.constants["G"]
        self.of = {n: run.empty(*each) for n in ("q", "k", "w", "a") if tensors[n] is not None}
        self.dg = run.empty(*each[: kind + 2]) if kind else None
        kernel, blocks = run.blocks()
        self.dbonus: Tensor | None = None
        if p.bonus is not None:
            self.dbonus = run.empty(run.plan.count, blocks, p.v.shape[2], p.q.shape[3])
        grads = {f"d{n}": self.of.get(n) for n in ("q", "k", "w", "a")}
        grads |= {"dg": self.dg, "dbonus": self.dbonus, "dz": dz}
        memories = room["memories"]
        run.launch("run_asked", 1, states=memories, **grads)  # the first, which stores and adds not
        run.launch("run_written", 1, entering=memories, states=room["behind"], **grads)
        squares: dict[str, Tensor | None] = {}
        if kind == 2:
            squares = run.room(*PAIRS)
            run.launch("run_products", 1, **squares, **grads)
        run.launch(f"{kernel}_back", blocks, **squares, **grads)

    def of_arguments(self, dv: Tensor, initial: Tensor) -> tuple[Tensor | None, ...]:
        """In the order of a `Problem`, from the gradient of values times beta."""
        p, of = self.run.p, self.of
        dbeta = None
        if self.run.beta is not None and p.q.shape[2] == p.k.shape[2] == p.v.shape[2]:
            of, dv, dbeta = self._of_rates(dv)
        elif p.beta is not None:
            dbeta = (dv * p.v).sum(-1)
            dv = dv * p.beta[..., None]
        if "w" in of and not self.run.plan.low_rank:
            k, weight = (
                _repeat_shared(p.k, p.v.shape[2]),
                1 if p.beta is None else p.beta[..., None],
            )
            if dbeta is not None:
                dbeta = dbeta - (of["a"] * k).sum(-1)
            of = {"q": of["q"], "k": of["w"] - of["a"] * weight}
        shared = {"q": p.q, "k": p.k, "a": p.a, "w": p.b}
        of = {n: _sum_shared(x, cast(Tensor, shared[n])) for n, x in of.items()}
        a, b = (of["a"], of["w"]) if self.run.plan.low_rank else (None, None)
        dg = self.dg
        if dg is not None and self.run.plan.constants["CONSTANT"]:
            dg = dg.sum((0, 1))
        bonus = None if self.dbonus is None else self.dbonus.sum((0, 1))
        state = None if p.initial_state is None else initial
        dv = dv.to(p.v.dtype)
        return of["q"], of["k"], dv, dg, None, bonus, dbeta, a, b, state

    def _of_rates(self, dv: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Gradients of queries and keys, of values and of rates, if no head shares a key."""
        run, p, of = self.run, self.run.p, self.of
        q, k, v = (torch.empty_like(x, memory_format=_DENSE) for x in (p.q, p.k, p.v))
        beta = run.empty(*p.v.shape[:3])
        run.rates(
            "run_rates_back", k=run.tensors["w"], v=dense(p.v), beta=run.beta, dq=of["q"],
            dw=of["w"], da=of["a"], dv=dv, of_q=q, of_k=k, of_v=v, of_beta=beta,
        )  # fmt: skip
        return {"q": q, "k": k}, v, beta


def _repeat_shared(x: Tensor, heads: int) -> Tensor:
    """Repeat for each head what heads share."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def _sum_shared(x: Tensor, like: Tensor) -> Tensor:
    """The sum of the gradients of the heads that share something, in a fixed order."""
    if x.shape[2] != like.shape[2]:
        x = x.unflatten(2, (like.shape[2], -1)).sum(3)
    return x.to(like.dtype)

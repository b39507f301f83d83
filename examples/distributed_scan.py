"""One long sequence scanned by several processes, checked against one process.

    torchrun --nproc-per-node=4 examples/distributed_scan.py

Uses NCCL where every process has a GPU of its own, and Gloo on CPUs otherwise.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from linrnn.ops import distributed_linear_scan, linear_scan

BATCH, TIME, CHANNELS = 2, 2**16, 64


def main() -> None:
    """Scan this rank's piece, then let the first rank compare the whole."""
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device(f"cuda:{local}" if on_gpu else "cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    # every rank draws the same whole sequence, to check; a real program reads its own piece
    torch.manual_seed(0)
    whole_a = 0.999 + 0.001 * torch.rand(BATCH, TIME, CHANNELS)
    whole_b = torch.randn(BATCH, TIME, CHANNELS)
    a, b = (x.tensor_split(ranks, 1)[rank].to(device).requires_grad_() for x in (whole_a, whole_b))

    h, final = distributed_linear_scan(a, b)
    (h.square().mean() + final.square().mean() / ranks).backward()

    found = [gather_time(x) for x in (h.detach(), a.grad, b.grad)]
    if rank == 0:
        compare(whole_a, whole_b, [*found, final.detach().cpu()], ranks)
    dist.destroy_process_group()


def gather_time(piece: Tensor) -> Tensor:
    """The pieces of all ranks, one after the other in time."""
    parts = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, piece.contiguous())
    return torch.cat(parts, 1).cpu()


def compare(a: Tensor, b: Tensor, found: list[Tensor], ranks: int) -> None:
    """Print how far the ranks are from one process, and fail if it is more than rounding."""
    a, b = a.double().requires_grad_(), b.double().requires_grad_()
    h, final = linear_scan(a, b)
    # the mean over a piece, summed over the pieces, is `ranks` times the mean over the whole
    (ranks * h.square().mean() + final.square().mean()).backward()
    print(f"{ranks} ranks, batch {BATCH}, {TIME} steps, {CHANNELS} channels, float32")
    print(f"sent by each rank: {BATCH * (2 * CHANNELS + 1) * 8} bytes forward, and", end=" ")
    print(
        f"{BATCH * 2 * CHANNELS * 8} backward; its piece has {BATCH * TIME * CHANNELS * 4 // ranks}"
    )
    names = ("h", "gradient of a", "gradient of b", "final state")
    for name, got, expected in zip(
        names, found, (h.detach(), a.grad, b.grad, final.detach()), strict=True
    ):
        error = float((got - expected).abs().max() / expected.abs().max())
        print(f"{name:14} differs from one float64 process by {error:.1e} of its largest value")
        if not error < 1e-5:
            raise SystemExit(f"{name} is wrong")
    print(f"{ranks} ranks agree with one process")


if __name__ == "__main__":
    main()

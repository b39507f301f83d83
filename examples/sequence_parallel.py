"""A model whose one long sequence lies on several processes, checked against one process.

    torchrun --nproc-per-node=4 examples/sequence_parallel.py

Each process reads its own piece of 2^20 steps; the states of every layer cross the cuts. Uses
NCCL where every process has a GPU of its own, and Gloo on CPUs otherwise.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from linrnn import SequenceModel
from linrnn.ops import sequence_parallel


def main() -> None:
    """Train on this rank's piece for a step, then let the first rank compare gradients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2**20, help="of the whole sequence")
    parser.add_argument("--width", type=int, default=4, help="of the model")
    args = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device(f"cuda:{local}" if on_gpu else "cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    # every rank draws the same model and whole sequence, to check; a program reads its own piece
    torch.manual_seed(0)
    options = {"r_min": 0.99, "r_max": 0.99999}  # memories of 100 to 100,000 steps
    model = SequenceModel(
        1, 1, mixer="lru", mixer_options=options, d_model=args.width, n_layers=2, norm="layer",
        pool="none",
    ).to(device)  # fmt: skip
    x = torch.randn(1, args.steps, 1)
    target = x.cumsum(1) / torch.arange(1, args.steps + 1).sqrt()[:, None]
    piece, wanted = (whole.tensor_split(ranks, 1)[rank].to(device) for whole in (x, target))

    with sequence_parallel():
        y, _ = model(piece)
    loss = (y - wanted).square().sum() / args.steps  # this rank's share of the mean
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # the sum of the shares
    total = loss.detach().clone()
    dist.all_reduce(total)

    if rank == 0:
        found = {name: p.grad.cpu().double() for name, p in model.named_parameters()}
        compare(model.cpu().double(), x.double(), target.double(), found, total.item())
        print(f"{ranks} ranks agree with one process on {args.steps:,} steps")
    dist.barrier()
    dist.destroy_process_group()


def compare(
    model: nn.Module, x: Tensor, target: Tensor, found: dict[str, Tensor], total: float
) -> None:
    """Print how far the ranks are from one float64 process, and fail if more than rounding."""
    model.zero_grad()
    loss = (model(x)[0] - target).square().mean()
    loss.backward()
    print(f"loss {total:.7f}, of one process {loss.item():.7f}")
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    worst = 0.0
    for name, parameter in model.named_parameters():
        error = float((found[name] - parameter.grad).norm() / parameter.grad.norm())
        small = float(parameter.grad.abs().max()) < 1e-6 * largest
        worst = max(worst, 0.0 if small else error)
    print(f"gradients differ from one float64 process by at most {worst:.1e} of their norm")
    if not worst < 1e-3 or abs(total - loss.item()) > 1e-4 * loss.item():
        raise SystemExit("the gradients are wrong")


if __name__ == "__main__":
    main()

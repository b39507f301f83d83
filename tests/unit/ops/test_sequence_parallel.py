"""Models whose sequences lie on several Gloo processes, compared with one process."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

from linrnn import SequenceModel
from linrnn.errors import ArgumentError, BackendError
from linrnn.mixers import LRU, build
from linrnn.ops import linear_scan, sequence_parallel
from linrnn.state import leaves, map_state

PIECES = (5, 1, 9)
DOUBLE = torch.float64


def make(mixer):
    torch.manual_seed(0)
    options = {"d_state": 4} if mixer == "s5" else {}
    model = SequenceModel(
        2, 3, mixer=mixer, mixer_options=options, d_model=4, n_layers=2, norm="layer", pool="none",
        dtype=DOUBLE,
    )  # fmt: skip
    x, wanted = torch.randn(2, 15, 2, dtype=DOUBLE), torch.randn(2, 15, 3, dtype=DOUBLE)
    reset = torch.rand(2, 15) < 0.15
    state = map_state(torch.randn_like, model.init_state(2))
    return model, x, wanted, reset, state


def share(mixer, rank):
    """The share of a rank: results of its piece."""
    model, *sequences, state = make(mixer)
    x, wanted, reset = (whole.split(PIECES, 1)[rank] for whole in sequences)
    with sequence_parallel():
        y, after = model(x, state, reset=reset)
        (y - wanted).square().sum().backward()
    assert (linear_scan(torch.ones(1), torch.ones(1, 4, 1))[1]).item() == 4  # outside it is local
    gradients = [p.grad for p in model.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
    return y.detach(), leaves(after), gradients


def work(rank, mixers, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", len(PIECES))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(PIECES))
    found = {mixer: share(mixer, rank) for mixer in mixers}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_layers_that_say_so_are_split_and_give_the_numbers_of_one_process(tmp_path):
    mixers = ["lru", "s5", "slru"]
    multiprocessing.start_processes(work, (mixers, str(tmp_path)), len(PIECES), start_method="fork")
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in range(len(PIECES))]
    for mixer in mixers:
        model, x, wanted, reset, state = make(mixer)
        y, after = model(x, state, reset=reset)
        (y - wanted).square().sum().backward()
        close = {"rtol": 1e-9, "atol": 1e-10}
        torch.testing.assert_close(torch.cat([part[mixer][0] for part in parts], 1), y, **close)
        for part in parts:
            for found, expected in zip(part[mixer][1], leaves(after), strict=True):
                torch.testing.assert_close(found, expected, **close)
            for found, parameter in zip(part[mixer][2], model.parameters(), strict=True):
                torch.testing.assert_close(found, parameter.grad, **close)


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, r'SequenceModel.forward: inside sequence_parallel pool must be "none"'),
        ({"pool": "none"}, 'norm must be "layer", "rms" or "none"'),
        ({"pool": "none", "norm": "layer", "conv_width": 4}, "conv_width must be 0"),
        ({"pool": "none", "norm": "layer", "tiers": (2,)}, r"tiers must be \(\)"),
        ({"pool": "none", "norm": "layer", "mixer": "gru"}, "got GRU of form"),
        ({"pool": "none", "norm": "layer", "mixer": "mamba"}, "got Mamba of form"),
        ({"pool": "none", "norm": "layer", "bidirectional": True}, "got Bidirectional of form"),
    ],
)
def test_what_cannot_be_split_is_refused(alone, options, text):
    model = SequenceModel(1, 1, d_model=4, n_layers=1, **options)
    model(torch.randn(3, 8, 1))
    with sequence_parallel(), pytest.raises(BackendError, match=text):
        model(torch.randn(3, 8, 1))
    model(torch.randn(3, 8, 1))


@pytest.mark.unchecked
def test_forms_and_arguments_that_cannot_be_split(alone):
    x = torch.randn(1, 8, 4)
    with sequence_parallel():
        LRU(4)(x)
        with pytest.raises(BackendError, match=r"got LRU of form 'conv'.*Use form='scan'"):
            build("lru", 4, {"form": "conv"})(x)
        with pytest.raises(BackendError, match="cu_seqlens must be None"):
            linear_scan(torch.ones(4), x, cu_seqlens=torch.tensor([0, 3, 8]))
        model = SequenceModel(1, 1, d_model=4, n_layers=1, norm="layer", pool="none")
        with pytest.raises(BackendError, match="lengths must be None"):
            model(torch.randn(2, 5, 1), lengths=torch.tensor([5, 3]))
    with pytest.raises(ArgumentError):
        LRU(4)(x[..., :3])


@pytest.mark.unchecked
def test_without_a_process_group_it_says_how_to_start():
    with sequence_parallel(), pytest.raises(BackendError, match=r"got none\. Start the program"):
        LRU(4)(torch.randn(1, 8, 4))


def run_example(root, steps):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
    script = root / "examples" / "sequence_parallel.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, script, "--steps", str(steps)],
        capture_output=True, text=True, timeout=500, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_million_steps_on_four_processes(root):
    assert "4 ranks agree with one process on 1,048,576 steps" in run_example(root, 2**20)

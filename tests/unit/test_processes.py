"""One library in many threads, in forked and spawned processes: right numbers, and never a hang."""

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from linrnn import SequenceModel

THREADS, SECONDS = 64, 100
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

# kernels of each kind: scan, selective scan and convolution, gated scan, PyTorch's own operators
each_mixer = pytest.mark.parametrize("mixer", ["lru", "mamba", "mingru", "rwkv4"])


def make_model(mixer="lru", **options):
    torch.manual_seed(0)
    return SequenceModel(3, 2, d_model=8, n_layers=1, mixer=mixer, pool="none", **options).eval()


def answers(model, i, times=40):
    """The answer to input i: outputs, every gradient, and a few steps one by one."""
    x = torch.randn(2, times, 3, generator=torch.Generator().manual_seed(i)).requires_grad_()
    y, _ = model(x)
    grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
    state, steps = model.init_state(2), []
    with torch.no_grad():
        for t in range(3):
            out, state = model.step(x[:, t], state)
            steps.append(out)
    return [y.detach(), *grads, *steps]


@each_mixer
def test_64_threads_get_the_bits_that_each_would_get_alone(mixer):
    model = make_model(mixer)
    alone = [answers(model, i) for i in range(4)]
    together, ready = {}, threading.Barrier(THREADS, timeout=SECONDS)

    def work(i):
        ready.wait()
        together[i] = answers(model, i % 4)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(together) == THREADS, "some thread failed or hangs"
    for i, got in together.items():
        assert all(torch.equal(a, b) for a, b in zip(got, alone[i % 4], strict=True)), i


def run_script(body, threads=4):
    """A fresh interpreter whose threads nobody has started yet; it ends in time or is killed."""
    head = """
        import os, signal, sys, torch, linrnn
        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        model = linrnn.SequenceModel(3, 2, d_model=32, n_layers=1, mixer="mamba", pool="none")
        x = torch.randn(4, 600, 3)
        def answer():
            y, _ = model.eval()(x)
            (grad,) = torch.autograd.grad(y.sum(), [model.encoder.weight])
            square = torch.ones(600, 600)
            big = (square @ square).sum() + torch.ones(10**6).exp().sum()
            return float(y.sum()), float(grad.sum()), float(big)
        def in_child(work):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a child that hangs is killed, which its status says
                status = 1
                try:
                    work()
                    status = 0
                finally:
                    os._exit(status)
            return child
        def check(child):
            assert os.waitpid(child, 0)[1] == 0, "the child hangs or fails"
    """
    script = textwrap.dedent(head).replace("THREADS", str(threads)) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_fork
def test_child_forked_after_threads_were_used_computes_on_one():
    run_script("""
        expected = answer()
        def work():
            assert torch.get_num_threads() == 1
            for a, b in zip(answer(), expected):
                assert a == b or abs(a - b) < 1e-3 * abs(b), (a, b)
        check(in_child(work))
        assert torch.get_num_threads() == 4
        assert answer() == expected
    """)


@needs_fork
def test_child_forked_before_any_thread_was_used_may_ask_for_more():
    run_script("""
        def work():
            assert torch.get_num_threads() == 1
            torch.set_num_threads(4)
            answer()
        check(in_child(work))
        check(in_child(lambda: check(in_child(answer))))
    """)


@needs_fork
def test_forks_while_other_threads_compute():
    run_script(
        """
        import threading
        from linrnn.ops import linear_scan
        a, b = torch.rand(2, 400, 64), torch.rand(2, 400, 64)
        expected, stop = linear_scan(a, b)[0], threading.Event()
        def compute():
            while not stop.is_set():
                linear_scan(torch.rand(8, 2000, 64), torch.rand(8, 2000, 64))
        others = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
        for other in others: other.start()
        def work():
            assert torch.allclose(linear_scan(a, b)[0], expected)
        for _ in range(5):
            check(in_child(work))
        stop.set()
        for other in others: other.join(30)
        """,
        threads=2,
    )


class Answers(Dataset):
    """Items that a model computes, in the process of a worker; with the process it was."""

    def __init__(self):
        self.model = make_model("mamba")

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return os.getpid(), answers(self.model, i)[0]


def expected_answers():
    return [answers(make_model("mamba"), i)[0] for i in range(4)]


STARTS = [  # the way Linux has always started workers, and those that import everything anew
    s if s == "fork" else pytest.param(s, marks=pytest.mark.slow)
    for s in multiprocessing.get_all_start_methods()
]


@pytest.mark.parametrize("start", STARTS)
def test_data_loader_workers_call_a_model(start):
    expected = expected_answers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(
            Answers(),
            batch_size=None,
            num_workers=2,
            multiprocessing_context=start,
            timeout=SECONDS,
        )
        got = list(loader)
    assert all(process != os.getpid() for process, _ in got)
    for (_, y), alone in zip(got, expected, strict=True):
        torch.testing.assert_close(y, alone)


def first_answer(i):
    return answers(make_model("mamba"), i)[0].tolist()


def test_spawned_processes_compute_the_same():
    expected = expected_answers()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        got = pool.map_async(first_answer, range(4)).get(timeout=SECONDS)
    for y, alone in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.tensor(y), alone)

"""A ``with`` block holds inside and ends with it: for one thread, task and generator."""

import ast
import asyncio
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import linrnn
from linrnn import mixers
from linrnn._process.ambient import Ambient
from linrnn.compute.op import reached
from linrnn.compute.sequence_parallel import current
from linrnn.mixers import added_losses
from linrnn.ops import cell_scan, explain, linear_scan, sequence_parallel, use_backend, use_form
from linrnn.ops.linear.linear_scan.inverse import watched, watching

PACKAGE = Path(linrnn.__file__).parent
CELL = mixers.UnICORNN.cells["unicornn"].even
ONE = torch.ones(4)
CALL = {"u": torch.randn(1, 5, 4), "w": ONE, "c": ONE, "alpha": ONE, "step": ONE}


def backend():
    text = explain(linear_scan, torch.ones(3), torch.ones(1, 4, 3))
    return text.split(":")[0] if "use_backend" in text else None


def form():
    text = explain(cell_scan, CELL, **CALL)
    return text.split(":")[0] if "use_form" in text else None


def collector():
    layer = mixers.CompressiveTransformer(4, segment=4)
    return True if layer.asks_for_loss() else None


CONTEXTS = {
    "use_backend": (lambda: use_backend("reference"), backend, "reference"),
    "use_form": (lambda: use_form("loop"), form, "loop"),
    "sequence_parallel": (lambda: sequence_parallel("group"), current, ("group",)),
    "added_losses": (added_losses, collector, True),
    "scans backward": (
        lambda: watched(backward=True),
        lambda: None if watching() is None else watching().backward,
        True,
    ),
}
each = pytest.mark.parametrize(("enter", "read", "value"), CONTEXTS.values(), ids=CONTEXTS)


@each
def test_a_block_holds_inside_and_ends_with_an_error(enter, read, value):
    assert read() is None
    with enter():
        assert read() == value
    with pytest.raises(ZeroDivisionError), enter():
        raise ZeroDivisionError
    assert read() is None


@each
def test_blocks_of_two_threads_that_overlap_do_not_see_each_other(enter, read, value):
    seen, steps = {}, [threading.Event() for _ in range(3)]

    def first():
        with enter():
            steps[0].set()
            steps[1].wait(20)
            seen["first"] = read()
        steps[2].set()

    def second():
        steps[0].wait(20)
        seen["before"] = read()
        with enter():
            steps[1].set()
            steps[2].wait(20)
            seen["second"] = read()
        seen["after"] = read()

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"before": None, "first": value, "second": value, "after": None}
    assert read() is None


@each
def test_blocks_of_two_tasks_that_overlap_do_not_see_each_other(enter, read, value):
    seen = []

    async def inside(turns):
        with enter():
            for _ in range(turns):
                await asyncio.sleep(0)
                seen.append(read())

    async def outside():
        for _ in range(6):
            await asyncio.sleep(0)
            assert read() is None

    async def both():
        await asyncio.gather(inside(2), inside(4), outside())

    asyncio.run(both())
    assert seen == [value] * 6
    assert read() is None


@each
def test_a_task_that_outlives_the_block_it_was_made_in_is_outside_of_it(enter, read, value):
    async def late(ended):
        first = read()
        await ended.wait()
        return first, read()

    async def run():
        ended = asyncio.Event()
        with enter():
            task = asyncio.create_task(late(ended))
            await asyncio.sleep(0)
        ended.set()
        return await task

    assert asyncio.run(run()) == (value, None)


@each
def test_blocks_that_end_in_the_order_in_which_they_began_leave_nothing(enter, read, value):
    def block():
        with enter():
            yield read()

    first, second = block(), block()
    assert next(first) == next(second) == value
    first.close()
    assert read() == value
    second.close()
    assert read() is None


def test_the_innermost_block_counts_and_none_restores_the_choice():
    with use_backend("reference"):
        with use_backend("tree"):
            assert backend() == "tree"
            with use_backend(None):
                assert backend() is None
        assert backend() == "reference"


def test_a_call_of_another_thread_is_computed_while_one_is_only_explained():
    started, go = threading.Event(), threading.Event()
    reaches = []

    def call():
        started.set()
        go.wait(20)
        return linear_scan(torch.ones(3), torch.ones(1, 4, 3))

    thread = threading.Thread(target=lambda: reaches.append(reached(call)[0].name))
    thread.start()
    started.wait(20)
    _, last = linear_scan(torch.ones(3), torch.ones(1, 4, 3))
    go.set()
    thread.join()
    assert reaches == ["linear_scan"]
    assert last.tolist() == [[4.0, 4.0, 4.0]]


def test_a_compiled_function_follows_the_block_around_each_call():
    ambient = Ambient("scale")

    @torch.compile(backend="eager", fullgraph=True)
    def scaled(x):
        value = ambient.get()
        return x if value is None else x * value

    one = torch.ones(2)
    assert scaled(one).tolist() == [1, 1]
    for scale in (2.0, 3.0):
        with ambient.set(scale):
            assert scaled(one).tolist() == [scale] * 2
    with ambient.set(5.0), ambient.set(7.0):
        assert scaled(one).tolist() == [7, 7]
    assert scaled(one).tolist() == [1, 1]


def test_a_thousand_blocks_of_eight_threads_leave_nothing_behind():
    ambient, wrong = Ambient("number"), []

    def work(seed):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(seed)).tolist()
        with ExitStack() as stack:
            for number in order:
                stack.enter_context(ambient.set((seed, number)))
                if ambient.get() != (seed, number):
                    wrong.append((seed, number))
        if ambient.get() is not None:
            wrong.append(seed)

    for _ in range(3):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert ambient.get() is None


def test_no_other_module_keeps_who_stands_around_a_call():
    """Neither by a `ContextVar`, by the number of a thread, nor by a variable of a module."""
    elsewhere = []
    for path, tree in parsed():
        for node in ast.walk(tree):
            names = {getattr(node, "attr", None), getattr(node, "id", None)}
            names |= {alias.name for alias in getattr(node, "names", ()) if hasattr(alias, "name")}
            if isinstance(node, ast.Global) or names & {"ContextVar", "contextvars", "get_ident"}:
                elsewhere.append(f"{path.name}:{node.lineno}")
    assert elsewhere == []


def parsed():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parts[-2:] != ("_process", "ambient.py"):
            yield path, ast.parse(path.read_text())

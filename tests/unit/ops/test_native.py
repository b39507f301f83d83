"""The native library: found or explained, safe under fork and threads, any instruction set."""

import itertools
import multiprocessing
import os
import struct
import subprocess
import sys
import threading

import pytest
import torch

from linrnn.compute import native
from linrnn.compute.in_place import UPDATES
from linrnn.errors import BackendError
from linrnn.nn import _exceedance_cpu
from linrnn.ops import linear_scan
from linrnn.ops.conv import _block_carry_cpu, _cauchy_cpu, _dplr_powers_cpu, _vandermonde_cpu
from linrnn.ops.conv.causal_conv import _cpu as conv_cpu
from linrnn.ops.gated_norm import _cpu as norm_cpu
from linrnn.ops.linear import _scan_kernel, _traces_cpu
from linrnn.ops.linear.block_scan import _cpu as block_cpu
from linrnn.ops.linear.gated_scan import _cpu as gated_cpu
from linrnn.ops.selective_scan import _cpu as selective_cpu
from linrnn.testing import OP_PROPERTIES, check_close

needs_native = pytest.mark.skipif(
    native.load()[0] is None, reason=f"no native kernels: {native.load()[1]}"
)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


KERNELS = [
    _scan_kernel.SCAN,
    _scan_kernel.LOG_SCAN,
    block_cpu._BLOCK_SCAN,
    gated_cpu._SCAN,
    selective_cpu._SCAN,
    conv_cpu._CONV,
    _block_carry_cpu._CARRY,
    _traces_cpu._TRACES,
    _exceedance_cpu._EXCEEDANCE,
    _cauchy_cpu._CAUCHY,
    _vandermonde_cpu._VANDERMONDE,
    _dplr_powers_cpu._POWERS,
    norm_cpu._NORM,
    *(update.kernel for update in UPDATES.values()),
]


@needs_native
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_record_holds_its_values_whatever_order_they_are_named_in(kernel):
    layout = native.load()[0].handle.linrnn_record_layout(kernel.name.encode()).decode().split()
    arrays = {field.partition(":")[0] for field in layout if field.endswith(":array")}
    numbers = itertools.count(1)
    given = {n: [next(numbers) for _ in range(3 if n in arrays else 1)] for n in kernel.fields}
    other = [*kernel.fields[:2], *kernel.fields[:1:-1]]
    turned = native.Kernel(kernel.name, " ".join(other[2:]))
    records = [
        k.pack(*(x for n in order for x in given[n]))
        for k, order in ((kernel, kernel.fields), (turned, other))
    ]
    assert records[0] == records[1]
    words = struct.unpack(f"={len(records[0]) // 8}q", records[0])
    assert words[0] == len(records[0])
    expected = [x for field in layout for x in given[field.partition(":")[0]]]
    reals = {given[f.partition(":")[0]][0] for f in layout if f.endswith(":real")}
    assert [w for w, x in zip(words[1:], expected, strict=True) if x not in reals] == [
        x for x in expected if x not in reals
    ]


@needs_native
@pytest.mark.parametrize("spoil", [lambda names: names[:-1], lambda names: [*names, "more"]])
def test_library_of_another_version_is_named(spoil):
    names = list(_scan_kernel.SCAN.fields[2:])
    kernel = native.Kernel("scan", " ".join(spoil(names)))
    with pytest.raises(
        BackendError, match=r"another version; reinstall linrnn .*(more|grad_initial)"
    ):
        kernel(torch.float32)
    with pytest.raises(BackendError, match="another version"):
        native.Kernel("no_kernel", "x")(torch.float32)


@needs_native
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_every_instruction_set_keeps_the_laws(isa):
    code = (
        "from linrnn.testing import OP_PROPERTIES; from linrnn.compute import native as _native\n"
        f"assert _native.load()[0].isa in ({isa!r}, 'baseline'), _native.load()\n"
        "for law in ('matches_loop', 'every_shape', 'half_precision', 'isolation'):\n"
        "    OP_PROPERTIES[law]('cpu')\n"
        "print('kept')"
    )
    result = run_python(code, LINRNN_ISA=isa)
    assert result.stdout.strip() == "kept", result.stderr


def test_without_the_library_the_tree_computes_and_says_so_once():
    code = (
        "import warnings, torch\n"
        "from linrnn.compute import native as _native\n"
        "_native.load = lambda: (None, 'not built')\n"
        "from linrnn.ops import linear_scan, explain, backend_report\n"
        "warnings.simplefilter('always')\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    for _ in range(3):\n"
        "        h, _ = linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))\n"
        "print(h.flatten().tolist(), len(seen), seen[0].message)\n"
        "print(backend_report()['cpu'])"
    )
    out = run_python(code).stdout
    assert out.startswith("[1.0, 1.5, 1.75] 1 linear_scan runs on the slower backend 'tree'"), out
    assert out.strip().endswith("not built")


def test_strict_mode_refuses_the_slow_path():
    code = (
        "import torch\n"
        "from linrnn.ops import linear_scan; from linrnn.compute import native as _native\n"
        "_native.load = lambda: (None, 'not built')\n"
        "linear_scan(torch.tensor([0.5]), torch.ones(1, 3, 1))"
    )
    result = run_python(code, LINRNN_STRICT="1")
    assert result.returncode == 1
    assert "Refused because LINRNN_STRICT is set" in result.stderr


def arguments(dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return torch.rand(2, 3000, 300, generator=g).to(dtype), torch.randn(
        2, 3000, 300, generator=g
    ).to(dtype)


def in_child(queue):
    a, b = arguments()
    queue.put(linear_scan(a, b)[1].sum().item())


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_does_not_hang():
    a, b = arguments()
    expected = linear_scan(a, b)[1].sum().item()  # starts the thread pool in the parent
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == pytest.approx(expected, rel=1e-5)
    finally:
        child.kill()


@needs_native
def test_concurrent_calls_from_many_threads_agree():
    a, b = arguments()
    expected, _ = linear_scan(a, b)
    results = {}

    def work(i):
        results[i] = linear_scan(a, b)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 8
    assert all(torch.equal(h, expected) for h in results.values())


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(
    "shape", [(2, 3000, 300), (1, 200_000, 3), (1, 60_000, 8), (1, 60_000, 16)]
)
def test_thread_counts_agree(shape, dtype):
    torch.manual_seed(0)
    a, b = torch.rand(shape).to(dtype), torch.randn(shape).to(dtype)
    before = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3, 4):  # from three on, time is shared between them
            torch.set_num_threads(n)
            a_, b_ = a.clone().requires_grad_(), b.clone().requires_grad_()
            h, final = linear_scan(a_, b_)
            results.append([h, final, *torch.autograd.grad(h.sum().abs(), [a_, b_])])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for x, y in zip(other, results[0], strict=True):
            check_close("other thread count", x, y, roundings=64)


@needs_native
def test_thousands_of_packed_sequences_share_a_constant_decay():
    torch.manual_seed(0)
    lengths = torch.randint(0, 6, (2000,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    a = torch.rand(3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(1, int(offsets[-1]), 3, dtype=torch.float64)
    h0 = torch.randn(2000, 3, dtype=torch.float64)
    h, final = linear_scan(a, b, h0, cu_seqlens=offsets, backend="cpu")
    (got,) = torch.autograd.grad(h.square().sum() + final.sum(), a)
    expected_h, expected_final = linear_scan(a, b, h0, cu_seqlens=offsets, backend="tree")
    (expected,) = torch.autograd.grad(expected_h.square().sum() + expected_final.sum(), a)
    check_close("h", h, expected_h)
    check_close("final state", final, expected_final)
    check_close("gradient", got, expected, roundings=64)


@needs_native
def test_a_reset_cuts_off_chunks_that_other_threads_compute():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        OP_PROPERTIES["isolation_across_chunks"]("cpu")
    finally:
        torch.set_num_threads(before)

"""A long convolution read in any pieces: its numbers, what a step costs and what a state holds."""

import pytest
import torch

from linrnn.errors import ShapeError
from linrnn.ops.conv import online_conv
from linrnn.ops.conv.fft_conv import fft_conv
from linrnn.ops.conv.online_conv import NEAR, Kernel, State, levels
from linrnn.testing import check_close

BATCH, CHANNELS = 2, 3


def fresh(width, dtype=torch.float64, batch=BATCH, channels=CHANNELS):
    def nothing():
        return torch.zeros(batch, 0, channels, dtype=dtype)

    return State(nothing(), [nothing() for _ in range(levels(width))])._asdict()


def in_pieces(kernel, x, sizes, state, reset=None):
    ys, at = [], 0
    for size in sizes:
        mask = None if reset is None else reset[:, at : at + size]
        y, state = online_conv.read("test", kernel, x[:, at : at + size], state, mask)
        ys.append(y)
        at += size
    assert at == x.shape[1]
    return torch.cat(ys, 1), state


def drawn(width, time, dtype=torch.float64):
    torch.manual_seed(0)
    taps = torch.randn(CHANNELS, width, dtype=torch.float64) / width**0.5
    return taps.to(dtype), torch.randn(BATCH, time, CHANNELS, dtype=torch.float64).to(dtype)


def loop(taps, x):
    """The definition, one step after the other, in double precision."""
    taps, x = taps.double(), x.double()
    ys = []
    for t in range(x.shape[1]):
        seen = min(t + 1, taps.shape[1])
        ys.append((x[:, t + 1 - seen : t + 1].flip(1) * taps[:, :seen].t()).sum(1))
    return torch.stack(ys, 1)


@pytest.mark.parametrize("width", [1, NEAR + 1, 300, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_step_by_step_is_the_definition(width, dtype):
    taps, x = drawn(width, 700, dtype)
    with torch.no_grad():
        y, _ = in_pieces(Kernel(taps), x, [1] * 700, fresh(width, dtype))
    check_close("y", y, loop(taps, x), roundings=64)


SPLITS = {
    "blocks of 64": [64] * 12,
    "one and the rest": [1, 767],
    "a long one first": [500, 1, 30, 200, 32, 5],
    "many": [7, 130, 128, 128, 256, 1, 1, 117],
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("width", [60, 768])
def test_any_split_is_the_whole_with_the_state_that_follows(split, width):
    taps, x = drawn(width, 768)
    taps.requires_grad_()
    x.requires_grad_()
    y, state = in_pieces(Kernel(taps), x, SPLITS[split], fresh(width))
    whole, last = online_conv.read("test", Kernel(taps), x, fresh(width), None)
    check_close("y", y, whole, roundings=256)
    assert torch.equal(State.of(state).inputs(), State.of(last).inputs())
    sizes = [[block.shape[1] for block in State.of(s).blocks()] for s in (state, last)]
    assert sizes[0] == sizes[1]
    into = torch.randn_like(y)
    got, true = (torch.autograd.grad(z, (x, taps), into) for z in (y, whole))
    for name, g, t in zip(("x", "taps"), got, true, strict=True):
        check_close(f"gradient of {name}", g, t, roundings=2**12)
    more = torch.randn(BATCH, 50, CHANNELS, dtype=torch.float64)
    after, _ = in_pieces(Kernel(taps), more, [1] * 50, state)
    joined, _ = fft_conv(torch.cat([x, more], 1), taps)
    check_close("after", after, joined[:, 768:], roundings=2**12)


@pytest.mark.parametrize("width", [60, 700])
def test_resets_cut_what_is_read_before_and_what_comes_later(width):
    taps, x = drawn(width, 900)
    reset = torch.zeros(BATCH, 900, dtype=torch.bool)
    reset[0, [3, 400, 777]] = True
    reset[1, 650] = True
    x[1, 649] = float("nan")
    y, _ = in_pieces(Kernel(taps), x, [300, 1, 64, 35, 250, 250], fresh(width), reset)
    clean = torch.where(x.isnan(), 0, x)
    whole, _ = fft_conv(clean, taps, reset=reset)
    check_close("row 0", y[0], whole[0], roundings=256)
    check_close("row 1", y[1, 650:], whole[1, 650:], roundings=256)


def test_step_copies_no_block_and_a_state_can_be_read_twice():
    taps, x = drawn(1025, 1100)
    kernel = Kernel(taps)
    with torch.no_grad():
        _, before = in_pieces(kernel, x[:, :1000], [1] * 1000, fresh(1025))
        ys = [online_conv.read("test", kernel, x[:, 1000:1001], before, None) for _ in range(2)]
    assert torch.equal(ys[0][0], ys[1][0])
    assert [block.shape[1] for block in before["far"]] == [2 * 128, 2 * 256, 2 * 512, 0]
    for old, new in zip(before["far"], ys[0][1]["far"], strict=True):
        assert old.data_ptr() == new.data_ptr()


def test_state_stays_within_four_times_the_kernel():
    taps, x = drawn(1025, 5000)
    state, most = fresh(1025), 0
    for at in range(0, 5000, 125):
        _, state = online_conv.read("test", Kernel(taps), x[:, at : at + 125], state, None)
        parts = [state["near"], *state["far"]]
        most = max(most, sum(part.shape[1] for part in parts))
    assert 2 * 1024 < most <= 4 * 1024


def test_arithmetic_of_a_step_grows_with_a_power_of_the_logarithm(monkeypatch):
    found, original = [], online_conv.circular_product

    def counted(u, spectrum, n):
        found.append(n * n.bit_length())
        return original(u, spectrum, n)

    monkeypatch.setattr(online_conv, "circular_product", counted)
    means = []
    for width in (2**11 + 1, 2**14 + 1):
        found.clear()
        taps, x = torch.ones(1, width), torch.ones(1, 2 * width, 1)
        state = fresh(width, torch.float32, batch=1, channels=1)
        for at in range(0, 2 * width, NEAR):  # which costs the same as steps, but for the nearest
            _, state = online_conv.read("test", Kernel(taps), x[:, at : at + NEAR], state, None)
        means.append(sum(found) / (2 * width))
    assert means[1] < 3 * means[0]  # log^2 of 8 times the length; a product takes 8 times as much


@pytest.mark.unchecked
def test_blocks_of_other_sizes_are_refused():
    taps, x = drawn(300, 4)
    state = fresh(300)
    state["far"][1] = torch.zeros(BATCH, 5, CHANNELS).double()
    with pytest.raises(ShapeError, match=r"state\['far'\]\[1\] must hold 0, 256 or 512 steps"):
        online_conv.read("test", Kernel(taps), x, state, None)


@pytest.mark.parametrize("taps", [1, 2, 32, 33, 34, 65, 200, 1000])
def test_strict_products_are_sums_of_what_is_not_later(taps):
    """At lengths around the sizes of blocks; a number that is not finite stays behind its step."""
    for time in (1, 2, 31, 32, 33, 64, 65, 129, 200, 257, 515):
        x, kernel = torch.randn(2, time, 3).double(), torch.randn(3, taps).double()
        y, _ = fft_conv(x, kernel, strict=True)
        matrix = torch.zeros(3, time, time, dtype=torch.float64)
        for lag in range(min(taps, time)):
            matrix.diagonal(-lag, 1, 2).copy_(kernel[:, lag, None])
        expected = torch.einsum("cts,bsc->btc", matrix, x)
        torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-11)
        at = time // 2
        for value in (1e12, float("nan"), float("-inf")):
            x[1, at] = value
            z, _ = fft_conv(x, kernel, strict=True)
            assert torch.equal(z[:, :at], y[:, :at])
            assert torch.equal(z[0], y[0])

"""A frozen bank of modes, and the statistics that are counted inside its scan."""

import cmath
import math

import pytest
import torch

import linrnn.nn.mode_bank as module
import linrnn.nn.mode_draws as draws
from linrnn import state as states
from linrnn.errors import ArgumentError, DTypeError, ShapeError
from linrnn.nn import ModeBank
from linrnn.ops import use_backend
from linrnn.ops.cell.cell_scan._cpu import unavailable

NAN = math.nan


def series(rows, time, channels=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, time, channels, generator=generator, dtype=torch.float64).cumsum(1)


def a_bank(x, dt=None, n_modes=12, **options):
    generator = torch.Generator().manual_seed(1)
    length = options.pop("length", x.shape[1])
    bank = ModeBank(x.shape[2], n_modes, length=length, generator=generator, dtype=x.dtype)
    return bank.calibrate(x, dt, generator=generator)


def written_out(bank, x, dt):
    """The docstring's equation of one series, in Python's numbers."""
    found = {name: [] for name in module.STATISTICS}
    z = ((x - bank.mean) / bank.scale).tolist()
    for n in range(bank.n_modes):
        rate, angle = bank.rate[n].item(), bank.angle[n].item()
        w, out = bank.weight[n].tolist(), complex(*bank.out[n].tolist())
        h, time, last = 0j, 0.0, [NAN] * bank.d_input
        waves, times = [], []
        for row, gap in zip(z, dt, strict=True):
            time += gap
            more = [0.0 if math.isnan(v - p) else v - p for v, p in zip(row, last, strict=True)]
            last = [p if math.isnan(v) else v for v, p in zip(row, last, strict=True)]
            drive = [0.0 if math.isnan(v) else v for v in row] + more
            h = cmath.exp(complex(-rate, angle) * gap) * h
            h += sum(a * b for a, b in zip(w, drive, strict=True))
            if not all(map(math.isnan, row)):
                waves.append((out * h).real)
                times.append(time)
        q = bank.threshold[n].item()
        above = [k for k, y in enumerate(waves) if y > q]
        marks = "".join("x" if y > q else " " for y in waves)
        found["share"].append(len(above) / len(waves))
        found["mean"].append(sum(waves[k] for k in above) / len(above) if above else q)
        place = sum(times[k] for k in above) / len(above) / times[-1] if above else -1.0
        found["place"].append(place)
        found["longest"].append(max(map(len, marks.split(" "))) / len(waves))
        found["top"].append(max(waves))
        found["end"].append(waves[-1])
    return torch.tensor([v for name in module.STATISTICS for v in found[name]], dtype=x.dtype)


def with_gaps(x):
    x = x.clone()
    x[0, 5:9] = NAN  # nothing was observed
    x[:, 11, 0] = NAN  # one channel was not
    x[1, 20:] = NAN  # a shorter series
    x[2, 0] = NAN
    return x


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_features_are_those_of_the_equation(channels, timed):
    x = with_gaps(series(3, 30, channels))
    dt = torch.rand(3, 30, dtype=x.dtype) * 3 if timed else None
    bank = a_bank(x, dt)
    times = torch.ones(3, 30) if dt is None else dt
    expected = torch.stack(
        [written_out(bank, row, t.tolist()) for row, t in zip(x, times, strict=True)]
    )
    torch.testing.assert_close(bank(x, dt), expected, rtol=1e-9, atol=1e-9)


def test_modes_are_drawn_as_described():
    bank = ModeBank(2, 4000, length=300, generator=torch.Generator().manual_seed(0))
    tau, period = 1 / bank.rate, 2 * math.pi / bank.angle
    for drawn, low, high in ((tau, 1, 100), (period, 2, 150)):
        assert low * 0.999 <= drawn.min()
        assert drawn.max() <= high * 1.001
        middle = drawn.log().mean().item()
        assert abs(middle - math.log(low * high) / 2) < 0.1
    gain = torch.view_as_complex(bank.out).abs().square()
    torch.testing.assert_close(gain, 1 - torch.exp(-2 * bank.rate), rtol=1e-4, atol=1e-6)
    value, difference = bank.weight.unflatten(1, (2, 2)).unbind(1)
    assert (value[2000:] == 0).all()
    assert (difference[:2000] == 0).all()
    directions = torch.cat([value[:2000], difference[2000:]])
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(4000))


def test_thresholds_are_quantiles_of_training_waves():
    x = series(40, 60)
    bank = a_bank(x, n_modes=400)
    share = bank(x)[:, :400].mean(0)  # of a random quantile: uniform from 0 to 1
    assert 0.4 < share.mean() < 0.6
    assert share.min() < 0.1
    assert share.max() > 0.9


@pytest.mark.parametrize("pieces", [[30], [1] * 30, [7, 0, 1, 22], [13, 17]])
@pytest.mark.parametrize("timed", [False, True])
def test_any_split_gives_the_answer_of_the_whole(pieces, timed):
    x = with_gaps(series(3, 30, 2)).float()
    dt = torch.rand(3, 30) * 3 if timed else None
    bank = a_bank(x, dt)
    state = bank.init_state(3)
    for some in torch.arange(30).split(pieces):
        state = bank.update(x[:, some], state, None if dt is None else dt[:, some])
    torch.testing.assert_close(bank.features(state), bank(x, dt), rtol=1e-5, atol=1e-5)


def test_chunks_of_time_and_blocks_of_rows_change_nothing(monkeypatch):
    x = with_gaps(series(5, 30, 2))
    bank = a_bank(x)
    whole = bank(x)
    monkeypatch.setattr(module, "_CHUNK", 7)
    monkeypatch.setattr(module, "_ROWS", 2)
    torch.testing.assert_close(bank(x), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_kernel_computes_what_the_cell_does(dtype, channels):
    x = with_gaps(series(5, 40, channels)).to(dtype)
    bank = a_bank(x, n_modes=37)
    with use_backend("reference"):
        expected = a_bank(x, n_modes=37)
        features = expected(x)
    exact = {torch.float32: 2e-4, torch.float64: 1e-9}[dtype]
    torch.testing.assert_close(bank.threshold, expected.threshold, rtol=exact, atol=exact)
    bank.threshold.copy_(expected.threshold)
    torch.testing.assert_close(bank(x), features, rtol=exact, atol=exact)


@pytest.mark.parametrize("steps", [1, 2, 300])
def test_thresholds_lie_between_two_numbers_of_the_sorted_wave(steps):
    wave = torch.randn(20, steps, generator=torch.Generator().manual_seed(0))
    under = torch.arange(20).clamp(max=max(0, steps - 2))
    ranked = wave.sort(1).values
    low, high = draws._ranked(wave, under)
    assert torch.equal(low, ranked.gather(1, under[:, None])[:, 0])
    above = (under + 1).clamp(max=steps - 1)
    assert torch.equal(high, ranked.gather(1, above[:, None])[:, 0])


def test_counts_stay_exact_over_many_steps():
    """In single precision alone a sum of places would be off by more."""
    bank = ModeBank(1, 3, length=10)
    x = torch.ones(1, 300_000, 1)
    bank.threshold.fill_(-100.0)
    share, _, place, longest, _, _ = bank(x).reshape(6, 3)
    torch.testing.assert_close(share, torch.ones(3))
    torch.testing.assert_close(place, torch.full((3,), 300_001 / 600_000), rtol=1e-6, atol=0)
    torch.testing.assert_close(longest, torch.ones(3))


def test_steps_left_out_are_longer_times():
    x = series(1, 40)
    kept = torch.rand(40, generator=torch.Generator().manual_seed(0)) > 0.4
    kept[[0, 39]] = True
    bank = a_bank(x)
    gaps = torch.where(kept[None, :, None], x, NAN)
    places = kept.nonzero()[:, 0].to(x.dtype)
    dt = places.diff(prepend=places.new_tensor([-1.0]))[None]
    torch.testing.assert_close(bank(gaps), bank(x[:, kept], dt), rtol=1e-8, atol=1e-8)


def test_padding_changes_nothing():
    x = series(2, 30)
    bank = a_bank(x)
    padded = torch.cat([x, torch.full((2, 9, 1), NAN, dtype=x.dtype)], 1)
    torch.testing.assert_close(bank(padded), bank(x), rtol=1e-12, atol=1e-12)


def test_other_units_change_shares_in_nothing():
    x = series(4, 50)
    first, second = a_bank(x), a_bank(1000 * x + 7)
    torch.testing.assert_close(first(x), second(1000 * x + 7), rtol=1e-6, atol=1e-6)


def test_a_series_without_values_is_no_error():
    x = series(2, 10)
    bank = a_bank(x)
    nothing = bank(torch.full((1, 4, 1), NAN, dtype=x.dtype))
    assert nothing.isfinite().all()
    torch.testing.assert_close(nothing, bank(x[:1, :0]))
    assert bank(x[:0]).shape == (0, bank.n_features)


def test_it_is_saved_with_all_that_it_drew():
    x = series(4, 20)
    bank = a_bank(x)
    other = ModeBank(1, 12, length=20, dtype=torch.float64)
    other.load_state_dict(bank.state_dict())
    assert torch.equal(other(x), bank(x))
    assert not list(bank.parameters())


def test_a_state_is_a_plain_tree_with_rows():
    x = series(4, 20)
    bank = a_bank(x)
    state = bank.update(x[:, :9], bank.init_state(4))
    some = states.select(state, [2, 0])
    end = bank.features(bank.update(x[[2, 0], 9:], some))
    torch.testing.assert_close(end, bank(x[[2, 0]]), rtol=1e-10, atol=1e-10)


def test_nothing_of_batch_times_time_times_modes_is_held(python):
    """Such a tensor would take 256 MB."""
    if unavailable(torch.device("cpu"), torch.float32):
        pytest.skip("without native kernels every step is a call of PyTorch")
    code = """
import resource, torch
from linrnn.nn import ModeBank
from linrnn.ops.cell.cell_scan._cpu import unavailable
bank, x = ModeBank(1, 1000, length=4000), torch.randn(16, 4000, 1)
bank(x[:, :10])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bank(x)
result = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
"""
    assert python(code) * 1024 < 64e6


@pytest.mark.unchecked
def test_wrong_input_is_named():
    bank = ModeBank(2, 4, length=10)
    x = torch.randn(3, 10, 2)
    with pytest.raises(
        ShapeError, match=r"ModeBank: x must have shape .*d_input=2.*got \(3, 10, 1"
    ):
        bank(x[..., :1])
    with pytest.raises(DTypeError, match=r"x must be of float32 or float64, got torch\.int64"):
        bank(x.long())
    with pytest.raises(ArgumentError, match="x must be finite or NaN, got infinity"):
        bank(x / 0)
    with pytest.raises(ArgumentError, match="dt must be finite and at least 0"):
        bank(x, -torch.ones(3, 10))
    with pytest.raises(ShapeError, match="dt must have shape"):
        bank(x, torch.ones(3, 9))
    with pytest.raises(ShapeError, match="the state's h must have shape"):
        bank.update(x, bank.init_state(2))
    with pytest.raises(ArgumentError, match="n_modes must be an integer of at least 1, got 0"):
        ModeBank(2, 0, length=10)
    with pytest.raises(ArgumentError, match="x must hold values to calibrate on"):
        bank.calibrate(x * NAN)

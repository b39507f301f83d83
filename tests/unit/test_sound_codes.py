"""Samples as codes of eight bits and back, against the formulas; .wav files."""

import io
import math
import wave

import numpy as np
import pytest

from linrnn import sound
from linrnn.errors import ArgumentError, DTypeError, UnknownNameError


def companded(x):
    """The curve of mu-law, number by number."""
    return [math.copysign(math.log(1 + 255 * abs(v)) / math.log(256), v) for v in x]


def test_mu_law_is_its_formula():
    x = np.random.default_rng(0).uniform(-1, 1, 2000) ** 5
    places = [(f + 1) / 2 * 255 for f in companded(x)]
    assert sound.encode(x).tolist() == [math.floor(p + 0.5) for p in places]
    codes = sound.decode(np.arange(256))
    expected = [math.copysign((256 ** abs(c / 127.5 - 1) - 1) / 255, c - 127.5) for c in range(256)]
    np.testing.assert_allclose(codes, expected, rtol=1e-12)


@pytest.mark.parametrize("coding", sound.CODINGS)
def test_what_is_decoded_is_the_nearest_level(coding):
    codes = np.arange(256)
    levels = sound.decode(codes, coding)
    assert (levels[0], levels[-1]) == pytest.approx((-1, 1), rel=1e-14)
    assert (np.diff(levels) > 0).all()
    np.testing.assert_allclose(levels, -levels[::-1], atol=1e-15)
    assert sound.encode(levels, coding).tolist() == codes.tolist()
    assert abs(levels[sound.silence(coding)]) == abs(levels).min()
    x = np.linspace(-1, 1, 1001)
    off = np.abs(sound.decode(sound.encode(x, coding), coding) - x)
    bound = 1 / 255 if coding == "linear" else None
    if bound is None:  # half a level, as wide as the curve is flat there
        bound = math.log(256) * (1 / 255 + np.abs(x)) / 255 * 1.03
    assert (off <= bound).all()


def test_samples_beyond_the_largest_are_cut():
    assert sound.encode(np.array([-9.0, 9.0])).tolist() == [0, 255]


def test_a_file_is_what_a_player_reads(tmp_path):
    x = np.array([0.0, 0.5, -1.0, 1.0, 2.0])
    sound.write_wav(tmp_path / "x.wav", x, 8000)
    with wave.open(io.BytesIO((tmp_path / "x.wav").read_bytes())) as clip:
        assert clip.getparams()[:4] == (1, 2, 8000, 5)
        found = np.frombuffer(clip.readframes(5), "<i2")
    assert found.tolist() == [0, 16384, -32768, 32767, 32767]
    scipy = pytest.importorskip("scipy.io.wavfile")
    rate, other = scipy.read(tmp_path / "x.wav")
    assert (rate, other.tolist()) == (8000, found.tolist())


@pytest.mark.unchecked
def test_what_is_no_sound_is_refused():
    with pytest.raises(UnknownNameError, match="no encode coding named 'mulaw'"):
        sound.encode(np.zeros(1), "mulaw")
    with pytest.raises(ArgumentError, match="encode: samples must be finite"):
        sound.encode(np.array([np.nan]))
    with pytest.raises(DTypeError, match="decode: codes must be integers, got float64"):
        sound.decode(np.zeros(1))
    with pytest.raises(ArgumentError, match=r"decode: codes must be in 0\.\.255, got 256"):
        sound.decode(np.array([0, 256]))
    with pytest.raises(ArgumentError, match=r"row of finite numbers, got shape \(2, 1\)\."):
        sound.wav_bytes(np.zeros((2, 1)), 8000)
    with pytest.raises(ArgumentError, match=r"got shape \(1,\) with NaN or infinity"):
        sound.wav_bytes(np.array([np.inf]), 8000)
    with pytest.raises(ArgumentError, match="rate must be an integer of at least 1, got 0"):
        sound.wav_bytes(np.zeros(1), 0)
    with pytest.raises(ArgumentError, match="rate must be at most 2,147,483,647"):
        sound.wav_bytes(np.zeros(1), 2**31)

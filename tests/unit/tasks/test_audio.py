"""The tasks on raw audio: `speech_commands` and `spoken_digits`."""

import pytest
import torch
from made_data import wav, write_audio, write_tar

from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._reading.audio import read_wav
from linrnn.tasks.speech_commands import SpeechCommands, SpeechCommandsOptions
from linrnn.tasks.spoken_digits import SpokenDigits, SpokenDigitsOptions


def commands(place, **options):
    return SpeechCommands(SpeechCommandsOptions(data=str(place), **options))


def digits(place, **options):
    return SpokenDigits(SpokenDigitsOptions(data=str(place), **options))


@pytest.fixture
def root(tmp_path):
    write_audio(tmp_path)
    return tmp_path


def test_real_speech_commands(shared_data):
    splits = commands(shared_data / "speech_commands").datasets()
    assert [len(part) for part in splits] == [300 - 44 - 51, 44, 51]  # as by the official lists
    x, target, length = splits.train[range(20)]
    assert x.shape == (20, 16_000, 1)
    assert x.abs().max() <= 1
    assert (length >= 12_288).all()
    assert len(target.unique()) > 1
    every = torch.cat([part.target for part in splits])
    assert torch.bincount(every).max() == 10
    assert len(every.unique()) == 30
    ten = commands(shared_data / "speech_commands", words="ten").datasets()
    assert sum(len(part) for part in ten) == 100


def test_real_spoken_digits(shared_data):
    splits = digits(shared_data / "fsdd").datasets()
    assert [len(part) for part in splits] == [240, 60, 300]
    assert torch.bincount(splits.test.target).tolist() == [30] * 10
    x, _, length = splits.train[range(30)]
    assert x.shape == (30, 8000, 1)
    for row, n in zip(x, length, strict=True):
        assert not row[n:].any()


def test_splits_by_the_lists_of_the_archive(root):
    task = commands(root / "speech_commands", length=60)
    splits = task.datasets()
    found = [
        [(task.class_names[k], round(x[0].item() * 32768) - 1, n.item()) for x, k, n in part]
        for part in splits
    ]
    assert found[1] == [("bed", 1, 50), ("yes", 1, 50)]
    assert found[2] == [("bed", 3, 50), ("yes", 2, 50)]
    assert len(found[0]) == 6


def test_clips_are_scaled_cut_and_padded(root):
    data = digits(root / "fsdd", length=25).datasets().test
    x, target, length = data[range(4)]
    assert target.tolist() == [0, 0, 1, 1]
    assert length.tolist() == [20, 24, 20, 24]
    assert (x[3, :24] == 104 / 32768).all()
    assert (x[3, 24:] == 0).all()
    short = digits(root / "fsdd" / "fsdd.tar.gz", length=10).datasets().test
    assert short[3][2] == 10


def test_a_step_may_be_several_samples(root):
    task, single = (digits(root / "fsdd", length=25, frame=frame) for frame in (8, 1))
    assert (task.d_input, task.sequence_length) == (8, 4)
    (x, _, length), (samples, _, alone) = (t.datasets().test[range(4)] for t in (task, single))
    assert x.shape == (4, 4, 8)
    assert length.tolist() == [-(-n // 8) for n in alone.tolist()]
    assert torch.equal(x.flatten(1)[:, :25], samples.flatten(1))
    assert not x.flatten(1)[:, 25:].any()
    with pytest.raises(ArgumentError, match="frame"):
        digits(root, frame=0)


def test_words():
    assert len(SpeechCommands().class_names) == SpeechCommands().d_output == 35
    ten = SpeechCommands(SpeechCommandsOptions(words="ten"))
    assert len(ten.class_names) == 10
    assert ten.chance == 0.1


def test_read_a_clip(root, tmp_path):
    (tmp_path / "x.wav").write_bytes(wav([16384, -16384], 8000))
    x = digits("", length=4).read(tmp_path / "x.wav")
    assert x.flatten().tolist() == [0.5, -0.5, 0, 0]


MUST = "must "
BAD = {
    "empty": (b"", "must be a complete .wav, got"),
    "html": (b"<html>" * 20, "must be a complete .wav, got"),
    "truncated": (wav([1] * 50)[:-3], "must be a complete .wav, got"),
    "silent": (wav([]), "must be a complete .wav, got 0 bytes of 0"),
    "rate": (wav([1], 8000), "16000 samples a second, got 1, 16 and 8000"),
    "stereo": (wav([1, 1], channels=2), "1 channel of 16 bits .* got 2, 16"),
    "width": (wav([1, 1], width=4), "1 channel of 16 bits .* got 1, 32"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_damaged_clips(content, message):
    with pytest.raises(DataError, match=rf"x\.wav must .*{message.removeprefix(MUST)}"):
        read_wav("x.wav", content, 16_000)


@pytest.mark.unchecked
def test_archives_that_cannot_be_used(root, tmp_path):
    path = root / "fsdd" / "fsdd.tar.gz"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"must be an archive of clips, got: .*Get it anew"):
        digits(path).datasets()
    write_tar(tmp_path / "a.tar.gz", {"recordings/0_jo_1.wav": wav([1], 8000)})
    with pytest.raises(DataError, match="there must be clips for train, got none"):
        digits(tmp_path / "a.tar.gz").datasets()
    write_tar(tmp_path / "b.tar.gz", {"recordings/0_jo_1.wav": b"RIFF"})
    with pytest.raises(DataError, match=r"b\.tar\.gz: recordings/0_jo_1\.wav must be a complete"):
        digits(tmp_path / "b.tar.gz").datasets()
    with pytest.raises(DataError, match=r"spoken_digits: the data file .*fsdd\.tar\.gz must exist"):
        digits(tmp_path / "none").datasets()
    with pytest.raises(DataError, match=r"speech_commands: the data file .*v0\.02\.tar\.gz must"):
        commands(tmp_path / "none").datasets()


@pytest.mark.unchecked
def test_bad_options():
    with pytest.raises(UnknownNameError, match="no SpeechCommands words named 'some'"):
        commands("", words="some")
    with pytest.raises(ArgumentError, match="SpokenDigits: length must be an integer of at least"):
        digits("", length=0)

"""The task `sound`, and what a model of it says."""

import math
import os
import signal
import wave

import numpy as np
import pytest
import torch
from made_data import wav, write_audio, write_tar

from linrnn import sound
from linrnn.cli import main
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.generation import TokenStream, generate
from linrnn.tasks.sound import Sound, SoundOptions
from linrnn.train import Config, ModelConfig, TrainConfig, load_model, run


def task(place, **options):
    return Sound(SoundOptions(data=str(place), **options))


@pytest.fixture
def clips(tmp_path):
    """A folder with clips of 40, 50 and 60 samples that count on."""
    for i, (name, begin, end) in enumerate((("a", 0, 40), ("sub/b", 40, 90), ("c", 90, 150))):
        path = tmp_path / "clips" / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wav([200 * n for n in range(begin, end)], 8000, channels=1))
        assert i < 3
    return tmp_path / "clips"


def test_real_spoken_digits(shared_data):
    made = task(shared_data / "fsdd")
    assert [len(part.starts) for part in made.clips] == [240, 60, 300]
    x, target = made.datasets().train.batch([0, 5])
    assert x.shape == target.shape == (2, 2048)
    assert torch.equal(x[:, 1:], target[:, :-1])


def test_splits_of_the_recordings_are_the_official_ones(tmp_path):
    write_audio(tmp_path)
    made = task(tmp_path / "fsdd", length=8)
    wanted = {"train": (5, 10), "validation": (9,), "test": (0, 4)}
    for part, numbers in zip(made.clips, wanted.values(), strict=True):
        samples = [(100 * d + n) / 32768 for d in (0, 1) for n in numbers for _ in range(20 + n)]
        order = sorted((f"{d}_jo_{n}.wav", d, n) for d in (0, 1) for n in numbers)
        samples = [(100 * d + n) / 32768 for _, d, n in order for _ in range(20 + n)]
        assert part.codes.tolist() == sound.encode(np.array(samples)).tolist()
        assert len(part.starts) == 2 * len(numbers)


def test_a_folder_of_ones_own_is_cut_by_position(clips):
    made = task(clips, length=10, coding="linear", validation=0.2, test=0.2)
    codes = np.concatenate([part.codes for part in made.clips])
    order = [*range(40), *range(90, 150), *range(40, 90)]  # a, c, sub/b
    expected = sound.encode(np.array(order) * 200 / 32768, "linear")
    assert codes.tolist() == expected.tolist()
    assert [len(part.codes) for part in made.clips] == [90, 30, 30]
    splits = made.datasets()
    assert [len(part) for part in splits] == [8, 2, 2]
    x, target = splits.validation.batch([1])
    assert x[0].tolist() == expected[100:110].tolist()
    assert target[0].tolist() == expected[101:111].tolist()
    apart = task(clips, length=10, documents="files", validation=0.2, test=0.2).datasets()
    _, _, reset = apart.train.batch([4])
    assert reset[0].nonzero().flatten().tolist() == [0]
    assert apart.validation.batch([1])[2][0].nonzero().flatten().tolist() == [0]
    again = task(clips, length=10, test=0.0).datasets()
    assert again.test is not None
    assert torch.equal(again.test.batch([0])[0], again.validation.batch([0])[0])


def test_archives_and_single_files(clips, tmp_path):
    members = {p.name: p.read_bytes() for p in clips.rglob("*.wav")}
    write_tar(tmp_path / "x.tar.gz", members)
    packed = task(tmp_path / "x.tar.gz", length=5).clips
    assert sum(len(part.codes) for part in packed) == 150
    single = task(clips / "c.wav", length=3).clips
    assert [len(part.codes) for part in single] == [48, 6, 6]


def test_bits_per_sample():
    made, target = Sound(), torch.randint(256, (3, 7))
    assert made.scores(torch.zeros(3, 7, 256), target).tolist() == pytest.approx([8.0] * 3)
    y = torch.randn(3, 7, 256)
    nats = made.loss(y, target)
    assert made.scores(y, target).mean().item() == pytest.approx(nats.item() / math.log(2))


def test_a_clip_to_predict_is_cut_into_windows(clips):
    x, lengths, *_ = task("", length=25).read_given(clips / "c.wav")
    assert x.shape == (3, 25)
    assert lengths.tolist() == [25, 25, 10]
    assert (x[2, 10:] == sound.silence()).all()


@pytest.mark.unchecked
def test_what_cannot_be_used_is_said(clips, tmp_path):
    with pytest.raises(DataError, match=r"sound: the data file .*fsdd\.tar\.gz must exist.*Get"):
        task(tmp_path / "none").datasets()
    with pytest.raises(DataError, match="1 channel of 16 bits and 16000 samples a second, got 1, "):
        task(clips, rate=16_000).datasets()
    with pytest.raises(DataError, match="the validation part must hold a window of 30 samples and"):
        task(clips, length=30).datasets()
    write_tar(tmp_path / "x.tar.gz", {"readme": b""})
    with pytest.raises(DataError, match=r"there must be \.wav files in it, got none"):
        task(tmp_path / "x.tar.gz").datasets()
    with pytest.raises(UnknownNameError, match="no Sound coding named 'alaw'"):
        task("", coding="alaw")
    with pytest.raises(ArgumentError, match="Sound: rate must be an integer of at least 1"):
        task("", rate=0)
    with pytest.raises(ArgumentError, match="Sound: validation and test must leave a part"):
        task("", validation=0.5, test=0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder of a model at two rates."""
    folder = tmp_path_factory.mktemp("sound")
    samples = (9000 * np.sin(np.arange(800) / 3)).astype(int)
    (folder / "x.wav").write_bytes(wav(samples, 8000))
    config = Config(
        task="sound",
        mixer="mingru",
        task_options=SoundOptions(data=str(folder / "x.wav"), length=16),
        model=ModelConfig(d_model=8, n_layers=1, tiers=(2,), norm="layer", pool="none"),
        train=TrainConfig(epochs=1, batch_size=8, threads=1),
    )
    run(config, out=folder / "run")
    return folder


def heard(path):
    with wave.open(str(path)) as clip:
        assert clip.getparams()[:3] == (1, 2, 8000)
        return np.frombuffer(clip.readframes(clip.getnframes()), "<i2") / 32768


def test_generate_writes_a_sound(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["generate", str(trained / "run"), "--seed", "1", "--max-new-tokens"]
    assert main([*words, "40"]) == 0
    assert "generated.wav: 0.005 s of sound, 8,000 samples a second" in capsys.readouterr().out
    model, _, _ = load_model(trained / "run")
    codes = list(generate(model, [sound.silence()], 40, seed=1))
    np.testing.assert_allclose(heard("generated.wav"), sound.decode(np.array(codes)), atol=2**-15)
    # in two parts, the second from the state of the first, after a sound of one's own
    prompt = ["--prompt", str(trained / "x.wav"), "--state", "state"]
    assert main([*words, "15", "--wav", "a.wav", "--temperature", "0", *prompt]) == 0
    assert main([*words, "15", "--wav", "b.wav", "--temperature", "0", "--state", "state"]) == 0
    assert main([*words, "30", "--wav", "c.wav", "--temperature", "0", *prompt[:2]]) == 0
    both = np.concatenate([heard("a.wav"), heard("b.wav")])
    assert both.tolist() == heard("c.wav").tolist()


@pytest.mark.unchecked
def test_a_signal_leaves_the_sound_that_the_state_has_read(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw, drawn = TokenStream.draw, []

    def stopping(stream, *arguments):
        if len(drawn) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        drawn.append(draw(stream, *arguments))
        return drawn[-1]

    monkeypatch.setattr(TokenStream, "draw", stopping)
    assert main(["generate", str(trained / "run"), "--seed", "1", "--state", "s"]) == 130
    np.testing.assert_allclose(heard("generated.wav"), sound.decode(np.array(drawn)), atol=2**-15)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    stream = TokenStream(load_model(trained / "run")[0])
    stream.load("s")
    assert stream.steps == 1 + len(drawn)


def test_generate_says_what_sound_has_not(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in (["--stop", "x"], ["--prompt", "a.wav", "--prompt", "b.wav"]):
        assert main(["generate", str(trained / "run"), *words]) == 2
        assert "at most one --prompt and no --stop" in capsys.readouterr().err
    assert main(["generate", str(trained / "run"), "--prompt", "none.wav"]) == 1
    said = capsys.readouterr().err
    assert "none.wav: the data file must be readable" in said
    assert "->" not in said
    assert main(["generate", str(trained / "run"), "--prompt", "hello"]) == 2
    assert "--prompt must be a .wav file, got 'hello'" in capsys.readouterr().err

"""Tasks with a file for each example: what is listed, how it is split, and what is refused."""

import shutil
import struct

import numpy as np
import pytest
import torch
from made_data import wav, write_images, write_sounds
from PIL import Image

import linrnn
from linrnn import tasks, train
from linrnn.cli import main
from linrnn.errors import ArgumentError, DataError, UnknownNameError
from linrnn.tasks._reading.audio import decode_wav
from linrnn.tasks._reading.file_listing import split
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig

unchecked = pytest.mark.unchecked


def make(name, path, **options):
    cls = tasks.load(name)
    return cls(cls.Options(data=str(path), **options))


def images(path, **options):
    return make("images", path, **options)


def sounds(path, **options):
    return make("sounds", path, **options)


# the split


@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("counts", [(3, 4), (2, 10), (40, 7)])
def test_split_keeps_each_class_in_proportion(counts, test):
    labels = [f"c{i}" for i, count in enumerate(counts) for _ in range(count)]
    parts = split(labels, 0, test=test)
    assert sorted(i for part in parts for i in part) == list(range(len(labels)))
    for i, count in enumerate(counts):
        train_, held, tested = (sum(labels[row] == f"c{i}" for row in part) for part in parts)
        assert train_ >= 1
        assert tested == (max(1, round(count / 5)) if test else 0)
        assert held == (max(1, round(count / 10)) if count - tested > 1 else 0)
    assert split(labels, 0, test=test) == parts
    if max(counts) > 9:
        assert split(labels, 1, test=test) != parts


@unchecked
def test_split_without_validation_is_refused():
    with pytest.raises(DataError, match="at least 3 files, so that one is for validation"):
        split(["a", "a", "b", "b"], 0, test=True)


# images


def test_images_are_their_pixels(tmp_path):
    pixels = write_images(tmp_path / "data")
    task = images(tmp_path / "data")
    assert task.class_names == ("dark", "light")
    assert (task.sequence_length, task.d_input, task.d_output) == (20, 1, 2)
    splits, seen = task.datasets(), []
    for part in splits:
        for x, target in (part[i] for i in range(len(part))):
            image = ((x / 2 + 0.5) * 255).round().reshape(4, 5).numpy().astype("u1")
            (path,) = [p for p, known in pixels.items() if np.array_equal(known, image)]
            assert path.parent.name == task.class_names[target]
            seen.append(path)
    assert sorted(seen) == sorted(pixels)
    assert task.chance == 0.5


def test_rows_and_colours(tmp_path):
    write_images(tmp_path / "data")
    rows = images(tmp_path / "data", steps="rows", mode="rgb")
    assert (rows.sequence_length, rows.d_input, rows.image_shape) == (4, 15, (4, 5, 3))
    x, _ = rows.datasets().train[0]
    picture = rows.picture(x)
    grey, _ = images(tmp_path / "data").datasets().train[0]
    torch.testing.assert_close(picture[..., 1].flatten(), grey.flatten() / 2 + 0.5)


def test_images_are_brought_to_a_size(tmp_path):
    write_images(tmp_path / "data")
    Image.fromarray(np.full((8, 10), 77, "u1")).save(tmp_path / "data" / "dark" / "large.bmp")
    with pytest.raises(DataError, match=r"must be \d+ high and \d+ wide, that of .*--task.size"):
        images(tmp_path / "data")
    task = images(tmp_path / "data", size=(3,))
    assert task.image_shape == (3, 3)
    given = task.read_given(tmp_path / "data" / "dark" / "large.bmp")
    torch.testing.assert_close(given.x, torch.full((1, 9, 1), 77 / 255 * 2 - 1))
    assert images(tmp_path / "data", size=(2, 3)).image_shape == (2, 3)


def test_an_image_is_turned_as_its_camera_says(tmp_path):
    write_images(tmp_path / "data", size=(4, 4))
    pixels = np.zeros((4, 4), "u1")
    pixels[0] = 255  # the top as it is stored, the right side as it is to be seen
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.png"
    Image.fromarray(pixels).save(path, exif=exif)
    found = images(tmp_path / "data").read_given(path).x.reshape(4, 4)
    assert found[:, 3].tolist() == [1.0] * 4
    assert found[:, :3].max() == -1


def transparent(path):
    Image.fromarray(np.zeros((4, 5, 4), "u1")).save(path)


def deep(path):
    Image.fromarray(np.zeros((4, 5), "u2")).save(path)


def moving(path):
    frames = [Image.fromarray(np.full((4, 5), i * 50, "u1")) for i in range(3)]
    frames[0].save(path.with_suffix(".gif"), save_all=True, append_images=frames[1:])


def broken(path):
    path.write_bytes(b"\x89PNG\r\n\x1a\n and no more")


@unchecked
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (transparent, "opaque, with at most 8 bits a colour, got 1 of 20 pixels, mode RGBA"),
        (deep, "mode I;16"),
        (moving, "must be one picture .* got 3 of 20 pixels"),
        (broken, "the file must hold an image"),
        (lambda path: path.with_name("notes.txt").write_text("x"), r"files that end in .*'.txt'"),
        (lambda path: path.with_name("more").mkdir(), "got a folder"),
        (lambda path: (path.parents[1] / "x.png").write_bytes(b""), "one folder for each class"),
        (lambda path: (path.parents[1] / "empty").mkdir(), "must hold files, got none"),
        (lambda path: shutil.rmtree(path.parent), "at least 2 classes, got dark"),
        (lambda path: [p.unlink() for p in sorted(path.parent.iterdir())[1:]], "got 1 in 'light'"),
    ],
)
def test_nothing_is_left_out_in_silence(tmp_path, spoil, text):
    write_images(tmp_path / "data")
    (tmp_path / "data" / ".hidden").write_text("not looked at")
    images(tmp_path / "data")
    spoil(tmp_path / "data" / "light" / "spoilt.png")
    with pytest.raises(DataError, match=text):
        images(tmp_path / "data")


@unchecked
def test_options_without_a_meaning(tmp_path):
    with pytest.raises(UnknownNameError, match="no Images mode named 'color'"):
        images("", mode="color")
    with pytest.raises(ArgumentError, match="size must be height and width"):
        images("", size=(1, 2, 3))
    with pytest.raises(ArgumentError, match="frame must be an integer of at least 1"):
        sounds("", frame=0)
    with pytest.raises(ArgumentError, match="rate must be at most 1,000,000"):
        sounds("", rate=1_000_001)
    with pytest.raises(ArgumentError, match="data_seed must be from 0"):
        images("", data_seed=-1)
    with pytest.raises(DataError, match="1 to 1,000,000 samples a second, got 2,000,000"):
        decode_wav("x", wav([1], 2_000_000))
    with pytest.raises(DataError, match="must be a folder with a folder for each class, or a tab"):
        images(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"Say --data FOLDER"):
        images("").datasets()


def test_a_table_names_the_files(tmp_path):
    pixels = write_images(tmp_path / "data")
    table = tmp_path / "data" / "list.csv"
    lines = [f"{p.parent.name}/{p.name},{i % 3}" for i, p in enumerate(sorted(pixels))]
    table.write_text("\n".join(["file,label", *lines]) + "\n")
    task = images(table)
    assert task.class_names == ("0", "1", "2")
    assert sum(map(len, task.datasets())) == 12
    table.write_text("\n".join(["file,label", *lines, lines[0]]) + "\n")
    with pytest.raises(DataError, match="another file and its label"):
        images(table)
    table.write_text("\n".join(["file,label", *lines, "../x.png,1"]) + "\n")
    with pytest.raises(DataError, match="must be a file in its folder"):
        images(table)


def test_a_second_folder_is_for_testing(tmp_path):
    write_images(tmp_path / "data")
    write_images(tmp_path / "test", each=2)
    task = images(tmp_path / "data", test=str(tmp_path / "test"))
    assert [len(part) for part in task.datasets()] == [10, 2, 4]
    write_images(tmp_path / "test", each=2, classes=("grey", "light"))
    with pytest.raises(DataError, match="among those of the training files, got 'grey'"):
        images(tmp_path / "data", test=str(tmp_path / "test"))


# sounds


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_every_width(bits, channels):
    whole = np.array([[-1, 0.5], [0, 0.25], [0.5, -0.75]])[:, :channels] * 2 ** (bits - 1)
    packed = b"".join(
        struct.pack("<B", int(v) + 128)
        if bits == 8
        else int(v).to_bytes(bits // 8, "little", signed=True)
        for v in whole.ravel()
    )
    content = wav_of(packed, channels, bits // 8)
    samples, rate = decode_wav("x", content)
    assert (rate, samples.shape, samples.dtype) == (8000, (3, channels), np.float32)
    np.testing.assert_array_equal(samples, whole / 2 ** (bits - 1))


def wav_of(packed, channels, width):
    import io
    import wave

    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(width)
        clip.setframerate(8000)
        clip.writeframes(packed)
    return file.getvalue()


def test_clips_keep_their_lengths(tmp_path):
    clips = write_sounds(tmp_path / "data")
    task = sounds(tmp_path / "data")
    assert (task.sequence_length, task.d_input, task.rate) == (40, 1, 8000)
    assert set(task.class_names) == {"high", "low"}
    x, target, lengths = task.datasets().train[[0, 1, 2]]
    for row, label, length in zip(x, target.tolist(), lengths.tolist(), strict=True):
        (path,) = [
            p
            for p, samples in clips.items()
            if len(samples) == length and np.allclose(row[:length, 0], samples / 32768)
        ]
        assert path.parent.name == task.class_names[label]
        assert not row[length:].any()
    framed = sounds(tmp_path / "data", frame=7, length=35)
    assert (framed.sequence_length, framed.d_input) == (5, 7)


def test_clips_of_another_rate_are_resampled_or_refused(tmp_path):
    write_sounds(tmp_path / "data")
    time = np.arange(160) / 16_000
    clip = (np.sin(2 * np.pi * 400 * time) * 16_384).astype("<i2")
    path = tmp_path / "data" / "low" / "other.wav"
    path.write_bytes(wav(clip, 16_000))
    with pytest.raises(DataError, match=r"must have \d+ samples a second, as .*--task.rate"):
        sounds(tmp_path / "data")
    task = sounds(tmp_path / "data", rate=8000)
    given = task.read_given(path)
    assert given.lengths.tolist() == [80]
    expected = 0.5 * np.sin(2 * np.pi * 400 * np.arange(80) / 8000)
    np.testing.assert_allclose(given.x[0, 15:65, 0], expected[15:65], atol=0.01)


def test_clips_of_two_channels_are_mixed_or_refused(tmp_path):
    write_sounds(tmp_path / "data")
    path = tmp_path / "data" / "low" / "stereo.wav"
    path.write_bytes(wav([1000, 3000, -500, 500], 8_000, channels=2))
    with pytest.raises(
        DataError, match=r"must have one channel, got 2\. Mix them with --task\.mix"
    ):
        sounds(tmp_path / "data")
    task = sounds(tmp_path / "data", mix=True)
    torch.testing.assert_close(task.read_given(path).x.flatten(), torch.tensor([2000 / 32768, 0]))


# whole runs

TINY = {
    "optim": OptimConfig(lr=0.02),
    "mixer": "mingru",
    "model": ModelConfig(d_model=8, n_layers=1, dropout=0.0),
    "train": TrainConfig(epochs=4, batch_size=4, threads=1, device="cpu"),
}


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    pixels = write_images(root / "data", each=20)
    options = tasks.load("images").Options(data=str(root / "data"), steps="rows")
    config = Config(task="images", task_options=options, **TINY)
    result = train.run(config, out=root / "run")
    assert result.test_metric > 0.7
    shutil.move(root / "data", root / "moved")
    return result.folder, {
        root / "moved" / p.relative_to(root / "data"): x for p, x in pixels.items()
    }


def test_a_run_answers_for_images_without_those_it_was_trained_on(image_run, capsys):
    folder, pixels = image_run
    path = next(iter(pixels))
    (one,) = train.predict(folder, path)
    every = train.predict(folder, path.parents[1])
    assert [p.id for p in every] == sorted(f"{p.parent.name}/{p.name}" for p in pixels)
    assert sum(p.label == p.id.split("/")[0] for p in every) > 28
    assert one.probability == pytest.approx(every[0].probability, rel=1e-5)
    stacked = np.stack(list(pixels.values()))
    names = linrnn.load(folder).predict(stacked)
    assert names.tolist() == linrnn.load(folder).predict(stacked.reshape(40, 4, 5)).tolist()
    assert sum(names == [p.parent.name for p in pixels]) > 28
    assert linrnn.load(folder).predict(stacked[0])[0] == names[0]
    two = [str(p) for p in list(pixels)[:2]]
    assert main(["predict", str(folder), *two]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "index,id,class,probability"
    assert [line.split(",")[1] for line in said[1:]] == two


def test_a_run_goes_on_with_the_same_files_alone(image_run, tmp_path):
    folder, _ = image_run
    task = train.model.build_task(*_stored(folder))
    with pytest.raises(DataError, match="must be a folder with a folder for each class"):
        task.datasets()
    write_images(tmp_path / "data", each=19)
    object.__setattr__(task.options, "data", str(tmp_path / "data"))
    with pytest.raises(DataError, match="the files must be those the run began with"):
        task.datasets()


def _stored(folder):
    from linrnn.train.folder import RunFolder

    found = RunFolder(folder)
    return found.load_config(), found


def test_a_run_of_sounds_answers_for_clips(tmp_path):
    clips = write_sounds(tmp_path / "data", each=20)
    options = tasks.load("sounds").Options(data=str(tmp_path / "data"), frame=4)
    result = train.run(Config(task="sounds", task_options=options, **TINY), out=tmp_path / "run")
    shutil.move(tmp_path / "data", tmp_path / "moved")
    every = train.predict(result.folder, tmp_path / "moved")
    assert len(every) == len(clips)
    (one,) = train.predict(result.folder, tmp_path / "moved" / "high" / "3.wav")
    assert one.probability == pytest.approx(
        next(p for p in every if p.id == "high/3.wav").probability, rel=1e-5
    )
    other = tmp_path / "other.wav"
    other.write_bytes(wav(np.zeros(100), 16_000))
    with pytest.raises(DataError, match="must have 8000 samples a second, as in training"):
        train.predict(result.folder, other)


@pytest.mark.slow
def test_spoken_digits_from_a_folder(shared_data, tmp_path):
    """Real recordings of two digits, unpacked into a folder each, are told apart."""
    import tarfile

    archives = sorted((shared_data / "fsdd").glob("*.tar.?z"))
    if not archives:
        pytest.skip("no spoken digits among the sample data")
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            if name.endswith(".wav") and name[0] in "06":
                place = tmp_path / "data" / name[0] / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(member).read())
    options = tasks.load("sounds").Options(data=str(tmp_path / "data"), frame=20, length=8000)
    config = Config(
        task="sounds",
        mixer="lru",
        task_options=options,
        model=ModelConfig(d_model=32, n_layers=2, dropout=0.0),
        optim=OptimConfig(lr=0.01),
        train=TrainConfig(epochs=20, batch_size=14, device="cpu", threads=1),
    )
    result = train.run(config, out=tmp_path / "run")
    assert result.test_metric > 0.85

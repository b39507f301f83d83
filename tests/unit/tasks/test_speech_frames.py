"""Phones of frames: recordings and their .phn files laid out as TIMIT."""

import numpy as np
import pytest
import torch
from made_data import sphere, wav, write_timit

from linrnn.errors import DataError, UnknownNameError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks._kinds.counted import fraction_contributions
from linrnn.tasks._reading.cepstra import cepstra, frame_centres, slopes
from linrnn.tasks._reading.phones import PHONES_39, PHONES_61, fold, read_phones, read_recording
from linrnn.tasks.speech_frames import SpeechFrames, SpeechFramesOptions


@pytest.fixture
def sentences(tmp_path):
    """The folder of sentences, with samples, spans and phones by path."""
    return tmp_path / "timit", write_timit(tmp_path / "timit")


def make(place, **options):
    return SpeechFrames(
        SpeechFramesOptions(**{"data": str(place), "check_counts": False} | options)
    )


def test_61_phones_fold_to_39():
    assert (len(PHONES_61), len(set(PHONES_61)), len(PHONES_39)) == (61, 61, 39)
    assert [fold(p) for p in ("h#", "epi", "zh", "ux", "eng", "dx", "q")] == [
        *("sil", "sil", "sh", "uw", "ng", "dx", "")
    ]


@pytest.mark.parametrize("classes", ["39", "61"])
def test_a_frame_has_the_phone_at_its_middle(sentences, classes):
    folder, spoken = sentences
    task = make(folder, classes=classes, test="complete")
    expected = {"train": [], "validation": [], "test": []}
    for path, (samples, spans, phones) in spoken.items():
        if path.name == "SA1.PHN":
            continue
        labels = []
        for start in range(0, len(samples) - 399, 160):
            middle = start + 200
            (at,) = [p for (a, b), p in zip(spans, phones, strict=True) if a <= middle < b] or [""]
            name = at if classes == "61" or not at else fold(at)
            labels.append(task.class_names.index(name) if name else IGNORE)
        part = "test" if "TEST" in path.parts else "train"
        part = "validation" if "FAEM0" in path.parts else part  # the first by name
        expected[part].append((path, samples, labels))
    splits = task.datasets()
    mean, std = np.array(task.known.mean), np.array(task.known.std)
    for part, data in zip(expected, splits, strict=True):
        rows = {tuple(target[:length].tolist()): (x, length) for x, target, length in data}
        assert len(data) == len(expected[part]) == len(rows)
        for _, samples, labels in expected[part]:
            x, length = rows[tuple(labels)]
            raw = cepstra(samples.astype(np.float32) / 32768, 16_000)
            assert np.allclose(x[:length].numpy(), (raw - mean) / std, atol=1e-3)
            assert not x[length:].any()
    assert task.sequence_length == max(len(x) for rows in expected.values() for *_, x in rows)


def test_the_core_part_has_its_speakers_alone(sentences):
    folder, _ = sentences
    assert [len(part) for part in make(folder).datasets()] == [4, 2, 2]
    assert [len(part) for part in make(folder, test="complete").datasets()] == [4, 2, 4]


def test_metric_counts_frames_not_sentences(sentences):
    task = make(sentences[0])
    target = torch.tensor([[1, 1, IGNORE, 2], [1, 2, 2, 2], [IGNORE] * 4])
    y = torch.nn.functional.one_hot(torch.ones(3, 4, dtype=torch.int64), 39).float()
    scores = task.scores(y, target)
    assert scores.tolist() == [[2, 3], [1, 4], [0, 0]]
    parts = task.contributions(scores)
    assert parts.mean().item() == pytest.approx(3 / 7)
    _, tested, _ = task.datasets().test[:]
    majority = tested[tested != IGNORE] == task.class_names.index("sil")
    assert task.chance == pytest.approx(majority.float().mean().item())
    assert 0 <= task.baselines()["nearest mean frame"] <= 1


def test_error_of_a_fraction_is_that_of_new_samples():
    generator = torch.Generator().manual_seed(0)
    fractions, errors = [], []
    for _ in range(400):
        counted = torch.randint(5, 40, (60,), generator=generator).double()
        chance = torch.rand(60, generator=generator, dtype=torch.float64)
        parts = fraction_contributions((chance * counted).round(), counted)
        fractions.append(parts.mean().item())
        errors.append(parts.std().item() / 60**0.5)
    assert np.mean(errors) == pytest.approx(np.std(fractions), rel=0.15)
    assert fraction_contributions(torch.zeros(2), torch.zeros(2)).isnan().all()


def test_cepstra_are_those_of_their_equations():
    """Two frames written out: window, filters, cosines; slopes beside NumPy's regression."""
    samples = np.random.RandomState(0).randn(400 + 160).astype(np.float32) * 0.1
    found = cepstra(samples, 16_000)
    emphasised = np.append(samples[:1], samples[1:] - 0.97 * samples[:-1]).astype(np.float64)
    mel = np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 28)
    edges = 700 * (10 ** (mel / 2595) - 1)
    for frame in range(2):
        x = emphasised[160 * frame : 160 * frame + 400]
        power = np.abs(np.fft.rfft(x * np.hamming(400), 512)) ** 2
        logs = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            weights = np.interp(np.arange(257) * 31.25, [low, middle, high], [0, 1, 0])
            logs.append(np.log((weights * power).sum() + 1e-10))
        for n in range(1, 13):
            angles = np.cos(np.pi * n * (np.arange(26) + 0.5) / 26)
            assert found[frame, n - 1] == pytest.approx(
                (2 / 26) ** 0.5 * np.dot(logs, angles), abs=1e-3
            )
        assert found[frame, 12] == pytest.approx(np.log((x**2).sum() + 1e-10), rel=1e-5)
    curve = np.random.RandomState(1).randn(9, 1)
    expected = [np.polyfit(np.arange(-2, 3), curve[t - 2 : t + 3, 0], 1)[0] for t in range(2, 7)]
    assert slopes(curve)[2:7, 0] == pytest.approx(expected)
    assert cepstra(samples[:100], 16_000).shape == (1, 26)
    assert frame_centres(560, 16_000).tolist() == [200, 360]


def test_sphere_and_wav_hold_the_same_samples(tmp_path):
    samples = np.random.RandomState(0).randint(-32768, 32768, 500)
    clips = []
    for name, content in (
        ("a.wav", sphere(samples)),
        ("b.wav", sphere(samples, order="10")),
        ("c.wav", wav(samples.astype("<i2"), 16_000)),
    ):
        (tmp_path / name).write_bytes(content)
        clips.append(read_recording(tmp_path / name, None))
    assert all(np.array_equal(clip.samples, samples / np.float32(32768)) for clip in clips)
    assert {clip.rate for clip in clips} == {16_000}


def test_a_run_keeps_what_its_model_needs(sentences, tmp_path):
    folder, spoken = sentences
    task = make(folder)
    (tmp_path / "run").mkdir()
    for name, text in task.run_files().items():
        (tmp_path / "run" / name).write_text(text)
    again = SpeechFrames.of_run(task.options, tmp_path / "run")
    path = next(iter(spoken)).with_suffix(".WAV")
    given = again.read_given(path)
    assert torch.equal(given.x, task.read_given(path).x)
    assert again.chance == task.chance
    assert again.sequence_length == task.sequence_length
    path.write_bytes(sphere(spoken[path.with_suffix(".PHN")][0] // 2))
    with pytest.raises(DataError, match="the data must be those the run began with"):
        SpeechFrames.of_run(task.options, tmp_path / "run").datasets()


@pytest.mark.unchecked
def test_recordings_that_cannot_be_used(tmp_path):
    samples = np.arange(500)
    whole, path = sphere(samples), tmp_path / "x.wav"
    for content, text in (
        (whole[:-2], "must be complete, got 998 bytes of 1000"),
        (
            whole.replace(b"pcm", b"ulaw")[:2024],
            "got 1 channels of 2 bytes, ulaw",
        ),
        (whole.replace(b"channel_count -i 1", b"channel_count -i 2"), "got 2 channels"),
        (whole.replace(b"end_head", b"        "), "must begin with a NIST sphere header"),
        (whole.replace(b"   1024", b"   9e99"), "must begin with a NIST sphere header"),
        (whole.replace(b"sample_rate", b"sample_tate"), "must name sample_rate and sample_count"),
        (b"x", r"must be a complete \.wav"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"x\.wav.*{text}"):
            read_recording(path, None)
    for text, reason in (
        ("0 10 iy\n5 20 s\n", "in order, got '5 20 s' in line 2"),
        ("0 10\n", "in order, got '0 10' in line 1"),
        ("0 10 xx\n", "must be one of TIMIT's 61, got 'xx'"),
        ("\n", "the file must hold phones, got none"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=reason):
            read_phones(path, None)


@pytest.mark.unchecked
def test_data_and_options_that_cannot_be_used(sentences, tmp_path):
    folder, spoken = sentences
    with pytest.raises(DataError, match=r"there must be 3,696 sentences of train in .* got 6"):
        make(folder, check_counts=True).datasets()
    with pytest.raises(DataError, match=r"must hold folders TRAIN and TEST"):
        make(tmp_path / "none").datasets()
    path = next(iter(spoken))
    path.with_suffix(".WAV").rename(path.with_suffix(".mp3"))
    with pytest.raises(DataError, match=r"SI648\.PHN: beside a \.phn there must be its recording"):
        make(folder).datasets()
    path.with_suffix(".WAV").write_bytes(wav(np.zeros(900, "<i2"), 8_000))
    with pytest.raises(DataError, match="must have 16,000 samples a second, got 8,000"):
        make(folder).datasets()
    for one in spoken:
        if "MDAB0" in one.parts:
            one.unlink()
    with pytest.raises(DataError, match=r"with sentences for testing, got none among 8"):
        make(folder).datasets()
    with pytest.raises(UnknownNameError, match="no SpeechFrames classes named '48'"):
        make(folder, classes="48")
    with pytest.raises(UnknownNameError, match="no SpeechFrames test named 'dev'"):
        make(folder, test="dev")

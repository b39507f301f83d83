"""Translation: streams of read and written words, decoding, and BLEU beside torchmetrics'."""

import gzip
import random
from dataclasses import replace

import pytest
import torch
from made_data import write_translations

from linrnn import train
from linrnn.errors import ArgumentError, DataError
from linrnn.tasks._kinds.base import IGNORE
from linrnn.tasks._kinds.bleu import bleu_contributions, bleu_counts
from linrnn.tasks.translation import (
    END,
    PAD,
    SOURCE_END,
    UNKNOWN,
    Translation,
    TranslationOptions,
    average_lagging,
    stream,
)
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.context import open_run


@pytest.fixture
def texts(tmp_path):
    """The folder of six files, and the pairs of each part."""
    return tmp_path / "pairs", write_translations(tmp_path / "pairs")


def make(place, **options):
    return Translation(TranslationOptions(**{"data": str(place), "vocabulary": 40} | options))


@pytest.fixture(params=[0, 1, 2])
def sentences(request):
    """Hypotheses and references of random words, some of them close."""
    rng = random.Random(request.param)
    references = [[rng.choice("abcdef") for _ in range(rng.randint(3, 14))] for _ in range(25)]
    hypotheses = []
    for words in references:
        words = [w if rng.random() < 0.8 else rng.choice("abcdef") for w in words]
        hypotheses.append(words[: rng.randint(2, len(words))] + ["x"] * (3 * request.param))
    return hypotheses, references


def test_bleu_is_that_of_torchmetrics(sentences):
    bleu_score = pytest.importorskip("torchmetrics.functional.text").bleu_score
    hypotheses, references = sentences
    counts = torch.tensor([bleu_counts(*pair) for pair in zip(*sentences, strict=True)])
    expected = bleu_score(
        [" ".join(words) for words in hypotheses], [[" ".join(words)] for words in references]
    )
    assert bleu_contributions(counts).mean().item() == pytest.approx(
        100 * expected.item(), rel=1e-5
    )
    assert bleu_contributions(counts[:1] * 0).tolist() == [0.0]


def test_error_of_bleu_is_that_of_the_jackknife(sentences):
    counts = torch.tensor([bleu_counts(*pair) for pair in zip(*sentences, strict=True)])
    parts, n = bleu_contributions(counts), len(counts)
    without = [torch.cat([counts[:i], counts[i + 1 :]]) for i in range(n)]
    left_out = torch.stack([bleu_contributions(one).mean() for one in without])
    jackknife = ((n - 1) * left_out.var(correction=0)) ** 0.5
    assert parts.std().item() / n**0.5 == pytest.approx(jackknife.item(), rel=0.15)


@pytest.mark.parametrize("wait", [0, 1, 3])
def test_a_stream_reads_and_writes_in_turn(texts, wait):
    folder, parts = texts
    task = make(folder, wait=wait)
    words = task.words
    x, target, length = task.datasets().test[range(12)]
    for i, (source, translated) in enumerate(parts["test"]):
        source, translated = [*source.split(), "<src>"], [*translated.split(), "</s>"]
        tokens, asked, n_read = [], [], 0
        for written, word in enumerate(translated):
            if written:
                tokens.append(translated[written - 1])
            needed = min(wait + written, len(source)) if wait else len(source)
            tokens += source[n_read:needed]
            n_read = needed
            asked.append((len(tokens) - 1, word))
        assert [words[t] for t in x[i, : length[i]].tolist()] == tokens
        assert (x[i, length[i] :] == PAD).all()
        assert [(p, words[target[i, p]]) for p in (target[i] != IGNORE).nonzero()[:, 0]] == asked
    assert task.sequence_length == max(len(a.split()) * 2 + 1 for p in parts.values() for a, _ in p)


class Dictionary:
    """A model that translates word by word the tokens it has read, by their names."""

    def __init__(self, task):
        self.words = task.words
        self.vocabulary = len(task.words)

    def parameters(self):
        return iter([torch.zeros(1)])

    def init_state(self, batch, device):
        return [([], []) for _ in range(batch)]

    def step(self, tokens, state):
        y = torch.zeros(len(tokens), self.vocabulary)
        for row, token in enumerate(tokens.tolist()):
            read, written = state[row]
            word = self.words[token]
            (written if word.startswith("v") else read).append(word)
            place = len(written)
            following = read[place] if place < len(read) else "<src>"
            name = "</s>" if following == "<src>" else f"v{following[1:]}"
            y[row, self.words.index(name)] = 1.0
        return y, state


@pytest.mark.parametrize("wait", [0, 1, 2])
def test_a_perfect_model_has_bleu_100(texts, wait):
    task = make(texts[0], wait=wait)
    x, target, _ = task.datasets().test[range(12)]
    scores = task.decoded_scores(Dictionary(task), x, target)
    assert task.contributions(scores).mean().item() == pytest.approx(100)
    sizes = [len(source.split()) for source, _ in texts[1]["test"]]
    lagging = [float(n) if wait == 0 else average_lagging(n, n, wait) for n in sizes]
    assert task.side_metrics(scores)["average lagging"] == pytest.approx(sum(lagging) / 12)
    y = torch.nn.functional.one_hot(target.clamp(min=0), task.d_output).float()
    forced = task.scores(y, target)
    assert torch.equal(forced[:, :10], scores[:, :10])
    assert task.side_metrics(forced) == {}


def test_an_unknown_word_matches_nothing_and_pieces_are_joined(texts):
    folder, _ = texts
    (folder / "test.de").write_text("w1 w2\n")
    (folder / "test.en").write_text("never v@@ 1\n")
    task = make(folder)
    _, target, _ = task.datasets().test[[0]]
    assert target[target != IGNORE].tolist() == [UNKNOWN] * 3 + [END]
    ids = [task.words.index("v1"), UNKNOWN, END, 7]
    assert task.text(ids) == ["v1", "<unk>"]
    joined = make(folder, joiner="1")
    assert joined.text([task.words.index("v1"), task.words.index("v2")]) == ["vv2"]
    y = torch.nn.functional.one_hot(target.clamp(min=0), task.d_output).float()
    assert task.scores(y, target)[0, :4].tolist() == [0, 0, 0, 0]
    assert task.baselines()["the source itself"] == 0


@pytest.fixture
def config(texts):
    return Config(
        task="translation",
        mixer="gru",
        task_options=TranslationOptions(data=str(texts[0]), vocabulary=40, wait=2),
        model=ModelConfig(d_model=16, n_layers=1, dropout=0.0, norm="layer", pool="none"),
        optim=OptimConfig(lr=3e-2),
        train=TrainConfig(epochs=6, batch_size=16, threads=1, device="cpu"),
    )


@pytest.mark.unchecked
def test_a_run_is_tested_by_what_it_writes(config, tmp_path, monkeypatch):
    """Translated anew without steps: the whole prefix is read before each word."""
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda run: None)
    result = train.run(config, out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    task, pairs = run.task, run.task.datasets().test.pairs
    assert task.words == make(config.task_options.data).words
    rows = []
    for pair in pairs:
        written = []
        while len(written) < 2 * len(pair.source) + 10:
            x, _ = stream(replace_target(pair, [*written, END]), 2)
            with torch.no_grad():
                word = run.model(torch.tensor([x]))[0][0, -1].argmax().item()
            if word == END:
                break
            written.append(word)
        rows.append(bleu_counts(task.text(written), task.text(pair.target)))
    expected = bleu_contributions(torch.tensor(rows)).mean().item()
    assert result.metric == "BLEU"
    assert result.test_metric == pytest.approx(expected, abs=1e-9)
    score, _ = train.evaluate(tmp_path / "run")
    assert score.metric == pytest.approx(expected, abs=1e-9)
    assert score.side_metrics["average lagging"] > 0
    again = train.run(replace(config, seed=1), out=tmp_path / "other")
    assert 0 <= again.validation_metric <= 100


def replace_target(pair, target):
    return pair._replace(target=target)


def test_a_single_file_of_pairs(texts, tmp_path):
    folder, parts = texts
    (tmp_path / "tsv").mkdir()
    for part, pairs in parts.items():
        text = "".join(f"{a}\t{b}\n" for a, b in pairs).encode()
        (tmp_path / "tsv" / f"{part}.tsv.gz").write_bytes(gzip.compress(text))
    ours, theirs = (make(place).datasets() for place in (tmp_path / "tsv", folder))
    for one, other in zip(ours, theirs, strict=True):
        assert one.pairs == other.pairs
    assert SOURCE_END in one.pairs[0].source


@pytest.mark.unchecked
def test_data_and_options_that_cannot_be_used(texts, tmp_path):
    folder, parts = texts
    with pytest.raises(DataError, match=r"must hold train\.de and train\.en, or train\.tsv"):
        make(tmp_path / "none").datasets()
    text = (folder / "train.en").read_text()
    (folder / "train.en").write_text(text + "v1\n")
    with pytest.raises(DataError, match=r"train\.en: the file must have 60 lines.* got 61"):
        make(folder)
    (folder / "train.en").write_text(text)
    with pytest.raises(DataError, match="training pairs of at most 1 words"):
        make(folder, longest=1)
    (folder / "valid.en").write_bytes(b"\xff\n" * 12)
    with pytest.raises(DataError, match=r"valid\.en: the file must be UTF-8"):
        make(folder)
    for path in folder.iterdir():
        path.unlink()
    for part in parts:
        (folder / f"{part}.tsv").write_text("a\tb\nc\n")
    with pytest.raises(DataError, match="got 1 cells in line 2"):
        make(folder)
    for options, reason in (
        ({"wait": -1}, "Translation: wait must be"),
        ({"vocabulary": 4}, "Translation: vocabulary must be at least 5, got 4"),
        ({"longest": 0}, "Translation: longest must be an integer of at least 1"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            make(folder, **options)

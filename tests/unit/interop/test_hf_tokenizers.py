"""Tokenizers and runs of ours in the hands of transformers: the same ids, the same scores."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("lightning")

from linrnn.errors import ArgumentError, RunFolderError  # noqa: E402
from linrnn.generation import generate  # noqa: E402
from linrnn.interop.hf import from_run, to_tokenizer  # noqa: E402
from linrnn.tasks.lm import LMOptions  # noqa: E402
from linrnn.tasks.ptb import PTBOptions  # noqa: E402
from linrnn.tokenizers import (  # noqa: E402
    ByteTokenizer,
    CharTokenizer,
    LibraryTokenizer,
    WordTokenizer,
)
from linrnn.train import Config, ModelConfig, load_model  # noqa: E402
from linrnn.train.checkpoint import save_tensors  # noqa: E402
from linrnn.train.folder import RunFolder  # noqa: E402
from linrnn.train.model import build_model, build_task  # noqa: E402

TEXT = "Tom said: “héllo”, 日本 🎉!\n\n\tTwo  spaces \x00 and a control.\r\n" * 3
MADE = {
    "byte": ByteTokenizer,
    "char": lambda: CharTokenizer(TEXT),
    "bpe": lambda: LibraryTokenizer.train([TEXT], 300),
}


@pytest.mark.parametrize("kind", MADE)
def test_ids_and_texts_are_the_same_also_from_a_file(kind, tmp_path):
    ours = MADE[kind]()
    to_tokenizer(ours).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (TEXT, "T", " o", ""):
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == text
    assert len(theirs) == ours.vocabulary_size + 1


@pytest.mark.parametrize("unknown", [[], ["<unk>"]])
def test_words_and_ends_of_lines_are_the_same_also_from_a_file(unknown, tmp_path):
    ours = WordTokenizer(["a", "b", "N", *unknown, "<eos>x"])
    to_tokenizer(ours).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    more = " zebra\tb" if unknown else ""
    for text in (f" a b \n N{more} \n\n", "b  a", "<eos> a <eos>x", ""):
        ids = ours.encode(text).tolist()
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids)
    assert len(theirs) == ours.vocabulary_size + 1


def test_every_byte_has_its_letter():
    theirs = to_tokenizer(ByteTokenizer())
    text = "".join(chr(i) for i in range(0x800))  # all bytes of UTF-8 in one or two bytes
    assert theirs(text)["input_ids"] == list(text.encode())
    assert sorted(theirs.get_vocab().values()) == list(range(257))


def test_an_unknown_character_is_an_error():
    theirs = to_tokenizer(CharTokenizer("abc"))
    assert theirs("cab")["input_ids"] == [2, 0, 1]
    with pytest.raises(Exception, match="UNK"):  # the library raises nothing more special
        theirs("cad")


def test_batches_are_padded_on_the_left_beyond_the_vocabulary():
    batch = to_tokenizer(ByteTokenizer())(["abc", "d"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[97, 98, 99], [256, 256, 100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]


@pytest.mark.unchecked
def test_a_tokenizer_of_another_kind_is_refused():
    with pytest.raises(ArgumentError, match=r"must be one of linrnn.tokenizers, got str"):
        to_tokenizer("byte")


def make_run(folder, tokenizer="byte", task="lm", options=None, **changes):
    """A run with its initial weights."""
    file = folder / "text.txt"
    file.write_text("How does it read, and what does it write?\n" * 40)
    options = options or LMOptions(data=(str(file),), tokenizer=tokenizer, length=16)
    model = {"d_model": 8, "n_layers": 2, "norm": "layer", "pool": "none", "dropout": 0.3}
    config = Config(
        task=task, mixer="mingru", task_options=options, model=ModelConfig(**model | changes)
    )
    run = RunFolder.create(folder / "run", config)
    task = build_task(config)
    save_tensors(build_model(config, task).state_dict(), run.model)
    for name, text in task.run_files().items():
        (run.path / name).write_text(text)
    return run.path


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_run_says_the_same_as_a_model_of_transformers(tokenizer, tied, tmp_path):
    run = make_run(tmp_path, tokenizer, tie_embeddings=tied, final_norm=True, block="mlp")
    model, words = from_run(run)
    ours, task, _ = load_model(run)
    ids = torch.as_tensor(task.tokenizer.encode("does it").tolist())
    assert words("does it")["input_ids"] == ids.tolist()
    torch.testing.assert_close(model(ids[None]).logits, ours(ids[None])[0])
    made = model.generate(ids[None], do_sample=False, max_new_tokens=6)[0, len(ids) :]
    assert made.tolist() == list(generate(ours, ids, 6, temperature=0))
    model.save_pretrained(tmp_path / "hf")
    words.save_pretrained(tmp_path / "hf")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    torch.testing.assert_close(again(ids[None]).logits, model(ids[None]).logits)
    assert again.generation_config.pad_token_id == words.pad_token_id == again.config.vocab_size
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dropout"] == 0.3


@pytest.mark.parametrize("level", ["word", "char"])
def test_a_run_of_a_benchmark_says_the_same(level, tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"ptb.{part}.txt").write_text(" the cat saw N mice \n no <unk> came \n" * 20)
    options = PTBOptions(data=str(tmp_path), level=level, length=8, check_counts=False)
    run = make_run(tmp_path, task="ptb", options=options)
    model, words = from_run(run)
    ours, task, _ = load_model(run)
    ids = words(" no mice came \n the" if level == "word" else "no mice came\n")["input_ids"]
    assert ids == task.tokenizer.encode(words.decode(ids)).tolist()
    torch.testing.assert_close(model(torch.tensor([ids])).logits, ours(torch.tensor([ids]))[0])


@pytest.mark.unchecked
def test_runs_that_are_no_language_models_are_refused(tmp_path):
    with pytest.raises(RunFolderError, match="a run folder must exist"):
        from_run(tmp_path / "missing")
    with pytest.raises(RunFolderError, match="must be of a task of text and read forward alone"):
        from_run(make_run(tmp_path, bidirectional=True))

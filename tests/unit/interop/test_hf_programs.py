"""Programs made for transformers run on our models: pipelines, Trainer, lm_eval."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM, to_tokenizer  # noqa: E402
from linrnn.tokenizers import ByteTokenizer  # noqa: E402


def language_model(**options):
    config = LinrnnConfig(vocab_size=256, mixer="mingru", d_model=16, n_layers=1, **options)
    model = LinrnnForCausalLM(config)
    model.generation_config.pad_token_id = 256
    return model.eval(), to_tokenizer(ByteTokenizer())


def test_a_pipeline_continues_each_text_as_if_alone():
    model, words = language_model()
    writer = transformers.pipeline("text-generation", model=model, tokenizer=words)
    kwargs = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
    texts = ["To be", "or", "not to be: that"]
    together = [made[0]["generated_text"] for made in writer(texts, batch_size=3, **kwargs)]
    assert together == [writer(text, **kwargs)[0]["generated_text"] for text in texts]
    assert all(together)


@pytest.mark.parametrize("tied", [True, False])
def test_trainer_learns_and_saves_what_can_be_loaded(tied, tmp_path):
    pytest.importorskip("accelerate")
    model, words = language_model(tie_word_embeddings=tied)
    texts = ["abcabcabc", "bcabc", "cabcabcabcab"] * 4
    data = [dict(words(text)) for text in texts]
    arguments = transformers.TrainingArguments(
        **{"output_dir": str(tmp_path / "out"), "max_steps": 3, "learning_rate": 0.05},
        **{"per_device_train_batch_size": 6, "report_to": "none", "disable_tqdm": True},
        **{"use_cpu": True, "logging_steps": 1, "seed": 0, "save_steps": 3},
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=data[:4],
        data_collator=transformers.DataCollatorForLanguageModeling(words, mlm=False),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.5
    again = LinrnnForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-3")
    ids = torch.tensor([words("abca")["input_ids"]])
    assert torch.equal(again(ids).logits, model.eval()(ids).logits)


QUESTIONS = [
    {"question": "a b a", "choices": [" b", " zz"], "answer": 0},
    {"question": "1 2", "choices": [" 3", " 4"], "answer": 1},
    {"question": "x", "choices": [" y", " yy"], "answer": 0},
]
TASKS = {
    "made_choice": """
task: made_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}]
""",
    "made_text": """
task: made_text
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: question
metric_list: [{metric: bits_per_byte}]
""",
    "made_writing": """
task: made_writing
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
generation_kwargs: {until: ["\\n"], max_gen_toks: 5}
doc_to_text: question
doc_to_target: "{{choices[0]}}"
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture
def evaluated(tmp_path):
    """A model, its tokenizer, and a folder with both, the tasks and their data."""
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    for name, text in TASKS.items():
        text = text.replace("DATA", str(tmp_path / "data.jsonl"))
        (tmp_path / f"{name}.yaml").write_text(text)
    model, words = language_model()
    model.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    return model, words, tmp_path


@pytest.mark.slow
def test_lm_eval_runs_on_a_saved_model(evaluated):
    """As a user runs it: a program that imports nothing of linrnn by itself."""
    pytest.importorskip("lm_eval", reason="pip install 'lm_eval[hf]'")
    model, words, folder = evaluated
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu"),
            *("--model_args", f"pretrained={folder / 'model'},trust_remote_code=True"),
            *("--tasks", ",".join(TASKS), "--include_path", str(folder), "--batch_size", "3"),
            *("--output_path", str(folder / "out")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (folder / "out").rglob("results*.json")
    scores = json.loads(file.read_text())["results"]
    assert scores["made_choice"]["acc,none"] == pytest.approx(accuracy(model, words))
    assert scores["made_text"]["bits_per_byte,none"] == pytest.approx(bits(model, words), rel=1e-4)
    assert 0 <= scores["made_writing"]["exact_match,none"] <= 1


@pytest.mark.slow
def test_a_folder_is_found_by_who_does_not_import_linrnn(tmp_path, python):
    model, words = language_model()
    first, again = tmp_path / "first", tmp_path / "again"
    model.save_pretrained(first)
    files = {p.name for p in first.iterdir()}
    words.save_pretrained(first)
    code = f"""
from transformers import pipeline
writer = pipeline("text-generation", {str(first)!r}, trust_remote_code=True)
result = writer("ab", max_new_tokens=4, do_sample=False)[0]["generated_text"]
writer.model.save_pretrained({str(again)!r})
"""
    text = python(code, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    ids = torch.tensor([words("ab")["input_ids"]])
    assert text == words.decode(model.generate(ids, max_new_tokens=4, do_sample=False)[0])
    assert {p.name for p in again.iterdir()} == files  # no copies of our sources
    assert torch.equal(LinrnnForCausalLM.from_pretrained(again)(ids).logits, model(ids).logits)


def surprise(model, ids, begin):
    """Nats of the tokens from ``begin`` on; the first of all counts as drawn evenly."""
    with torch.no_grad():
        logp = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    even = math.log(256) if begin == 0 else 0.0
    places = range(max(begin, 1), len(ids))
    return even - sum(logp[t - 1, ids[t]].item() for t in places)


def accuracy(model, words):
    right = 0
    for doc in QUESTIONS:
        start = words(doc["question"])["input_ids"]
        choices = [words(doc["question"] + c)["input_ids"] for c in doc["choices"]]
        costs = [surprise(model, ids, len(start)) for ids in choices]
        right += costs.index(min(costs)) == doc["answer"]
    return right / len(QUESTIONS)


def bits(model, words):
    texts = [words(doc["question"])["input_ids"] for doc in QUESTIONS]
    nats = sum(surprise(model, ids, 0) for ids in texts)
    return nats / math.log(2) / sum(map(len, texts))

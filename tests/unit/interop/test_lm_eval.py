"""The lm-evaluation-harness on a model of ours, with questions in files on this machine."""

import json
import math

import pytest
import torch

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed: pip install lm_eval")

from lm_eval.tasks import TaskManager  # noqa: E402

from linrnn.interop.hf import LinrnnConfig, LinrnnForCausalLM, to_tokenizer  # noqa: E402
from linrnn.tokenizers import ByteTokenizer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.unchecked]

QUESTIONS = [
    {"question": f"{a} and {b} is", "choices": [str(a + b), str(a * b + 20), "none"], "gold": 0}
    for a in range(2, 5)
    for b in range(1, 4)
]
CHOICE = """
task: linrnn_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: gold
metric_list:
  - metric: acc
  - metric: acc_norm
"""
ROLLING = """
task: linrnn_rolling
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: question
metric_list:
  - metric: bits_per_byte
"""
GENERATE = """
task: linrnn_generate
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_text: question
doc_to_target: "{{{{choices[gold]}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 4
  do_sample: false
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LinrnnConfig(vocab_size=256, mixer="mingru", d_model=32, n_layers=2, norm="layer")
    return LinrnnForCausalLM(config).eval()


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("lm_eval")
    model.save_pretrained(place / "model")
    to_tokenizer(ByteTokenizer()).save_pretrained(place / "model")
    file = place / "questions.json"
    file.write_text("\n".join(map(json.dumps, QUESTIONS)))
    (place / "tasks").mkdir()
    for i, text in enumerate((CHOICE, ROLLING, GENERATE)):
        (place / "tasks" / f"{i}.yaml").write_text(text.format(file=file))
    return lm_eval.simple_evaluate(
        model="hf",
        model_args=f"pretrained={place / 'model'},trust_remote_code=True,device=cpu,max_length=256",
        tasks=["linrnn_choice", "linrnn_rolling", "linrnn_generate"],
        task_manager=TaskManager(include_path=str(place / "tasks"), include_defaults=False),
        batch_size=4,
        bootstrap_iters=0,
        log_samples=True,
    )


def nats(model, before, text):
    """The logarithm of the likelihood of a text after another, by the model alone."""
    ids = torch.tensor([list((before + text).encode())])
    with torch.no_grad():
        log = model(ids).logits.log_softmax(-1)[0]
    start = len(before.encode())
    return sum(log[t - 1, ids[0, t]].item() for t in range(start, ids.shape[1]))


def test_likelihoods_of_choices_are_the_models(model, results):
    samples = results["samples"]["linrnn_choice"]
    assert len(samples) == len(QUESTIONS)
    right = 0
    for sample in samples:
        doc = sample["doc"]
        expected = [nats(model, doc["question"], f" {choice}") for choice in doc["choices"]]
        found = [float(response[0]) for response in sample["filtered_resps"]]
        assert found == pytest.approx(expected, rel=1e-4)
        right += max(range(3), key=expected.__getitem__) == doc["gold"]
    assert results["results"]["linrnn_choice"]["acc,none"] == pytest.approx(right / len(QUESTIONS))


def test_whole_texts_and_generation(model, results):
    bits = results["results"]["linrnn_rolling"]["bits_per_byte,none"]
    assert 0 < bits < 3 * math.log2(256)
    for sample in results["samples"]["linrnn_generate"]:
        ids = torch.tensor([list(sample["doc"]["question"].encode())])
        written = model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :]
        expected = bytes(written.tolist()).decode(errors="replace").split("\n")[0]
        assert sample["filtered_resps"][0].strip("\ufffd") == expected.strip("\ufffd")

"""The example scripts run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_drop_in_trains_both_layers():
    pytest.importorskip("sklearn")
    small = ["--layers", "torch.nn.GRU", "lru", "--epochs", "1", "--images", "80"]
    run = subprocess.run(
        [sys.executable, EXAMPLES / "drop_in.py", *small],
        capture_output=True,
        text=True,
        check=True,
    )
    names = re.findall(r"^(\S+(?: \.\.\.\))?) +accuracy +\d+\.\d % ", run.stdout, re.MULTILINE)
    assert names == ["torch.nn.GRU", "linrnn.RNN('lru', ...)"]


def test_a_checkpoint_is_compared(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "state_size": 4}
    model = transformers.FalconMambaForCausalLM(transformers.FalconMambaConfig(**sizes))
    model.save_pretrained(tmp_path)
    run = subprocess.run(
        [sys.executable, EXAMPLES / "check_checkpoint.py", tmp_path, "--new-tokens", "3"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert lines[0].startswith("falcon_mamba, ")
    assert lines[-2:] == ["tokens written: 3 of 3 are the same", "EQUAL"]


def agent(*options):
    """The share of right answers at the end, by the agent of the example."""
    pytest.importorskip("gymnasium", reason="the extra rl is not installed")
    command = [sys.executable, EXAMPLES / "ppo_memory.py", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"^\S+, seed \d: ([\d.]+) of the answers right at the end$", run.stdout, re.M)
    return float(found[1])


@pytest.mark.parametrize(
    "mixer", ["lru", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gru", "none"))]
)
def test_an_agent_with_memory_trains(mixer):
    assert 0 < agent("--mixer", mixer, "--steps", "2048") < 1


@pytest.mark.slow
def test_an_agent_with_memory_learns_what_one_without_cannot():
    assert agent("--mixer", "mingru") > 0.9
    assert agent("--mixer", "none") < 0.4  # 0.3 is what the first step of an episode brings

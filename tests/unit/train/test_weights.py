"""Weights that no run can have written: behind a checksum that is right, at every door."""

import math
import shutil

import pytest
import torch
from untrained_runs import untrained

from linrnn import mixers, train
from linrnn.cli import main
from linrnn.errors import RunFolderError
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.train.checkpoint import load_tensors, load_tree, save_tensors, save_tree
from linrnn.train.folder import RunFolder

pytestmark = pytest.mark.unchecked


def change(value):
    def put(x):
        x = x.clone()
        x.view(-1)[-1] = value
        return x

    return put


FAULTS = {
    "nan": (change(math.nan), "must be finite, or every answer would be NaN, got {} of shape"),
    "inf": (change(math.inf), "must be finite, .* got {} of shape"),
    "-inf": (change(-math.inf), "must be finite, .* got {} of shape"),
    "integers": (torch.Tensor.long, r"got {}, torch.int64 of shape .* where torch.float32 of"),
    "booleans": (lambda x: x > 0, r"got {}, torch.bool of shape .* where torch.float32 of"),
    "complex": (lambda x: x.to(torch.cfloat), r"got {}, torch.complex64 of shape"),
    "double": (torch.Tensor.double, r"got {}, torch.float64 of shape .* where torch.float32 of"),
    "half": (torch.Tensor.half, r"got {}, torch.float16 of shape .* where torch.float32 of"),
    "shape": (lambda x: x[None], r"got {}, torch.float32 of shape \(1, .* where torch.float32 of"),
    "empty": (lambda x: x[:0], r"got {}, torch.float32 of shape \(0,.* where torch.float32 of"),
    "missing": (None, "got no {}"),
}


@pytest.fixture(scope="module")
def written(tiny, tmp_path_factory):
    return untrained(tiny, tmp_path_factory.mktemp("written") / "run")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_weight_is_looked_at(written, tmp_path, fault):
    run = shutil.copytree(written, tmp_path / "run")
    path = RunFolder(run).model
    whole, _ = load_tensors(path)
    damage, message = FAULTS[fault]
    checked = 0
    for name, x in whole.items():
        if not x.is_floating_point():
            continue
        other = {k: v for k, v in whole.items() if k != name}
        if damage is not None:
            other[name] = damage(x)
        save_tensors(other, path)
        with pytest.raises(RunFolderError, match=message.format(name.replace(".", r"\."))):
            train.load_model(run)
        checked += 1
    assert checked > 5
    save_tensors(whole | {"stranger": torch.zeros(1)}, path)
    with pytest.raises(RunFolderError, match="got a tensor stranger"):
        train.load_model(run)
    save_tensors(whole, path)
    train.load_model(run)


@pytest.mark.parametrize("fault", ["nan", "integers"])
@pytest.mark.parametrize(
    "verb", ["predict {} x.csv", "eval {}", "eval {} --lengths 64", "stream {}", "export {} x.onnx"]
)
def test_every_command_refuses_them(written, tmp_path, capsys, verb, fault):
    run = shutil.copytree(written, tmp_path / "run")
    path = RunFolder(run).model
    weights, _ = load_tensors(path)
    weights["head.weight"] = FAULTS[fault][0](weights["head.weight"])
    save_tensors(weights, path)
    assert main(verb.format(run).split()) == 1
    err = capsys.readouterr().err
    assert "model.safetensors: the weights must" in err
    assert "head.weight" in err


ON_RESUMING = {
    "nan": FAULTS["nan"][1],
    "integers": "of torch.int64 as {}",
    "complex": "of torch.complex64 as {}",
    "shape": r"\(1, 10, 6\) of torch.float32 as {}",
    "missing": "other names, such as '{}'",
}


@pytest.mark.parametrize("fault", ON_RESUMING)
def test_a_run_does_not_go_on_from_such_a_checkpoint(tiny, tmp_path, crash_at, fault):
    with pytest.raises(ConnectionAbortedError):
        train.run(tiny, out=tmp_path / "run", reporter=crash_at(7))
    path = RunFolder(tmp_path / "run").last
    tree = load_tree(path)
    name = "model.head.weight"
    x, (damage, _), message = tree["state_dict"].pop(name), FAULTS[fault], ON_RESUMING[fault]
    if damage is not None:
        tree["state_dict"][name] = damage(x)
    save_tree(tree, path)
    before = path.read_bytes()
    with pytest.raises(RunFolderError, match=message.format(name.replace(".", r"\."))):
        train.resume(tmp_path / "run")
    assert path.read_bytes() == before


@pytest.mark.sampled
@pytest.mark.parametrize("name", mixers.names())
def test_the_weights_of_every_mixer_are_taken(tiny, tmp_path, name):
    causal = {"mixer": name, "mixer_options": {}}
    options = MackeyGlassOptions(length=32)
    run = untrained(
        tiny, tmp_path / "run", pool="none", task="mackey_glass", task_options=options, **causal
    )
    model, _, _ = train.load_model(run)
    assert all(x.isfinite().all() for x in model.state_dict().values())

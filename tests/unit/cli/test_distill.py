"""The verb distill: what it prints is measured, and the run it writes is one."""

import csv
import re
import shutil
from dataclasses import replace

import pytest
import torch

from linrnn.cli import main
from linrnn.cli.distill import parse_orders
from linrnn.errors import ArgumentError, RunFolderError
from linrnn.state import n_floats
from linrnn.tasks.lm import LMOptions
from linrnn.train import Config, ModelConfig, TrainConfig, distil, distill_run, load_model
from linrnn.train.checkpoint import save_tensors
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task

LENGTH = 24
HYENA = {"l_max": LENGTH, "frequency": 8.0, "d_filter": 8}


def made(path, config):
    """A run folder with the initial weights of a configuration."""
    task = build_task(config)

    def fill(folder):
        save_tensors(build_model(config, task).state_dict(), folder.model)

    RunFolder.create(path, config, task.run_files(), fill)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distill")
    (folder / "text.txt").write_text("the cat sat on the mat\nand the dog on the log\n" * 40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINRNN_DATA", str(folder / "cache"))
        yield folder


def language(place, mixer="hyena", options=None, **changes):
    config = Config(
        task="lm",
        mixer=mixer,
        mixer_options=HYENA if options is None else options,
        task_options=LMOptions(data=(str(place / "text.txt"),), tokenizer="char", length=LENGTH),
        model=ModelConfig(d_model=6, n_layers=2, norm="rms", pool="none"),
        train=TrainConfig(batch_size=4),
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def lm(place):
    return made(place / "lm", language(place))


@pytest.fixture(scope="module")
def distilled(lm, place):
    assert main(["distill", str(lm), "--order", "2,6", "--out", str(place / "small")]) == 0
    return place / "small"


def rows(folder):
    with open(folder / "distillation.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_printed_is_what_is_written(lm, tmp_path, capsys):
    assert main(["distill", str(lm), "--order", "2,6", "--out", str(tmp_path / "a")]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == f"filters over {LENGTH} steps, their errors as part of their norms"
    layers = [line.split() for line in lines[:4]]
    assert [words[:2] for words in layers] == [
        [n, f"blocks.{i}.mixer"] for n in ("2", "6") for i in (0, 1)
    ]
    for words, row in zip(layers, rows(tmp_path / "a"), strict=True):
        names = ("largest_error", "median_error", "floor")
        assert words[2:] == [f"{float(row[name]):.2g}" for name in names]
    before, two, six = (line.split() for line in lines[7:10])
    assert before[:3] == ["before", "-", "-"]
    assert (two[0], six[0]) == ("2", "6")
    assert float(two[2]) > float(six[2]) > 0
    assert lines[-1] == f"{tmp_path / 'a'} is the run of order 6, with the mixer laughing_hyena"


def test_the_errors_are_those_of_the_models_on_the_validation_data(lm, distilled):
    (model, task, _), (small, _, config) = load_model(lm), load_model(distilled)
    validation = task.datasets().validation
    x = torch.stack([validation[i][0] for i in range(len(validation))])
    target = torch.stack([validation[i][1] for i in range(len(validation))])
    with torch.no_grad():
        y, z = model(x)[0], small(x)[0]
    *_, last = rows(distilled)
    assert float(last["outputs_error"]) == pytest.approx(float((z - y).norm() / y.norm()), 1e-3)
    assert float(last["validation_loss"]) == pytest.approx(task.loss(z, target).item(), 1e-5)
    found = small.mixers[1].impulse_responses(LENGTH)
    true = model.mixers[1].impulse_responses(LENGTH)
    errors = (found - true).norm(dim=2) / true.norm(dim=2)
    assert float(last["largest_error"]) == pytest.approx(errors.max().item(), 1e-4)
    assert config.mixer == "laughing_hyena"


def test_the_new_run_streams_with_a_state_that_does_not_grow(distilled):
    model, _, _ = load_model(distilled)
    sizes = {n_floats(model(torch.zeros(1, n, dtype=torch.long))[1]) for n in (1, 9, 90)}
    assert sizes == {n_floats(model.init_state(1))}


def test_every_verb_takes_the_new_run(distilled, lm, tmp_path, capsys):
    said = []
    for run in (distilled, lm):
        argv = ["generate", str(run), "--prompt", "the ", "--max-new-tokens", "8"]
        assert main([*argv, "--temperature", "0"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]  # near enough for the same letters
    assert main(["eval", str(distilled), "--examples", "4"]) == 0
    assert "(lm, laughing_hyena, seed 0)" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.unchecked
def test_the_new_run_can_be_exported_and_the_old_one_not(distilled, lm, tmp_path, capsys):
    pytest.importorskip("onnxscript")
    assert main(["export", str(distilled), str(tmp_path / "a.onnx")]) == 0
    assert main(["export", str(lm), str(tmp_path / "b.onnx")]) == 2
    assert "must have a state of fixed size, got Hyena" in capsys.readouterr().err


def test_without_a_folder_the_next_free_one_is_taken(lm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["distill", str(lm), "--order", "2", "--examples", "3"]) == 0
    out = capsys.readouterr().out
    assert "on 3 validation sequences" in out
    assert "runs/lm-laughing_hyena-1 is the run of order 2" in out
    assert (tmp_path / "runs/lm-laughing_hyena-1/config.json").is_file()


def test_a_pattern_keeps_its_other_layers_and_their_options(place, tmp_path, capsys):
    options = {"hyena": HYENA, "attention": {"window": 5, "n_heads": 2}}
    run = made(tmp_path / "run", language(place, "hyena,attention", options))
    assert main(["distill", str(run), "--order", "6", "--out", str(tmp_path / "out")]) == 0
    assert "as they were, for they have no long filters: Attention in blocks.1.mixer" in (
        capsys.readouterr().out
    )
    model, _, config = load_model(tmp_path / "out")
    assert config.mixer == "laughing_hyena,attention"
    assert config.mixer_options["attention"] == options["attention"]
    assert (model.mixers[1].window, model.mixers[1].n_heads) == (5, 2)


@pytest.mark.parametrize("mixer", ["sgconv", "s4", "laughing_hyena"])
def test_other_layers_and_a_state_that_is_carried(place, tmp_path, mixer):
    options = {"sgconv": {"l_max": LENGTH}, "s4": {"d_state": 8}, "laughing_hyena": {"d_state": 3}}
    carry = mixer != "sgconv"
    config = language(place, mixer, options[mixer])
    config = replace(config, train=replace(config.train, carry_state=carry))
    run = made(tmp_path / "run", config)
    found = distill_run(run, [10], out=tmp_path / "out")
    assert found.mixer == ("laughing_hyena" if mixer == "laughing_hyena" else "modal")
    assert found.orders[0].outputs < {"sgconv": 0.2}.get(mixer, 1e-4)
    assert found.before.examples == found.orders[0].score.examples
    assert load_model(found.folder)[2].train.carry_state == carry


@pytest.mark.unchecked
def test_a_folder_that_is_there_is_refused_before_anything_is_computed(
    lm, distilled, capsys, monkeypatch
):
    monkeypatch.setattr(distil, "open_run", pytest.fail)
    before = {p.name: p.read_bytes() for p in distilled.iterdir()}
    assert main(["distill", str(lm), "--out", str(distilled)]) == 1
    assert "the run folder must be new or empty, got files in it." in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in distilled.iterdir()} == before


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["save_tensors", "write_atomically"])
def test_a_run_that_is_not_written_whole_is_none_and_can_be_written_again(
    lm, tmp_path, monkeypatch, name
):
    def full(*args, **more):
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(distil, name, full)
        with pytest.raises(OSError, match="No space left"):
            distill_run(lm, [2], out=out)
    with pytest.raises(RunFolderError, match=r"must hold config\.json, got none"):
        load_model(out)
    distill_run(lm, [2], out=out)
    load_model(out)
    (tmp_path / "mine").mkdir()
    shutil.copy(out / "model.safetensors", tmp_path / "mine")
    with pytest.raises(RunFolderError, match="must be new or empty"):  # of somebody else
        distill_run(lm, [2], out=tmp_path / "mine")


@pytest.mark.unchecked
def test_it_is_not_trained_on(distilled, capsys):
    assert main(["train", "--resume", str(distilled)]) == 1
    assert "got one that `linrnn distill` wrote. It is complete" in capsys.readouterr().err


@pytest.mark.unchecked
def test_what_has_no_long_filters_is_said(place, tmp_path, capsys):
    run = made(tmp_path / "run", language(place, "lru,gru", {}))
    assert main(["distill", str(run), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "long filters, got LRU in blocks.0.mixer, GRU in blocks.1.mixer. hyena" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.unchecked
def test_both_directions_are_no_stream(place, tmp_path, capsys):
    config = language(place)
    model = replace(config.model, bidirectional=True, pool="mean")
    config = replace(config, task="digits", task_options=None, model=model)
    run = made(tmp_path / "run", config)
    assert main(["distill", str(run), "--out", str(tmp_path / "out")]) == 2
    assert "got Bidirectional in blocks.0.mixer" in capsys.readouterr().err


@pytest.mark.unchecked
def test_times_between_steps_are_refused(place, tmp_path, monkeypatch):
    run = made(tmp_path / "run", language(place, "s4d", {"d_state": 4}))
    real = distil.unpack
    monkeypatch.setattr(
        distil, "unpack", lambda batch: real(batch)._replace(dt=torch.ones(real(batch).x.shape))
    )
    with pytest.raises(ArgumentError, match=r"must have no times between steps, .* the task lm"):
        distill_run(run, [2], out=tmp_path / "out")


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--order", "0"], "--order must be like 16 or 4,8,16, each of at least 1, got '0'"),
        (["--order", "4,"], "--order must be like 16"),
        (["--order", "12"], "order must be at most the 11 rows of the Hankel matrix, got 12"),
        (["--length", "2", "--order", "1"], "at least three numbers a channel, got 2"),
        (["--length", "0"], "length must be an integer of at least 1, got 0"),
        (["--examples", "0"], "examples must be an integer of at least 1, got 0"),
    ],
)
def test_numbers_that_do_not_fit(lm, tmp_path, capsys, argv, said):
    assert main(["distill", str(lm), *argv, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_orders():
    assert parse_orders("4, 8,016") == [4, 8, 16]
    with pytest.raises(ArgumentError, match=re.escape("got '1..4'")):
        parse_orders("1..4")

"""Whatever finds the gradients, a run stops, goes on and leaves steps out as it always did."""

import math
from dataclasses import replace

import pytest
import torch
from learners import averaged_in
from safetensors.torch import load_file

from linrnn import cli, learn, tasks, train
from linrnn.errors import ArgumentError, InterruptedRunError, RunFolderError, UnknownNameError
from linrnn.tasks.adding import AddingOptions
from linrnn.tasks.mackey_glass import MackeyGlassOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train.checkpoint import load_tree, save_tree
from linrnn.train.model import build_model

SHORT = {
    "tbptt": {"window": 7, "overlap": 2, "update": "window"},
    "stagewise": {"every": 3},
    "uoro": {"copies": 2},
    "fptt": {"parts": 3, "soft": "running"},
    "lifted": {"window": 7, "iterations": 3},
    "rbp": {"hold": 10, "terms": 3},
    "ridge": {"frozen": True},
    "gtf": {"schedule": "annealed"},
}
NEEDS = {"stagewise": "constructive"}  # the mixer that a learner is made for
AT_THE_END = ("rbp",)  # for one answer a sequence, and nothing random
LAST = "checkpoints/last.safetensors"
LEARNERS = [*learn.names(), "averaged"]
TURNS = 4


def in_turns(turn):
    """Every learner; one of each four is quick, another four in each turn.

    A learner so meets one of skipping, rolling back, a carried state and a precision. That it goes
    on from its own state to the same bits tests/contract/test_learners.py says of all.
    """
    cases = [
        pytest.param(name, marks=[] if i % TURNS == turn else [pytest.mark.slow])
        for i, name in enumerate(LEARNERS)
    ]
    return pytest.mark.parametrize("name", cases)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch):
    monkeypatch.setattr("linrnn.train._plots.draw_plots", lambda *args: None)


@pytest.fixture(autouse=True)
def _catalogue(tmp_path):
    (tmp_path / "learn").mkdir()
    with averaged_in(tmp_path / "learn"):
        yield


def config_of(name, mixer="lru", **train_options):
    """Two epochs of four steps, with an answer a step, or where a learner needs it a sequence."""
    config = Config(
        task="mackey_glass",
        mixer=NEEDS.get(name, mixer),
        task_options=MackeyGlassOptions(
            length=20, train_size=16, validation_size=4, test_size=4, ahead=2
        ),
        model=ModelConfig(d_model=4, n_layers=1, norm="batch", dropout=0.1, pool="none"),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=2, batch_size=4, threads=1, **train_options),
        learner=name,
        learner_options=SHORT.get(name, {}),
    )
    if name == "gtf":
        return alone(config)
    if name not in AT_THE_END:
        return config
    sizes = {"train_size": 16, "validation_size": 4, "test_size": 4}
    return replace(
        config,
        task="adding",
        task_options=AddingOptions(length=20, **sizes),
        model=replace(config.model, pool="last", dropout=0.0),
    )


def alone(config):
    """One plain layer that is asked for the next step, which is all that some learners take."""
    model = ModelConfig(
        d_model=4, n_layers=1, norm="none", dropout=0.0, pool="none", block="bare", skip=False
    )
    ahead = replace(config.task_options, ahead=1)
    return replace(config, mixer="plrnn", model=model, task_options=ahead)


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A language model that carries its state over documents."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "data"))
    for file in "ab":
        (tmp_path / f"{file}.txt").write_text(f"to {file} or not to {file}, that is it\n" * 12)
    config = Config(
        task="lm",
        mixer="mingru",
        model=ModelConfig(d_model=4, n_layers=1, norm="layer", pool="none"),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=1, batch_size=4, carry_state=True, threads=1),
    )
    files = tuple(str(tmp_path / f"{file}.txt") for file in "ab")
    return replace(config, task_options=replace(config.task_options, data=files, length=16))


def same_bits(run, other):
    for file in ("model.safetensors", LAST):
        ours, theirs = load_file(run / file), load_file(other / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


#: In the first epoch, or in the second of another mixer. Who has no turn here is cut while it
#: carries a state, or around a step that is skipped.
CUTS = [("lru", 2), ("mingru", 6)]


@pytest.mark.parametrize(
    ("name", "mixer", "step"),
    [
        pytest.param(name, *cut, marks=[] if i % TURNS == 2 + j else [pytest.mark.slow])
        for i, name in enumerate(LEARNERS)
        for j, cut in enumerate(CUTS)
    ],
)
def test_resume_inside_an_epoch_gives_the_same_bits(name, mixer, step, signal_at, tmp_path):
    config = config_of(name, mixer)
    whole = train.run(config, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(step))
    again = train.resume(tmp_path / "cut")
    same_bits(tmp_path / "cut", whole.folder)
    assert again.test_loss == whole.test_loss


@in_turns(0)
def test_resume_with_a_carried_state_gives_the_same_bits(name, text, signal_at, tmp_path):
    if name in AT_THE_END:
        pytest.skip("it needs one answer a sequence")
    if name == "gtf":
        pytest.skip("it takes no tokens")
    options = {"learner": name, "learner_options": SHORT.get(name, {})}
    config = replace(text, mixer=NEEDS.get(name, text.mixer), **options)
    whole = train.run(config, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(3))
    train.resume(tmp_path / "cut")
    same_bits(tmp_path / "cut", whole.folder)


def spoil(monkeypatch, steps):
    """NaN at the end of a row of the input of those steps, counted from 1."""
    from linrnn.train._run_module import RunModule

    prepare = RunModule.prepare

    def spoiled(self, batch):
        batch = prepare(self, batch)
        if self.done_steps + 1 in steps:
            batch = batch._replace(x=batch.x.clone())
            batch.x[2, 18, 0] = math.nan
        return batch

    monkeypatch.setattr(RunModule, "prepare", spoiled)


@pytest.fixture
def seen(monkeypatch):
    """After each step: weights, statistics, the optimiser's means and the learner's memory."""
    from linrnn.train._bookkeeping import Bookkeeping

    found = {}
    end = Bookkeeping.on_train_batch_end

    def look(self, trainer, module, *args):
        end(self, trainer, module, *args)
        optimizer = module.optimizer_in_use()
        moments = [
            x for p in module.model.parameters() for x in optimizer.state.get(p, {}).values()
        ]
        remembered = module.learner.state_dict().values()
        weights = module.model.state_dict().values()
        found[module.done_steps] = [x.detach().clone() for x in (*weights, *moments, *remembered)]

    monkeypatch.setattr(Bookkeeping, "on_train_batch_end", look)
    return found


@in_turns(1)
def test_skip_goes_back_to_what_was_before_the_step(name, monkeypatch, seen, signal_at, tmp_path):
    """Around an interruption, too."""
    spoil(monkeypatch, (3, 6))
    config = config_of(name, on_nan="skip")
    whole = train.run(config, out=tmp_path / "whole")
    for before, spoilt, after in ((2, 3, 4), (5, 6, 7)):
        assert all(map(torch.equal, seen[spoilt], seen[before]))
        assert not all(map(torch.equal, seen[spoilt], seen[after]))
    assert all(x.isfinite().all() for step in seen.values() for x in step)
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(3))
    assert train.resume(tmp_path / "cut").skipped == whole.skipped == 2
    same_bits(tmp_path / "cut", whole.folder)


@pytest.mark.parametrize("name", ["averaged", "bptt"])
def test_the_first_step_may_be_skipped(name, monkeypatch, tmp_path):
    """Before the optimiser has any means."""
    spoil(monkeypatch, (1,))
    assert train.run(config_of(name, on_nan="skip"), out=tmp_path / "run").skipped == 1


@in_turns(2)
def test_rollback_takes_what_was_learned_back_to_the_epoch_before(
    name, monkeypatch, seen, signal_at, tmp_path
):
    spoil(monkeypatch, (7,))
    config = config_of(name, on_nan="rollback")
    whole = train.run(config, out=tmp_path / "whole")
    assert whole.rollbacks == 1
    assert all(map(torch.equal, seen[7], seen[4]))
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(6))
    train.resume(tmp_path / "cut")
    same_bits(tmp_path / "cut", whole.folder)


@pytest.mark.unchecked
@in_turns(0)
def test_stop_names_the_first_bad_tensor(name, monkeypatch, tmp_path):
    from linrnn.errors import NonFiniteError

    spoil(monkeypatch, (3,))
    # a gradient is looked at before a loss where the weights move inside a batch
    with pytest.raises(
        NonFiniteError,
        match=r"(the loss|the norm of the gradient) must be finite, got nan at step 3 of 8: the "
        r"input of (the model of shape \(4, \d+, \d\) has nan at \(2, \d+, 0\), the only such "
        r"value|"
        r"\S+ of shape \(4, 4\) has nan at \(2, 0\))",  # of a learner that calls the parts itself
    ):
        train.run(config_of(name), out=tmp_path / "run")


def test_tbptt_with_a_window_of_the_length_trains_the_bits_of_bptt(text, tmp_path):
    plain = train.run(text, out=tmp_path / "plain")
    for update in ("batch", "window"):
        options = {"window": 16, "update": update}
        config = replace(text, learner="tbptt", learner_options=options)
        same_bits(train.run(config, out=tmp_path / update).folder, plain.folder)


def test_a_shorter_window_trains_other_weights(text, tmp_path):
    folders = []
    for options in ({"window": 16}, {"window": 5}, {"window": 5, "update": "window"}):
        config = replace(text, learner="tbptt", learner_options=options)
        folders.append(train.run(config, out=tmp_path / str(len(folders))).folder)
    one, two, three = (load_file(folder / LAST) for folder in folders)
    for a, b in ((one, two), (two, three), (one, three)):
        assert not all(torch.equal(x, b[name]) for name, x in a.items())


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@in_turns(3)
def test_precision_is_that_of_the_run(name, precision, tmp_path):
    config = config_of(name, precision=precision)
    short = replace(config, train=replace(config.train, epochs=1))
    result = train.run(short, out=tmp_path / "run")
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert load_file(tmp_path / "run" / "model.safetensors")["head.weight"].dtype == dtype
    assert math.isfinite(result.test_loss)


@pytest.mark.unchecked
def test_a_checkpoint_with_the_state_of_another_learner_is_refused(signal_at, tmp_path):
    with pytest.raises(InterruptedRunError):
        train.run(config_of("averaged"), out=tmp_path / "run", reporter=signal_at(2))
    tree = load_tree(tmp_path / "run" / LAST)
    assert tree["run"]["learner"].keys() > {"trace", "head.bias"}
    tree["run"]["learner"] = {"other": torch.zeros(1)}
    save_tree(tree, tmp_path / "run" / LAST)
    with pytest.raises(RunFolderError, match=r"last\.safetensors: .*must have a trace"):
        train.resume(tmp_path / "run")


@pytest.mark.unchecked
def test_what_cannot_be_learned_is_said_before_there_is_a_folder(tmp_path):
    backward = config_of("tbptt")
    backward = replace(backward, model=replace(backward.model, bidirectional=True))
    with pytest.raises(ArgumentError, match=r"got blocks\.0\.mixer \(Bidirectional\)"):
        train.run(backward, out=tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"other than blocks\.0\.mixer \(GRU\)"):
        train.run(config_of("averaged", "gru"), out=tmp_path / "run")
    with pytest.raises(UnknownNameError, match="no option of learner 'bptt' named 'window'"):
        train.run(replace(config_of("bptt"), learner_options={"window": 3}), out=tmp_path / "run")
    with pytest.raises(UnknownNameError, match=r"learner named 'btt'\. Did you mean 'bptt'"):
        config_of("btt")
    assert not (tmp_path / "run").exists()


def test_a_learner_of_a_new_file_is_on_the_command_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["list", "learners"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "averaged Back-propagation whose gradients are means" in said
    assert cli.main(["show", "averaged"]) == 0
    assert "decay   float  0.9" in capsys.readouterr().out
    small = ["--task.length", "20", "--task.train-size", "8", "--train.epochs", "1"]
    command = ["train", "mackey_glass", *small, "--model.pool", "none", "--model.d-model", "4"]
    options = ["--learner", "averaged", "--learner.decay", "0.5", "--out", "run"]
    assert cli.main([*command, *options]) == 0
    _, _, config = train.load_model("run")
    assert (config.learner, config.learner_options) == ("averaged", {"decay": 0.5})


def test_tbptt_is_on_the_command_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = ["--task.length", "20", "--task.train-size", "8", "--train.epochs", "1"]
    command = ["train", "mackey_glass", *small, "--model.pool", "none", "--model.d-model", "4"]
    assert cli.main([*command, "--learner", "tbptt", "--learner.window", "8", "--out", "run"]) == 0
    _, _, config = train.load_model("run")
    assert config.learner == "tbptt"
    assert config.learner_options == {"window": 8, "overlap": 0, "update": "batch"}


@pytest.mark.parametrize(
    ("task", "epochs", "better"),
    [("mackey_glass", 1, lambda mse: mse < 0.02), ("digits", 1, lambda accuracy: accuracy > 0.4)],
)
def test_a_reservoir_is_fitted_from_the_command_line(task, epochs, better, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pool = ["--model.pool", "none", "--task.length", "200"] if task == "mackey_glass" else []
    command = ["train", task, *pool, "--train.epochs", str(epochs), "--model.d-model", "32"]
    assert cli.main([*command, "--mixer", "reservoir", "--learner", "ridge", "--out", "run"]) == 0
    model, _, config = train.load_model("run")
    assert config.learner_options == {"penalty": 1e-6, "washout": 0, "frozen": False}
    assert better(train.evaluate("run")[0].metric)
    fresh = dict(build_model(config, tasks.load(task)(config.task_options)).named_parameters())
    moved = [n for n, p in model.named_parameters() if not torch.equal(p, fresh[n])]
    assert moved == ["head.weight", "head.bias"]

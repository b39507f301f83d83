from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from linrnn import learn, train
from linrnn.errors import ArgumentError, InterruptedRunError
from linrnn.tasks.lm import LM, LMOptions
from linrnn.train import Config, ModelConfig, OptimConfig, TrainConfig
from linrnn.train._recover import BEGINNING
from linrnn.train._run_module import RunModule
from linrnn.train.context import Run
from linrnn.train.data import ContiguousBatches, eval_loader, train_loader, unpack
from linrnn.train.folder import RunFolder
from linrnn.train.model import build_model, build_task


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Rows of 50 windows of 8 bytes in batches of 4, two documents."""
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path / "cache"))
    files = []
    for name in ("one.txt", "two.txt"):
        path = tmp_path / name
        path.write_text("".join(f"{name} {i} and so on. " for i in range(45)))
        files.append(str(path))
    return Config(
        task="lm",
        mixer="lru",
        mixer_options={"d_state": 4},
        task_options=LMOptions(data=tuple(files), length=8),
        model=ModelConfig(d_model=6, n_layers=2, norm="rms", dropout=0.1, pool="none"),
        optim=OptimConfig(lr=1e-2),
        train=TrainConfig(epochs=2, batch_size=4, carry_state=True),
    )


def with_train(config, **changes):
    return replace(config, train=replace(config.train, **changes))


def module_of(config):
    config = with_train(config, threads=1)
    task = build_task(config)
    run = Run(
        config=config,
        task=task,
        model=build_model(config, task),
        folder=RunFolder(Path("nowhere")),
        splits=task.datasets(),
        learner=learn.build(config.learner, config.learner_options),
        start=BEGINNING,
        reporter=train.Reporter(),
    )
    return RunModule(run).eval()  # no dropout: what is left is the arithmetic


def test_each_row_goes_on_where_it_ended():
    batches = list(ContiguousBatches(10, 4))
    assert batches == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert list(ContiguousBatches(10, 4, 2)) == batches[2:]
    assert len(ContiguousBatches(10, 4, 2)) == 1
    assert list(ContiguousBatches(2, 4)) == [[0, 1]]


def test_contiguous_loaders_leave_nothing_out(config):
    splits = build_task(config).datasets()
    for loader in (
        train_loader(splits.train, 4, 0, 0, contiguous=True),
        eval_loader(splits.train, 4, contiguous=True),
    ):
        rows = [unpack(batch).x for batch in loader]
        joined = [torch.cat([x[row] for x in rows if row < len(x)]) for row in range(4)]
        tokens = torch.from_numpy(splits.train.tokens[: len(splits.train) * 8].astype("i8"))
        assert torch.equal(torch.cat(joined), tokens)


def test_steps_with_a_carried_state_are_one_pass_over_the_stream(config):
    module = module_of(config)
    losses = [module.learn_from(b).item() for b in step_through(module, 3)]
    splits = module.run.splits
    steps = module.epoch_steps
    for row in range(4):
        batch = [splits.train[row * steps + i] for i in range(3)]
        parts = [torch.cat(part)[None] for part in zip(*batch, strict=True)]
        x, target, _, reset, _ = unpack(parts)
        y, _ = module.model(x, reset=reset)
        apart = [
            module.run.task.loss(a, b).item()
            for a, b in zip(y.split(8, 1), target.split(8, 1), strict=True)
        ]
        losses = [loss - own / 4 for loss, own in zip(losses, apart, strict=True)]
    assert losses == pytest.approx([0, 0, 0], abs=1e-5)


def step_through(module, count):
    """Batches, with the step counted after each."""
    for i, batch in enumerate(module.train_dataloader()):
        if i == count:
            return
        yield batch
        module.done_steps += 1


def test_gradients_stop_at_the_boundary(config):
    module = module_of(config)
    for batch in step_through(module, 2):
        module.learn_from(batch)
        assert all(not h.requires_grad for h in torch.utils._pytree.tree_leaves(module.carried))


def test_rows_begin_anew_in_each_epoch(config):
    module = module_of(config)
    first = [module.learn_from(b).item() for b in step_through(module, 99)]
    assert module.done_steps == module.epoch_steps
    again = [module.learn_from(b).item() for b in step_through(module, 99)]
    assert again == first


def test_without_carrying_each_batch_begins_anew(config):
    config = with_train(config, carry_state=False)
    assert config.train.order == "contiguous"
    module = module_of(config)
    batches = list(step_through(module, 2))
    module.done_steps = 1
    loss = module.learn_from(batches[1]).item()
    x, target, _, reset, _ = unpack(batches[1])
    assert loss == module.run.task.loss(module.model(x, reset=reset)[0], target).item()
    assert module.carried is None


def test_validation_carries_the_state_as_well(config):
    module = module_of(config)
    for _ in range(2):
        module.on_validation_epoch_start()
        for batch in module.val_dataloader():
            module.validation_step(batch, 0)
    carried = module.validation_mean.loss
    other = module_of(with_train(config, carry_state=False))
    for batch in other.val_dataloader():
        other.validation_step(batch, 0)
    assert carried != other.validation_mean.loss
    assert carried == pytest.approx(other.validation_mean.loss, rel=0.1)


def test_nothing_is_remembered_beyond_a_document(config):
    whole = module_of(config)
    model, (x, _, reset) = whole.model, whole.run.splits.train[range(len(whole.run.splits.train))]
    (row, step), *more = reset.nonzero().tolist()
    assert not more
    y, _ = model(x[row : row + 1], reset=reset[row : row + 1])
    alone, _ = model(x[row : row + 1, step:])
    assert torch.allclose(y[:, step:], alone, atol=1e-6)
    assert not torch.allclose(model(x[row : row + 1])[0][:, step:], alone, atol=1e-4)


@pytest.mark.parametrize(
    ("mixer", "options", "step"),
    [
        ("lru", {}, 5),
        pytest.param("rwkv4", {}, 20, marks=pytest.mark.slow),
        pytest.param("rfa", {"redraw_every": 4, "n_features": 8}, 6, marks=pytest.mark.slow),
    ],
)
def test_resume_gives_the_same_bits(config, signal_at, tmp_path, mixer, options, step):
    config = replace(config, mixer=mixer, mixer_options=options)
    whole = train.run(config, out=tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        train.run(config, out=tmp_path / "cut", reporter=signal_at(step))
    again = train.resume(tmp_path / "cut")
    for file in ("model.safetensors", "checkpoints/last.safetensors"):
        ours, theirs = load_file(tmp_path / "cut" / file), load_file(whole.folder / file)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert again.test_loss == whole.test_loss


def test_the_test_carries_the_state_as_validation_does(config, tmp_path):
    result = train.run(config, out=tmp_path / "run")
    assert result.test_metric == pytest.approx(result.validation_metric, rel=1e-6)
    assert train.evaluate(tmp_path / "run")[0].metric == result.test_metric


@pytest.mark.unchecked
def test_what_cannot_carry_a_state(config, tmp_path):
    attention = replace(config, mixer="attention", mixer_options={"n_heads": 1})
    with pytest.raises(ArgumentError, match="False for a model whose state has no constant size"):
        train.run(attention, out=tmp_path / "run")
    both = replace(config, model=replace(config.model, bidirectional=True))
    with pytest.raises(ArgumentError, match="got True and it reads in both directions"):
        train.run(both, out=tmp_path / "run")
    overlapping = replace(config, task_options=replace(config.task_options, stride=4))
    digits = Config(task="digits", train=TrainConfig(carry_state=True))
    for unrelated in (overlapping, digits):
        with pytest.raises(ArgumentError, match="must be 'shuffled' and False where no training"):
            train.run(unrelated, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_window_of_attention_is_carried(config, tmp_path):
    options = {"n_heads": 1, "window": 6}
    config = with_train(replace(config, mixer="attention", mixer_options=options), epochs=1)
    assert train.run(config, out=tmp_path / "run").steps > 0


def test_a_run_folder_answers_without_the_text(config, tmp_path):
    char = replace(config.task_options, tokenizer="char")
    result = train.run(replace(config, task_options=char), out=tmp_path / "run")
    for name in config.task_options.data:
        (tmp_path / name).unlink()
    model, task, _ = train.load_model(result.folder)
    assert isinstance(task, LM)
    ids = torch.from_numpy(task.tokenizer.encode("one.txt").astype("i8"))[None]
    assert model(ids)[0].shape == (1, 7, task.d_input)

"""The module for TorchRL: steps and whole rollouts, slices with stored states, what is missing."""

import pytest
import torch

pytest.importorskip("torchrl", reason="the extra rl is not installed")
pytest.importorskip("gymnasium", reason="the extra rl is not installed")

from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import (
    GRUModule,
    ProbabilisticActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.modules.utils import get_primers_from_module
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from linrnn.errors import ArgumentError, DTypeError, LinrnnError, ShapeError
from linrnn.interop.torchrl import RNNModule

MIXERS = {
    "mingru": {},
    "lru": {},
    "gru": {"num_layers": 2},
    "hippo": {},
    "rwkv7": {"num_layers": 2},
    "attention": {"mixer_options": {"window": 4}},
}
STATE = ("next", "recurrent_state")


def made(name="mingru", **options):
    torch.manual_seed(0)
    return RNNModule(name, 4, 16, **{**MIXERS.get(name, {}), **options})


def environment(*modules):
    env = TransformedEnv(SerialEnv(2, lambda: GymEnv("CartPole-v1")), InitTracker())
    for module in modules:
        env.append_transform(module.make_tensordict_primer())
    env.set_seed(0)
    return env


def actor(memory):
    head = TensorDictModule(torch.nn.Linear(16, 2), ["embed"], ["logits"])
    return ProbabilisticActor(
        TensorDictSequential(memory, head),
        in_keys=["logits"],
        distribution_class=torch.distributions.OneHotCategorical,
        return_log_prob=True,
    )


@pytest.fixture(params=MIXERS)
def rolled(request):
    memory = made(request.param)
    policy = actor(memory)
    env = environment(memory)
    with torch.no_grad():
        data = env.rollout(40, policy, break_when_any_done=False)
    assert data["is_init"][:, 1:].any()
    return memory, data


def close(one, two):
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_rollout_in_one_pass_is_its_steps(rolled):
    memory, data = rolled
    with set_recurrent_mode(True):
        whole = memory(data.clone())
    close(whole["embed"], data["embed"])
    end = memory.memory.unpack(whole[STATE][:, -1])
    from linrnn.state import leaves

    for one, two in zip(leaves(end), leaves(memory.memory.unpack(data[STATE][:, -1])), strict=True):
        close(one, two)


@torch.no_grad()
def test_slices_go_on_from_the_states_stored_with_them(rolled):
    memory, data = rolled
    for cuts in ([5, 20, 30], [20], [7, 23]):
        marked = data.clone()
        for cut in cuts:  # as samplers of slices mark them
            marked["is_init"][:, cut] = True
        with set_recurrent_mode(True):
            close(memory(marked)["embed"], data["embed"])
        flat = marked.exclude("embed").reshape(-1)
        flat["is_init"][40] = True
        with set_recurrent_mode(True):
            close(memory(flat)["embed"], data["embed"].reshape(-1, 16))


@torch.no_grad()
def test_the_gru_is_that_of_torchrl():
    theirs = GRUModule(4, 16, in_keys=["observation", "rs"], out_keys=["embed", ("next", "rs")])
    ours = RNNModule("gru", 4, 16, state_key="rs")
    ours.memory.layers.rnn.load_state_dict(theirs.gru.state_dict())
    observation, start = torch.randn(3, 9, 4), torch.rand(3, 9, 1) < 0.3
    start[:, 0] = True
    data = TensorDict({"observation": observation, "is_init": start}, [3, 9])
    with set_recurrent_mode(True):
        expected = theirs(data.clone().set("rs", torch.zeros(3, 9, 1, 16)))
        got = ours(data.clone().set("rs", torch.zeros(3, 9, 16)))
    close(got["embed"], expected["embed"])
    close(got["next", "rs"][:, -1], expected["next", "rs"][:, -1, 0])
    step = data[:, 0]
    close(
        ours(step.clone().set("rs", torch.ones(3, 16)))["next", "rs"],
        theirs(step.clone().set("rs", torch.ones(3, 1, 16)))["next", "rs"][:, 0],
    )


def test_a_loss_reads_whole_rollouts_and_trains_the_memory():
    memory, other = made("lru"), made("mingru", state_key="critic_state", out_key="seen")
    policy = actor(memory)
    critic = TensorDictSequential(other, ValueOperator(torch.nn.Linear(16, 1), in_keys=["seen"]))
    both = TensorDictSequential(policy, critic)
    env = environment()
    env.append_transform(get_primers_from_module(both))
    collector = Collector(env, both, frames_per_batch=40, total_frames=80)
    loss_of = ClipPPOLoss(policy, critic)
    advantage = GAE(gamma=0.9, lmbda=0.9, value_network=critic, shifted=True)
    for data in collector:
        advantage(data)
        losses = loss_of(data)
        sum(losses[f"loss_{name}"] for name in ("objective", "critic", "entropy")).backward()
        for module in (memory, other):
            assert all(p.grad.abs().sum() > 0 for p in module.parameters() if p.requires_grad)
    collector.shutdown()


def test_gradients_flow_through_time():
    memory = made("mingru")
    x = torch.randn(2, 6, 4, requires_grad=True)
    start = torch.zeros(2, 6, 1, dtype=torch.bool)
    start[1, 3] = True
    numbers = memory.memory.numbers
    data = TensorDict({"observation": x, "is_init": start}, [2, 6])
    data["recurrent_state"] = torch.zeros(2, 6, numbers)
    with set_recurrent_mode(True):
        memory(data)["embed"][:, -1].sum().backward()
    assert x.grad[0].abs().sum(-1).min() > 0
    assert not x.grad[1, :3].any()


@pytest.mark.unchecked
def test_what_is_missing_is_said():
    memory = made()
    bare = TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    with pytest.raises(ArgumentError, match=r"'recurrent_state', got none\. Append .*primer\(\)"):
        memory(bare.reset())
    with pytest.raises(ArgumentError, match=r"'is_init', got none\. Append .*InitTracker\(\)"):
        memory(GymEnv("CartPole-v1").append_transform(memory.make_tensordict_primer()).reset())
    with set_recurrent_mode(True), pytest.raises(ArgumentError, match="an axis of time"):
        memory(bare.append_transform(memory.make_tensordict_primer()).reset())


ENTRIES = {
    "observation": {
        "channels": lambda x: x[..., :3],
        "another axis": lambda x: x[..., None, :],
        "an axis less": lambda x: x[..., 0],
        "float64": torch.Tensor.double,
        "bfloat16": torch.Tensor.bfloat16,
        "integers": torch.Tensor.long,
    },
    "recurrent_state": {
        "a number less": lambda h: h[..., 1:],
        "a number more": lambda h: torch.cat([h, h[..., :1]], -1),
        "another axis": lambda h: h[..., None, :],
        "float64": torch.Tensor.double,
        "bfloat16": torch.Tensor.bfloat16,
    },
    "is_init": {
        "two": lambda s: s.expand(*s.shape[:-1], 2),
        "float32": torch.Tensor.float,
        "integers": torch.Tensor.long,
    },
}
SPOILT = [(key, name) for key, ways in ENTRIES.items() for name in ways]


def entries(memory, *batch):
    return TensorDict(
        {
            "observation": torch.randn(*batch, 4),
            "recurrent_state": torch.zeros(*batch, memory.memory.numbers),
            "is_init": torch.zeros(*batch, 1, dtype=torch.bool),
        },
        batch,
    )


@pytest.mark.unchecked
@pytest.mark.parametrize("recurrent", [False, True], ids=["steps", "one pass"])
@pytest.mark.parametrize(("key", "way"), SPOILT, ids=lambda word: word.replace(" ", "-"))
def test_an_entry_that_does_not_fit_is_named(key, way, recurrent):
    memory = made()
    data = entries(memory, 2, 3)
    data[key] = ENTRIES[key][way](data[key])
    rule = f"^RNNModule: the entry '{key}' must .*, got .*"
    with set_recurrent_mode(recurrent), pytest.raises(LinrnnError, match=rule):
        memory(data)
    assert "embed" not in data


@pytest.mark.parametrize("batch", [(), (0,), (3,), (0, 5), (2, 3), (2, 0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("recurrent", [False, True], ids=["steps", "one pass"])
def test_a_batch_may_have_any_axes(batch, recurrent):
    memory = made()
    with set_recurrent_mode(recurrent):
        if recurrent and (not batch or batch[-1] == 0):
            with pytest.raises(ArgumentError):
                memory(entries(memory, *batch))
            return
        data = memory(entries(memory, *batch))
    assert data["embed"].shape == (*batch, 16)
    assert data[STATE].shape == (*batch, memory.memory.numbers)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    "options",
    [
        {"input_size": 0},
        {"hidden_size": 0},
        {"hidden_size": 2.0},
        {"num_layers": 0},
        {"residual": "no"},
        {"default_recurrent_mode": 1},
        {"in_key": None},
        {"in_key": ["observation"]},
        {"in_key": ""},
        {"state_key": "observation"},
        {"state_key": "is_init"},
        {"out_key": "is_init"},
        {"out_key": ("next", "recurrent_state")},
    ],
    ids=str,
)
@pytest.mark.parametrize("residual", [False, True])
def test_an_option_that_does_not_fit_is_named(options, residual):
    (name,) = options
    options = {"input_size": 4, "hidden_size": 8, "residual": residual, **options}
    with pytest.raises(ArgumentError, match=rf"^RNNModule: {name} must "):
        RNNModule("mingru", **options)


@pytest.mark.unchecked
def test_only_a_tensordict_is_read():
    memory = made()
    for thing in (torch.zeros(2, 4), {"observation": 1}, None):
        with pytest.raises(ArgumentError, match=r"^RNNModule: the input must be a tensordict, got"):
            memory(thing)
    data = entries(memory, 2)
    memory.double()
    rule = r"numbers=32\), got \(2, 16\)\. Make the primer anew"
    with pytest.raises(ShapeError, match=rule):
        memory(data)
    rule = r"must be torch\.float64 like the parameters, got .*DTypeCastTransform"
    with pytest.raises(DTypeError, match=rule):
        memory(entries(memory, 2))

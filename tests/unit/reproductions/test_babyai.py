"""Imitation in BabyAI: the bot's plans, one pass against steps, play, runs that go on."""

import builtins

import numpy as np
import pytest
import torch

from linrnn.reproductions import Setting
from linrnn.reproductions import babyai as reproduction
from linrnn.reproductions._runs import grid_worlds
from linrnn.reproductions._runs.agent import NO_MEMORY
from linrnn.reproductions._runs.grid_worlds import Demonstration
from linrnn.reproductions._runs.imitation import (
    TORCH_GRU,
    Imitated,
    Imitating,
    Imitator,
    Player,
    Vocabulary,
    learn,
)

HOW = Imitating(demonstrations=4, epochs=1, width=16, channels=4, episodes=4)
MISSIONS = ("go to the red ball, then go to a key", "go to the box", "go to a blue key")


def demonstrations(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        Demonstration(
            MISSIONS[row % 3],
            random.integers(0, 3, (time, 7, 7, 3)).astype(np.uint8),
            random.integers(0, 7, time).astype(np.uint8),
        )
        for row, time in enumerate(random.integers(2, 9, count))
    ]


def test_a_vocabulary_keeps_commas_and_knows_what_it_has_not_read():
    vocabulary = Vocabulary(MISSIONS)
    numbers, lengths = vocabulary.read([MISSIONS[0], "go to the violet box"])
    assert lengths.tolist() == [11, 5]
    assert numbers.shape == (2, 11)
    assert (numbers[1, 5:] == 0).all()
    assert numbers[1, 3] == 1
    assert (numbers[0] > 1).all()
    assert len(vocabulary) == 2 + len({*MISSIONS[0].replace(",", " , ").split(), "box", "blue"})


@pytest.mark.parametrize("mixer", ["mingru", "lru", "gated_delta_net", TORCH_GRU, NO_MEMORY])
def test_whole_episodes_give_what_a_player_steps_through(mixer):
    torch.manual_seed(0)
    batch, vocabulary = demonstrations(5), Vocabulary(MISSIONS)
    agent = Imitator(len(vocabulary), mixer, HOW).eval()
    with torch.no_grad():
        whole = agent(batch, vocabulary).split([len(one.actions) for one in batch])
    told, remember = [], agent.remember

    def listened(x, state):
        logits, state = remember(x, state)
        told.append(logits[:, 0])
        return logits, state

    agent.remember = listened
    player = Player(agent, vocabulary, [one.mission for one in batch], greedy=True)
    for t in range(max(len(one.actions) for one in batch)):
        alive = [row for row, one in enumerate(batch) if len(one.actions) > t]
        actions = player(alive, np.stack([batch[row].views[t] for row in alive]))
        expected = torch.stack([whole[row][t] for row in alive])
        torch.testing.assert_close(told[-1], expected, rtol=1e-4, atol=1e-5)
        assert np.array_equal(actions, told[-1].argmax(-1).numpy())


def test_a_mission_and_the_past_change_what_is_done():
    torch.manual_seed(0)
    vocabulary, (first, *_) = Vocabulary(MISSIONS), demonstrations(1)
    other = first._replace(mission=MISSIONS[1])
    views = first.views.copy()
    views[0] = 1 - views[0].clip(0, 1)
    with torch.no_grad():
        for mixer, remembers in (("mingru", True), (NO_MEMORY, False)):
            agent = Imitator(len(vocabulary), mixer, HOW)
            logits = agent([first], vocabulary)
            assert not torch.allclose(logits, agent([other], vocabulary))
            later = agent([first._replace(views=views)], vocabulary)
            assert torch.allclose(logits[1:], later[1:]) is not remembers


def test_what_is_shown_is_learned():
    batch = [one._replace(actions=one.views[:, 3, 5, 0]) for one in demonstrations(60)]
    how = Imitating(demonstrations=60, epochs=40, batch=8, width=32, channels=8, rate=5e-3)
    _, _, curve = learn(batch, "mingru", how, 0)
    assert [epoch for epoch, _ in curve] == list(range(1, 41))
    assert curve[0][1] > 0.8
    assert curve[-1][1] < 0.2


@pytest.fixture(scope="module")
def minigrid():
    pytest.importorskip("minigrid", reason="minigrid is not installed")


@pytest.mark.usefixtures("minigrid")
@pytest.mark.parametrize("level", ["GoToLocal", "visits in order", "MemoryS7, key above"])
def test_the_bot_reaches_its_goal_and_a_replay_of_it_wins(level):
    shown = grid_worlds.demonstrate(level, range(6))
    assert len(shown) == 6

    def ready(missions):
        assert list(missions) == [one.mission for one in shown]
        step = iter(range(1000))

        def policy(rows, views):
            t = next(step)
            for row, view in zip(rows, views, strict=True):
                assert np.array_equal(view, shown[row].views[t])
            return np.array([shown[row].actions[t] for row in rows])

        return policy

    played = grid_worlds.play(level, ready, range(6))
    assert all(played.won)
    assert played.lengths == [len(one.actions) for one in shown]


@pytest.mark.usefixtures("minigrid")
def test_the_sign_alone_says_where_to_turn():
    key, ball = 5, 6
    turns = {}
    for one in grid_worlds.demonstrate("MemoryS7, key above", range(20)):
        sign = next(view[3, 5, 0] for view in one.views if view[3, 5, 0] in (key, ball))
        # the view before the turn has both objects, the key always on the same side, and no sign
        seen = one.views[-2][..., 0]
        assert ((seen == key).sum(), (seen == ball).sum()) == (1, 1)
        turns.setdefault((int(sign), seen.tobytes()), set()).add(int(one.actions[-2]))
    assert {sign: {key: {0}, ball: {1}}[sign] for sign, _ in turns} == {
        sign: turn for (sign, _), turn in turns.items()
    }
    assert len({view for _, view in turns}) == 1


@pytest.mark.usefixtures("minigrid")
def test_demonstrations_come_back_from_their_file(tmp_path):
    made = grid_worlds.recorded("GoToLocal", 3, tmp_path)
    again = grid_worlds.recorded("GoToLocal", 3, tmp_path)
    expected = grid_worlds.demonstrate("GoToLocal", range(3))
    for one, other, third in zip(made, again, expected, strict=True):
        assert one.mission == other.mission == third.mission
        assert np.array_equal(one.views, third.views)
        assert np.array_equal(one.views, other.views)
        assert np.array_equal(one.actions, third.actions)


@pytest.fixture
def small(monkeypatch):
    def imitated(level, shown, mixer, how, seed):
        assert shown == level
        rate = {NO_MEMORY: 2, TORCH_GRU: 4}.get(mixer, 3)
        return Imitated(
            won=[True] * rate + [False] * (4 - rate),
            lengths=[5, 6, 7, 8],
            greedy=[True, False, False, False],
            greedy_lengths=[1, 2, 3, 4],
            curve=[(1, 0.5 + seed)],
            parameters=10,
            learning=1.5,
        )

    class Nothing:
        def close(self):
            pass

    monkeypatch.setattr(reproduction, "imitate", imitated)
    monkeypatch.setattr(reproduction, "recorded", lambda level, count, out: level)
    monkeypatch.setattr(reproduction, "make", lambda level: Nothing())
    return {"cpu": reproduction.Size(levels={"GoToLocal": HOW, "visits in order": HOW})}


def test_a_page_goes_on_where_it_was(small, tmp_path):
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    part = reproduction.BabyAI(small, most_runs=6).run(setting)
    assert not part.complete
    assert any(note.startswith("10 runs are missing") for note in part.notes)
    assert len(set((tmp_path / reproduction.FOLDER).rglob("*.json"))) == 6
    whole = reproduction.BabyAI(small).run(setting)
    assert whole.complete
    won, greedy, lengths, costs = whole.tables
    assert won.rows[0] == ["nn.GRU", "100 [100, 100] (2)", "100 [100, 100] (2)"]
    assert won.rows[-1] == ["no memory", "50 [50, 50] (2)", "50 [50, 50] (2)"]
    assert greedy.rows[0][1] == "25 [25, 25] (2)"
    assert lengths.rows[0][1] == "6.5"
    assert costs.rows[0] == ["nn.GRU", "10", "2", "1.0000", "1.0000"]
    assert len(whole.runs.rows) == 2 * 2 * 4
    assert whole.verdicts[0].differences == (50.0, 50.0)
    assert reproduction.BabyAI(small, most_runs=0).run(setting).tables == whole.tables


def test_without_minigrid_the_page_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("minigrid"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(
        grid_worlds.importlib, "import_module", lambda name: without(name, {}, {}, ["x"])
    )
    sizes = {"cpu": reproduction.Size(levels={"GoToLocal": HOW})}
    setting = Setting(scale="cpu", seeds=(0,), out=tmp_path)
    findings = reproduction.BabyAI(sizes).run(setting)
    assert not findings.complete
    assert findings.tables == ()
    assert "pip install minigrid" in findings.notes[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("minigrid")
def test_a_memory_wins_what_none_can(tmp_path):
    how = reproduction.SIZES["cpu"].levels["MemoryS7, key above"]
    shown = grid_worlds.recorded("MemoryS7, key above", how.demonstrations, tmp_path)
    won = {}
    for mixer in ("mingru", NO_MEMORY):
        won[mixer] = reproduction.share(
            reproduction.imitate("MemoryS7, key above", shown, mixer, how, 0).won
        )
    assert won["mingru"] > 0.9
    assert won[NO_MEMORY] < 0.6

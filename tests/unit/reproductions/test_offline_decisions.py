"""Records of bodies: files of D4RL and Minari, windows, policies by state, the page."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from linrnn.errors import DataError, LinrnnError
from linrnn.reproductions import Setting
from linrnn.reproductions import offline_decisions as reproduction
from linrnn.reproductions._runs import bodies, decisions
from linrnn.reproductions._runs.bodies import BODIES, Clone, Played
from linrnn.reproductions._runs.decisions import CLONING, Carried, Decider, Learning, Window
from linrnn.reproductions._runs.episodes import Episode, Windows, as_d4rl, cut, read_episodes

HOW = Learning(steps=3, batch=4, time=5, width=8, layers=2, warmup=2, episodes=2)
LENGTHS = (7, 3, 12)


def episode(length, number=0):
    random = np.random.default_rng(number)
    draw = functools.partial(random.standard_normal, dtype=np.float32)
    return Episode(draw((length, 11)), np.tanh(draw((length, 3))), draw(length))


@pytest.fixture
def episodes():
    return [episode(length, number) for number, length in enumerate(LENGTHS)]


def same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py", reason="h5py is not installed")


def test_returns_to_go_are_sums_of_what_comes():
    rewards = np.array([1.0, 2.0, 4.0], np.float32)
    assert Episode(rewards, rewards, rewards).to_go.tolist() == [7, 6, 4]


def test_a_record_is_cut_at_both_kinds_of_ends():
    steps = np.arange(6, dtype=np.float32)
    ended, cut_off = np.zeros((2, 6), dtype=bool)
    ended[1] = cut_off[4] = True
    findings = cut(steps[:, None], steps[:, None], steps, ended, cut_off)
    assert [e.rewards.tolist() for e in findings] == [[0, 1], [2, 3, 4]]  # the sixth has no end


@pytest.mark.parametrize("rows", [5, 6])
def test_a_record_without_ends_or_with_missing_rows_is_refused(rows):
    steps, never = np.zeros((6, 1), np.float32), np.zeros(rows, bool)
    with pytest.raises(DataError, match="one row a step, and an episode must end"):
        cut(steps, steps, steps, never, never)


def test_a_file_of_d4rl_comes_back(episodes, h5py, tmp_path):
    path = tmp_path / "hopper_medium-v2.hdf5"
    path.write_bytes(as_d4rl(episodes, [True, False, True]))
    same(read_episodes(path), episodes)
    with h5py.File(path) as file:
        assert file["terminals"][:].nonzero()[0].tolist() == [6, 21]
        assert file["timeouts"][:].nonzero()[0].tolist() == [9]


@pytest.mark.parametrize("below", ["", "data"])
def test_a_folder_of_minari_is_read_in_the_order_of_its_numbers(episodes, h5py, tmp_path, below):
    (tmp_path / below).mkdir(exist_ok=True)
    with h5py.File(tmp_path / below / "main_data.hdf5", "w") as file:
        for number, one in zip((10, 2, 1), episodes, strict=True):
            group = file.create_group(f"episode_{number}")
            group["observations"] = np.concatenate([one.observations, one.observations[:1]])
            group["actions"], group["rewards"] = one.actions, one.rewards
    same(read_episodes(tmp_path), episodes[::-1])


def test_files_of_another_layout_say_what_is_missing(episodes, h5py, tmp_path):
    path = tmp_path / "made.hdf5"
    with pytest.raises(DataError, match="must be a file of episodes, got No such file"):
        read_episodes(path)
    path.write_text("no HDF5")
    with pytest.raises(DataError, match="must be a whole HDF5 file"):
        read_episodes(path)
    with h5py.File(path, "w") as file:
        file["x"] = [1.0]
    with pytest.raises(DataError, match="as in D4RL, or episode_0, as in Minari, got x"):
        read_episodes(path)
    path.write_bytes(as_d4rl(episodes, [True] * 3))
    with h5py.File(path, "a") as file:
        del file["timeouts"]
    with pytest.raises(DataError, match="timeouts itself, got actions"):
        read_episodes(path)
    with h5py.File(path, "a") as file:
        file["timeouts"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "x")
    with pytest.raises(DataError, match="timeouts itself, got a link"):
        read_episodes(path)
    with h5py.File(path, "w") as file:
        group = file.create_group("episode_0")
        for name in ("observations", "actions", "rewards"):
            group[name] = np.zeros(3)
    with pytest.raises(DataError, match="4 observations of 3 steps"):
        read_episodes(path)


def test_without_packages_an_error_says_what_to_install(monkeypatch, episodes):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(LinrnnError, match="Install it: pip install h5py"):
        as_d4rl(episodes, [True] * 3)
    with pytest.raises(LinrnnError, match="pip install gymnasium mujoco h5py"):
        bodies.make("Hopper")


def test_windows_stay_in_their_episode(episodes):
    windows = Windows(episodes, 5)
    observations, actions, to_go, place, inside = windows.draw(200, np.random.default_rng(0))
    assert observations.shape == (200, 5, 11)
    assert actions.shape == (200, 5, 3)
    for row in range(200):
        n = int(inside[row].sum())
        assert inside[row, :n].all()
        at = int(place[row, 0, 0])
        (one,) = (e for e in episodes if at < len(e.rewards) and e.to_go[at] == to_go[row, 0, 0])
        assert n == min(5, len(one.rewards) - at)
        assert np.array_equal(observations[row, :n], one.observations[at : at + n])
        assert place[row, :n, 0].tolist() == list(range(at, at + n))
    rows = np.concatenate([e.observations for e in episodes])
    assert np.allclose(windows.mean, rows.mean(0))


OPTIONS = {"attention": {"n_heads": 1, "window": 15}}


@pytest.mark.parametrize("mixer", ["mingru", "minlstm", "mamba", "attention"])
def test_within_a_window_a_state_plays_what_the_window_plays(mixer):
    torch.manual_seed(0)
    decider = Decider(11, 3, mixer, HOW, OPTIONS.get(mixer, {})).eval()
    ways = [kind(decider, 3600.0, 2) for kind in (Window, Carried)]
    for t in range(HOW.time):
        observations, rewards = np.random.default_rng(t).standard_normal((2, 2, 11))
        anew, carried = (way(observations, rewards[:, 0]) for way in ways)
        np.testing.assert_allclose(anew, carried, rtol=1e-4, atol=1e-5)
    for t in range(3):  # and beyond it a window forgets
        anew, carried = (way(observations + t, rewards[:, 0]) for way in ways)
        assert anew.shape == carried.shape == (2, 3)


def test_an_action_does_not_depend_on_what_comes_after_its_observation():
    torch.manual_seed(0)
    decider = Decider(11, 3, "mingru", HOW, {}).eval()
    observations, actions = torch.randn(1, 5, 11), torch.randn(1, 5, 3, requires_grad=True)
    y = decider(observations, actions, torch.zeros(1, 5, 1), torch.arange(5)[None])
    y[0, 2].sum().backward()
    assert (actions.grad[0].abs().sum(-1) > 0).tolist() == [True, True, False, False, False]


def test_cloning_reads_neither_returns_nor_the_past(episodes):
    torch.manual_seed(0)
    decider = Decider(11, 3, CLONING, HOW, {}).eval()
    observations, other = torch.randn(2, 1, 5, 11)
    other[:, -1] = observations[:, -1]
    place = torch.arange(5)[None]
    first = decider(observations, torch.zeros(1, 5, 3), torch.zeros(1, 5, 1), place)
    second = decider(other, torch.ones(1, 5, 3), torch.ones(1, 5, 1), place)
    assert torch.equal(first[:, -1], second[:, -1])


def test_an_asked_return_decides_what_a_policy_does():
    """Records of one step: where much was gained the action was 0.5, and -0.5 where little was."""
    rows = [(gained, 0.5 if gained > 1000 else -0.5) for gained in (500.0, 3000.0)] * 20
    observations = np.zeros((1, 11), np.float32)
    records = [
        Episode(observations, np.full((1, 3), action, np.float32), np.array([gained], np.float32))
        for gained, action in rows
    ]
    how = replace(HOW, steps=80, batch=32, width=16, rate=1e-2, dropout=0.0)
    decider, curve = decisions.learn(records, "mingru", how, 0, {})
    assert curve[-1][1] < 0.01
    for target, action in ((500, -0.5), (3000, 0.5)):
        act = Window(decider, target, 1)
        assert act(observations, np.zeros(1)) == pytest.approx(action, abs=0.1)


def test_scores_are_those_of_d4rl():
    assert BODIES["Hopper"].score(3234.3) == pytest.approx(100)
    assert BODIES["Walker2d"].score(1.629008) == pytest.approx(0)
    assert BODIES["HalfCheetah"].score(4288.8) == pytest.approx(36.8, abs=0.05)


def test_a_clone_comes_near_to_what_it_imitates(episodes):
    clone = Clone(episodes, seed=0)
    observations, actions = episodes[2].observations, episodes[2].actions
    act = clone.policy(0.0, np.random.default_rng(0))
    before = np.square(act(observations, observations) - actions).mean()
    clone.learn(100)
    assert np.square(act(observations, observations) - actions).mean() < before / 10


class Body:
    """Three steps, each worth a half."""

    def __init__(self):
        self.action_space = type("Box", (), {"low": -np.ones(3), "high": np.ones(3)})

    def reset(self, *, seed):
        self.t, self.observations = 0, np.full(11, float(seed))
        return self.observations.copy(), {}

    def step(self, action):
        assert (np.abs(action) <= 1).all()
        self.t += 1
        self.observations += 1
        return self.observations.copy(), 0.5, self.t == 3, False, {}

    def close(self):
        pass


def test_what_was_played_is_what_was_seen(monkeypatch):
    monkeypatch.setattr(bodies, "make", lambda body: Body())
    played = bodies.play("Hopper", lambda rows, rewards: np.full((len(rows), 3), 9.0), [4, 7])
    assert (played.returns, played.lengths, played.ended) == ([1.5, 1.5], [3, 3], [True, True])
    assert played.episodes[1].observations[:, 0].tolist() == [7, 8, 9]
    assert (played.episodes[0].actions == 1).all()


def test_records_of_our_own_have_their_parts(monkeypatch, h5py, tmp_path):
    best = [episode(4), episode(4)]
    monkeypatch.setattr(bodies, "experts", lambda body: best)
    monkeypatch.setattr(bodies, "make", lambda body: Body())
    monkeypatch.setattr(bodies, "_SNAPSHOTS", (0, 1))
    monkeypatch.setattr(bodies, "_FULL", 1)
    counts = {}
    for quality in bodies.QUALITIES:
        path = bodies.record("Hopper", quality, 12, tmp_path)
        counts[quality] = [len(e.rewards) for e in read_episodes(path)]
        assert bodies.record("Hopper", quality, 12, tmp_path) == path
    expected = {"medium": [3] * 4, "medium-replay": [3] * 4, "medium-expert": [3] * 2 + [4] * 2}
    assert counts == expected


@pytest.fixture
def small(monkeypatch, episodes):
    monkeypatch.setattr(reproduction, "episodes_of", lambda data, size, out: episodes)
    monkeypatch.setattr(reproduction, "make", lambda body: Body())
    monkeypatch.setattr(bodies, "make", lambda body: Body())
    sets = [reproduction.Set("Hopper", quality) for quality in bodies.QUALITIES[:2]]
    return {"cpu": reproduction.Size(sets=sets, how=HOW, recorded=12)}


def test_a_page_goes_on_where_it_was(small, tmp_path):
    setting = Setting(scale="cpu", seeds=(0, 1), out=tmp_path)
    part = reproduction.OfflineDecisions(small, most_runs=6).run(setting)
    assert not part.complete
    assert any("14 runs are missing" in note for note in part.notes)
    made = set((tmp_path / reproduction.FOLDER).rglob("*.json"))
    assert len(made) == 6
    times = {path: path.stat().st_mtime_ns for path in made}
    whole = reproduction.OfflineDecisions(small).run(setting)
    assert whole.complete
    assert {path: path.stat().st_mtime_ns for path in made} == times
    anew, carried, costs = whole.tables
    assert [row[0] for row in anew.rows] == [*reproduction.SYSTEMS]
    assert all(cell.endswith("(2)") for row in (*anew.rows, *carried.rows) for cell in row[1:])
    assert "cloning" not in [row[0] for row in carried.rows]
    assert [row[0] for row in costs.rows] == [*reproduction.SYSTEMS]
    assert len(whole.runs.rows) == 2 * 2 * 5
    assert whole.files["episodes.csv"].count(b"\n") == 1 + 2 * 2 * (5 + 4) * 2
    assert len(whole.verdicts) == 2 * 4  # ours: beside cloning alone
    assert any("none of this is D4RL's data" in note for note in whole.notes)


def test_files_of_d4rl_are_compared_with_what_is_printed(small, tmp_path):
    sets = [reproduction.Set("HalfCheetah", "medium-expert")]
    sizes = {"d4rl": replace(small["cpu"], sets=sets, recorded=0)}
    findings = reproduction.OfflineDecisions(sizes).run(
        Setting(scale="d4rl", seeds=(0,), out=tmp_path)
    )
    claims = [judged.claim for judged in findings.verdicts]
    assert "HalfCheetah medium-expert: Mamba is better than minLSTM" in claims
    assert not any("none of this is D4RL's data" in note for note in findings.notes)


def test_where_files_of_d4rl_are_looked_for(monkeypatch, tmp_path, episodes):
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    findings = reproduction.OfflineDecisions().run(Setting(scale="d4rl", seeds=(0,), out=tmp_path))
    assert not findings.complete
    missing = [note for note in findings.notes if "must be there, or a folder" in note]
    assert len(missing) == len(reproduction.SETS)
    assert str(tmp_path / "d4rl" / "hopper_medium_replay-v2.hdf5") in "".join(missing)


def test_experts_that_are_missing_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LINRNN_DATA", str(tmp_path))
    with pytest.raises(
        DataError, match=r"Hopper_0_observation, .* got No such file .*berkeleydeeprlcourse"
    ):
        bodies.experts("Hopper")
    arrays = {
        f"Hopper_{n}_{name}": np.ones((2, 1), np.float32)
        for n in range(2)
        for name in ("observation", "action", "reward")
    }
    (tmp_path / "offline_rl").mkdir()
    np.savez(tmp_path / "offline_rl" / "mujoco_expert.npz", **arrays)
    assert len(bodies.experts("Hopper")) == 2


def test_the_settings_of_the_paper_differ_from_set_to_set():
    size = reproduction.SIZES["paper"]
    hows = {one: reproduction.Job(one, "minGRU", 0, size).how for one in size.sets}
    assert {(how.width, how.rate) for how in hows.values()} == {
        (256, 1e-4),
        (128, 1e-4),
        (128, 1e-3),
    }
    assert hows[reproduction.Set("Walker2d", "medium")].rate == 1e-4


@pytest.mark.slow
def test_a_body_is_played_in_the_simulator(capfd, monkeypatch, tmp_path):
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    monkeypatch.chdir(tmp_path)

    def act(observations, rewards):
        return np.zeros((len(observations), 3))

    played = bodies.play("Hopper", act, [0, 1])
    assert isinstance(played, Played)
    assert played.ended == [True, True]
    assert bodies.play("Hopper", act, [0, 1]).returns == played.returns
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())  # MuJoCo leaves a log of its warnings

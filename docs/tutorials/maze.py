# %% [markdown]
# # A maze that needs memory
#
# After this page you can train agents with a memory, and see what they remember, how far back, and at what cost.
# A corridor ends at a crossing. Only a sign at its start says which way to turn there, so an agent without memory
# has to guess. The page has the maze, a small PPO, and agents with three kinds of memory and with none.

# %%
import numpy as np
import torch

SIGN_LEFT, SIGN_RIGHT, CORRIDOR, CROSSING = range(4)  # what an agent sees
FORWARD, LEFT, RIGHT = range(3)  # what it can do


class Mazes:
    """Many mazes side by side; where an episode is over, the next one begins."""

    def __init__(self, count, shortest, longest, seed=0):
        self.random = np.random.default_rng(seed)
        self.shortest, self.longest = shortest, longest
        self.sign, self.length, self.place, self.left = np.zeros((4, count), dtype=int)
        self.begin(np.ones(count, dtype=bool))

    def begin(self, rows):
        n = int(rows.sum())
        self.sign[rows] = self.random.integers(2, size=n)
        self.length[rows] = self.random.integers(self.shortest, self.longest + 1, size=n)
        self.place[rows] = 0
        self.left[rows] = 2 * self.length[rows] + 5  # steps until its time is up

    def look(self):
        seen = np.where(self.place == self.length, CROSSING, CORRIDOR)
        seen = np.where(self.place == 0, self.sign, seen)
        return torch.as_tensor(np.eye(4, dtype=np.float32)[seen])

    def step(self, action):
        """Rewards, which episodes are over, and which of them turned as the sign said."""
        crossing = self.place == self.length
        turned = crossing & (action != FORWARD)
        right = turned & (action == LEFT + self.sign)
        moved = ~crossing & (action == FORWARD)
        self.place += moved
        self.left -= 1
        over = turned | (self.left == 0)
        reward = right - 0.1 * ~(moved | turned)  # a wall hurts a little
        self.begin(over)
        return reward, over, right


# %% [markdown]
# Without memory an agent can only guess. The crossing looks the same after both signs, so the agent turns left
# with one probability p. Both signs are equally frequent. So it is right with probability p/2 + (1 - p)/2, one
# half for every p. Training cannot change that.
#
# The agent is a layer of 32 channels between two small linear maps. `reset` marks the starts of episodes, so a
# rollout with many episodes is read [in one pass](episodes.md).

# %%
from torch import nn
from torch.distributions import Categorical

from linrnn import RNN
from linrnn.state import map_state

ROWS, TIME, GAMMA, LAMBDA, CLIP = 64, 32, 0.97, 0.95, 0.2


class Agent(nn.Module):
    def __init__(self, mixer, width=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.memory = None if mixer == "none" else RNN(mixer, width, width, batch_first=True)
        self.heads = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))

    def forward(self, x, state, start):
        x = self.encoder(x)
        if self.memory is not None:
            x, state = self.memory(x, state, reset=start)
        policy, value = self.heads(x).split([3, 1], -1)
        return Categorical(logits=policy), value[..., 0], state


@torch.no_grad()
def collect(mazes, agent, state, start):
    """Play for a while; what was lived, and what comes next."""
    lived, scores = [], []
    for _ in range(TIME):
        x = mazes.look()
        policy, value, state = agent(x[:, None], state, start[:, None])
        action = policy.sample()
        reward, over, right = mazes.step(action[:, 0].numpy())
        reward, over = torch.as_tensor(reward).float(), torch.as_tensor(over)
        lived.append(
            (x, start, action[:, 0], policy.log_prob(action)[:, 0], value[:, 0], reward, over)
        )
        scores.append((right.sum(), int(over.sum())))
        start = over
    x, starts, action, log_prob, value, reward, over = (
        torch.stack(z, 1) for z in zip(*lived, strict=True)
    )
    after = agent(mazes.look()[:, None], state, start[:, None])[1][:, 0]
    gain, gains = torch.zeros(ROWS), []
    for t in reversed(range(TIME)):
        on = (~over[:, t]).float()
        error = reward[:, t] + GAMMA * on * after - value[:, t]
        gain = error + GAMMA * LAMBDA * on * gain
        gains.insert(0, gain)
        after = value[:, t]
    right, ended = np.sum(scores, 0)
    return (
        (x, starts, action, log_prob, value, torch.stack(gains, 1)),
        right / max(ended, 1),
        state,
        start,
    )


def update(agent, optimizer, lived, before):
    """Four times over the experience, in two parts of whole rows."""
    for rows in (part for _ in range(4) for part in torch.randperm(ROWS).chunk(2)):
        x, start, action, log_prob, value, gain = (z[rows] for z in lived)
        state = None if before is None else map_state(lambda h, rows=rows: h[:, rows], before)
        policy, new_value, _ = agent(x, state, start)
        ratio = (policy.log_prob(action) - log_prob).exp()
        scaled = (gain - gain.mean()) / (gain.std() + 1e-8)
        gained = torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
        error = (new_value - value - gain).square().mean()
        loss = 0.5 * error - gained - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()


def train(mixer, seed, updates=50):
    """An agent, and the share of episodes in which it turned as the sign said, update by update."""
    torch.manual_seed(seed)
    mazes, agent = Mazes(ROWS, 4, 10, seed), Agent(mixer)
    optimizer = torch.optim.Adam(agent.parameters(), 3e-3)
    state, start, curve = None, torch.ones(ROWS, dtype=torch.bool), []
    for _ in range(updates):
        before = state
        lived, share, state, start = collect(mazes, agent, state, start)
        update(agent, optimizer, lived, before)
        curve.append(share)
    return agent, curve


# %% [markdown]
# Five agents of each kind learn from 102,400 steps in corridors of 4 to 10 cells. The line is their mean. The
# band shows the range from worst to best.

# %%
import matplotlib.pyplot as plt

from linrnn.train.styles import styles

KINDS = ("gru", "mingru", "lru", "none")
LOOKS = styles(KINDS)
agents, curves = {}, {}
for kind in KINDS:
    trained = [train(kind, seed) for seed in range(5)]
    agents[kind] = [agent for agent, _ in trained]
    curves[kind] = np.array([curve for _, curve in trained])


def draw(x, shares_of):
    for kind, shares in shares_of.items():
        color = LOOKS[kind]["color"]
        plt.plot(x, shares.mean(0), label=kind, markevery=max(1, len(x) // 8), **LOOKS[kind])
        plt.fill_between(x, shares.min(0), shares.max(0), color=color, alpha=0.2, linewidth=0)
    plt.ylabel("share of right turns")
    plt.legend()


draw(np.arange(1, 51) * ROWS * TIME, curves)
plt.xlabel("steps")
plt.show()

late = {kind: shares[:, -10:].mean(1) for kind, shares in curves.items()}
for kind, shares in late.items():
    print(f"{kind:7} {shares.mean():.3f}, from {shares.min():.3f} to {shares.max():.3f}")
assert min(late["gru"].min(), late["mingru"].min()) > 0.9
assert late["none"].max() < 0.6

# %% [markdown]
# **The plain alternative, a GRU, is as good as any other memory here**, and it learns first. In such short
# corridors other memories only save time. The LRU may learn the task late, or unlearn it. Its decays do not depend
# on the input, so it adds up the cells of the corridor like the sign. Without memory the score stays at one half.
#
# What happens in an episode? One agent walks through two corridors that differ only in the sign. The upper plot
# shows its action probabilities at each cell. The lower plot shows how much each channel of its memory differs
# between the two.

# %%
agent = agents["mingru"][0]
signs = [[sign] + [CORRIDOR] * 9 + [CROSSING] for sign in (SIGN_LEFT, SIGN_RIGHT)]
walk = torch.eye(4)[torch.tensor(signs)]
with torch.no_grad():
    policy, _, _ = agent(walk, None, torch.zeros(2, 11) > 0)
    memory, _ = agent.memory(agent.encoder(walk))

figure, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 4.2), height_ratios=(3, 3, 4))
for row, sign in enumerate(("left", "right")):
    axes[row].imshow(policy.probs[row].T, aspect="auto", cmap="Greys", vmin=0, vmax=1)
    axes[row].set_yticks(range(3), ("forward", "left", "right"))
    axes[row].set_title(f"sign: {sign}", fontsize="medium")
apart = (memory[0] - memory[1]).T
axes[2].imshow(apart, aspect="auto", cmap="RdBu", vmin=-apart.abs().max(), vmax=apart.abs().max())
axes[2].set_ylabel("channels")
axes[2].set_xticks(range(11), ["sign", *map(str, range(1, 10)), "crossing"])
plt.show()

# %% [markdown]
# How far back do they remember? Here are the same agents in corridors of up to 300 cells, thirty times the
# training length. They take the most probable action.


# %%
@torch.no_grad()
def share_at(agent, length, rows=128):
    """The share of corridors of a length in which the first turn is as the sign says."""
    torch.manual_seed(0)
    mazes, state, start = Mazes(rows, length, length), None, torch.ones(rows, dtype=torch.bool)
    first, won = np.ones(rows, dtype=bool), np.zeros(rows, dtype=bool)
    for _ in range(2 * length + 5):
        policy, _, state = agent(mazes.look()[:, None], state, start[:, None])
        _, over, right = mazes.step(policy.probs[:, 0].argmax(-1).numpy())
        won |= first & right
        first &= ~over
        start = torch.as_tensor(over)
        if not first.any():
            break
    return won.mean()


LENGTHS = (10, 30, 100, 300)
reach = {
    kind: np.array([[share_at(agent, n) for n in LENGTHS] for agent in agents[kind]])
    for kind in KINDS
}
draw(LENGTHS, reach)
plt.xscale("log")
plt.xticks(LENGTHS, LENGTHS)
plt.xlabel("cells of the corridor")
plt.show()

for kind, shares in reach.items():
    print(
        f"{kind:7}",
        "  ".join(f"{n}: {share:.2f}" for n, share in zip(LENGTHS, shares.mean(0), strict=True)),
    )

# %% [markdown]
# Here too the GRU is as good as minGRU. An agent that has forgotten the sign always turns the same way, so it is
# right half of the time. A lower score means that it turns the wrong way, or does not arrive.
#
# What does a memory cost? Acting takes one step at a time, and learning reads whole rollouts. Times are on one
# core, the least of several.

# %%
import time

torch.set_num_threads(1)


def least(call, times):
    spent = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begin)
    return min(spent)


def costs(agent):
    one, start, rollout = torch.randn(1, 1, 4), torch.zeros(1, 1) > 0, torch.randn(64, 128, 4)
    with torch.no_grad():
        _, _, state = agent(one, None, start)
        acting = least(lambda: agent(one, state, start), 100)
    begins = torch.zeros(64, 128) > 0
    learning = least(lambda: agent(rollout, None, begins)[1].sum().backward(), 10)
    return 1e6 * acting, 1e6 * learning / rollout[..., 0].numel()


spent = np.array([costs(agents[kind][0]) for kind in KINDS])
for kind, (acting, learning) in zip(KINDS, spent, strict=True):
    print(f"{kind:7} {acting:4.0f} µs a step while acting, {learning:5.2f} µs while learning")

figure, axes = plt.subplots(1, 2, figsize=(7, 2.2))
for panel, title, values in zip(axes, ("acting", "learning, 64 rows of 128"), spent.T, strict=True):
    panel.barh(KINDS, values, color=[LOOKS[kind]["color"] for kind in KINDS])
    panel.set(title=title, xlabel="µs a step")
    panel.invert_yaxis()
plt.show()

# %% [markdown]
# In acting, each memory costs about as much as the rest of the agent. In learning, a GRU runs step by step, and
# minGRU reads the steps in parallel. This matters for long rollouts. [Agents with memory](../agents.md) continues
# with Stable-Baselines3, TorchRL and harder environments.

# %% [markdown]
# # Mixers in a pattern
#
# After this page you can build a stack of different mixers, as published hybrid models do: for example two recurrences,
# then attention over a window. A pattern is a tuple that repeats along the depth. Options go to the mixer
# of that name.

# %%
import torch

from linrnn import SequenceModel

model = SequenceModel(
    8,
    8,
    mixer=("rg_lru", "rg_lru", "attention"),
    mixer_options={"attention": {"n_heads": 2, "window": 16}},
    d_model=16,
    n_layers=6,
    norm="rms",
    block="geglu",
    encoder="tokens",
    pool="none",
).eval()
[type(block.mixer).__name__ for block in model.blocks]

# %% [markdown]
# The result is a model like every other. It streams, and each layer has its own kind of state:

# %%
tokens = torch.randint(8, (1, 64))
with torch.no_grad():
    whole, _ = model(tokens)
    state, steps = model.init_state(1), []
    for t in range(64):
        y, state = model.step(tokens[:, t], state)
        steps.append(y)

(torch.stack(steps, 1) - whole).abs().max().item()
# %% [markdown]
# The plain alternative is a stack of attention alone. Without a window, its cache grows with every step:

# %%
from linrnn.state import leaves

plain = SequenceModel(
    8, 8, mixer="attention", d_model=16, n_layers=6, norm="rms", encoder="tokens", pool="none"
).eval()
with torch.no_grad():
    _, cache = plain(tokens)
floats = [sum(part.numel() for part in leaves(one)) for one in (state, cache)]
print(
    f"floats of state after 64 steps: {floats[0]:,} in the pattern, {floats[1]:,} in attention alone"
)

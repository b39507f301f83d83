# %% [markdown]
# # Mixers in a pattern
#
# Stacks that were published mix layers: two recurrences, then attention over a window. A pattern is a
# tuple, repeated along the depth, and options go to the mixer of that name.

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
# The whole is a model as any other: it streams, each layer with the state it needs.

# %%
tokens = torch.randint(8, (1, 64))
with torch.no_grad():
    whole, _ = model(tokens)
    state, steps = model.init_state(1), []
    for t in range(64):
        y, state = model.step(tokens[:, t], state)
        steps.append(y)

(torch.stack(steps, 1) - whole).abs().max().item()

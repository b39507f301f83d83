# %% [markdown]
# # A language model
#
# A text that is always at hand: what this library's layers say about themselves. A model of letters
# learns in some seconds how such texts look. It will not learn what they mean.

# %%
import inspect

import torch

from linrnn import SequenceModel, mixers, tokenizers
from linrnn.generation import generate_text

text = "\n".join(inspect.getdoc(mixers.load(name)) for name in ("lru", "mingru", "s4d", "gru"))
tokenizer = tokenizers.CharTokenizer(text)
tokens = torch.tensor(tokenizer.encode(text)).long()
len(tokens), len(set(text))

# %%
size = len(set(text))
model = SequenceModel(
    size, size, mixer="mingru", d_model=64, n_layers=2, norm="rms", encoder="tokens", pool="none"
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for _ in range(120):
    start = torch.randint(len(tokens) - 129, (16,))
    window = torch.stack([tokens[s : s + 129] for s in start.tolist()])
    logits, _ = model(window[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), window[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < 2.5

# %%
import matplotlib.pyplot as plt

plt.plot(losses)
plt.xlabel("step of the optimiser")
plt.ylabel("nats per character")
plt.show()

# %% [markdown]
# Each new letter is one step, from a state of fixed size: the thousandth costs what the first did.

# %%
model.eval()
print("".join(generate_text(model, tokenizer, "The state ", 200, temperature=0.7, seed=1)))

# %% [markdown]
# `linrnn train lm --data book.txt` does this for a text of yours, with a run folder, validation and
# a model that [streams](../streaming.md): see [Language models](../language-models.md).

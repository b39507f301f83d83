# %% [markdown]
# # A language model
#
# After this page you can train a character-level language model and generate text with it. The text is always
# available: docstrings of this library's layers. In some seconds the model learns what such texts look
# like, but not what they mean.

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
# Each new character is one step from a state of fixed size. So the thousandth costs as much as the
# first.

# %%
model.eval()
print("".join(generate_text(model, tokenizer, "The state ", 200, temperature=0.7, seed=1)))

# %% [markdown]
# The plain alternative counts pairs of characters, and predicts each from the one before:

# %%
pairs = torch.full((size, size), 0.1)
pairs.index_put_((tokens[:-1], tokens[1:]), torch.ones(len(tokens) - 1), accumulate=True)
shares = pairs / pairs.sum(1, keepdim=True)
bigram = -shares[tokens[:-1], tokens[1:]].log().mean().item()
ours = sum(losses[-10:]) / 10
print(f"model {ours:.2f} nats per character, counted pairs {bigram:.2f}")
assert ours < bigram

# %% [markdown]
# Both numbers are on the training text. `linrnn train lm --data book.txt` does this for your text, with
# validation and a run folder: see [Language models](../language-models.md).

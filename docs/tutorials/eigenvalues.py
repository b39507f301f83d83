# %% [markdown]
# # Reading eigenvalues
#
# After this page you can read from the eigenvalues of a linear recurrence how long it remembers. In an LRU each
# channel of the state is multiplied by one complex number at every step. Its modulus is the decay per
# step. Its angle is the rotation per step.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

from linrnn.mixers import LRU

young = LRU(d_model=8, d_state=64, r_min=0.5, r_max=0.99)
lam = young.eigenvalues().detach()


def draw(axes, numbers, title):
    axes.plot(np.cos(circle), np.sin(circle), color="#999999", linewidth=0.8, linestyle="-")
    axes.plot(numbers.real, numbers.imag, marker=".", linestyle="none")
    axes.set(aspect="equal", title=title)


circle = np.linspace(0, 2 * np.pi, 200)
figure, axes = plt.subplots(1, 2, figsize=(7, 3.5))
draw(axes[0], lam, "drawn on a ring")
slow = LRU(d_model=8, d_state=64, r_min=0.9, r_max=0.999, max_phase=0.3)
draw(axes[1], slow.eigenvalues().detach(), "long memory, slow turns")
plt.show()

# %% [markdown]
# After \(t\) steps \(|\lambda|^t\) of an input remains. So the half-life is
# \(\log 2 / -\log |\lambda|\) steps.

# %%
for name, layer in (("drawn on a ring", young), ("long memory", slow)):
    half = np.log(2) / -layer.eigenvalues().detach().abs().log()
    print(f"{name}: half-lives of {half.min():.1f} to {half.max():.0f} steps")

# %% [markdown]
# The plain alternative is to measure it: feed a single input and plot the norm of the output. It agrees
# with the eigenvalues, and also works for layers that have none.

# %%
x = torch.zeros(1, 300, 8)
x[:, 0] = 1
with torch.no_grad():
    for name, layer in (("drawn on a ring", young), ("long memory", slow)):
        layer.D.zero_()  # the state alone, nothing past it
        plt.semilogy(layer(x)[0][0].norm(dim=-1), label=name)
plt.xlabel("steps since the input")
plt.ylabel("norm of the output")
plt.legend()
plt.show()

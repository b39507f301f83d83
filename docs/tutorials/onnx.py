# %% [markdown]
# # Without PyTorch
#
# A trained model has to run where there is no PyTorch. One step of it is a small ONNX file: the input
# and the state go in, the output and the next state come out.

# %%
import tempfile
from pathlib import Path

import onnxruntime
import torch

from linrnn import SequenceModel
from linrnn.interop.onnx import export_step

model = SequenceModel(1, 2, mixer="mingru", d_model=8, n_layers=2, norm="layer", pool="none").eval()
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "step.onnx")
    export_step(model, path)
    graph = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    print(path.stat().st_size, "bytes")

[(part.name, part.shape) for part in graph.get_inputs()]

# %% [markdown]
# The loop around it needs NumPy alone:

# %%
from linrnn.state import leaves

x = torch.randn(1, 50, 1)
names = [part.name for part in graph.get_inputs()]
state = [part.numpy() for part in leaves(model.init_state(1))]
outputs = []
for x_t in x[0].numpy():
    y, *state = graph.run(None, dict(zip(names, [x_t[None], *state], strict=True)))
    outputs.append(torch.from_numpy(y))

with torch.no_grad():
    difference = (torch.stack(outputs, 1) - model(x)[0]).abs().max().item()
assert difference < 1e-5
difference

# %% [markdown]
# `linrnn export RUN step.onnx` does it for a run folder, and [Without PyTorch](../deployment.md) has
# whole sequences, the metadata and the mixers that can.

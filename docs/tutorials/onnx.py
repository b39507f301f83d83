# %% [markdown]
# # Without PyTorch
#
# After this page you can run a trained model where PyTorch is not installed. One step of the model becomes a small ONNX
# file. It takes the input and the state, and returns the output and the next state.

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
# The loop needs only onnxruntime and NumPy. The plain alternative, the model in PyTorch, gives the same
# numbers:

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
# `linrnn export RUN step.onnx` exports a run folder. [Without PyTorch](../deployment.md) covers whole
# sequences, the metadata of the file, and which mixers can be exported.

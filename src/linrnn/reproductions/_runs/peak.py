"""The memory of one training step, measured in a separate process.

``python -m linrnn.reproductions._runs.peak`` reads what to measure as JSON from standard input and
prints bytes. A process that has done nothing else has no memory left over to hide a step's.
"""

import json
import subprocess
import sys

import torch

from linrnn.compare.usage import added_peak
from linrnn.reproductions._runs.layers import training_step
from linrnn.reproductions._runs.timing import device, synchronise


def peak_of_step(
    layer: str, d_model: int, batch: int, time: int, *, limit: float = 120.0
) -> int | None:
    """Bytes a training step adds at most to what the layer and its input take.

    GPU memory where there is a GPU, else the process's resident memory.

    Args:
        layer: a name in `LAYERS`.
        d_model, batch, time: its size.
        limit: seconds the process may take.

    Returns:
        None where it could not be measured: over the limit, out of memory, or on Windows.
    """
    job = {"layer": layer, "d_model": d_model, "batch": batch, "time": time}
    job["threads"] = torch.get_num_threads()
    command = [sys.executable, "-m", __name__]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    peak = json.loads(process.stdout) if process.returncode == 0 else None
    return None if peak is None else int(peak)


def measure(layer: str, d_model: int, batch: int, time: int) -> int | None:
    """Measure `peak_of_step` in this process, which should have done nothing else."""
    where = device()
    training_step(layer, d_model, 1, 2, where)()  # what is imported or packed once does not count
    step = training_step(layer, d_model, batch, time, where)
    if where.type != "cuda":
        return added_peak(step)
    synchronise()
    torch.cuda.reset_peak_memory_stats()
    allocated: int = torch.cuda.memory_allocated()
    result = step()
    synchronise()
    peak: int = torch.cuda.max_memory_allocated()
    del result
    return peak - allocated


def main() -> int:
    """Measure what standard input asks for."""
    job = json.load(sys.stdin)
    torch.set_num_threads(job.pop("threads"))
    sys.stdout.write(f"{json.dumps(measure(**job))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

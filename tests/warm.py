"""An interpreter with PyTorch and Triton, whose children run code: imports take seconds.

So do those that the first kernel of a child would need, of Triton's other language and of shapes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

SERVER = f"""
import contextlib, json, os, sys, traceback
import pytest
import torch
import torch.fx.experimental.symbolic_shapes
import triton
with contextlib.suppress(ImportError):  # of an older Triton
    import triton.experimental.gluon
import linrnn.ops, linrnn.testing
sys.path.append({str(Path(__file__).parent)!r})
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter_sooner

def work(job):
    for stream, path in ((1, job["out"]), (2, job["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.update(job["environment"])
    try:
        exec(compile(job["code"], "<test>", "exec"), {{"__name__": "__main__"}})
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if not child:
        work(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Warm:
    """Runs code in children of one process.

    Args:
        environment: variables that are read when Triton is imported.
    """

    def __init__(self, environment: dict[str, str]):
        # nothing may have started threads before a fork
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code, folder, environment):
        """The exit code, and what was written to standard output and error."""
        files = {name: str(folder / name) for name in ("out", "err")}
        job = {"code": code, "environment": environment, **files}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        texts = [(folder / name).read_text(encoding="utf-8") for name in files]
        return int(answer or -1), *texts

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

"""Products of llama.cpp's tensor library with its own weights of few bits, called by ctypes."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

_TYPES = {"q4_0": (2, 18), "q8_0": (8, 34)}  # the number, and the bytes of 32 weights
_F32 = 0
_BLOCK = 32


class _Params(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """Products of some equal matrices with x, all of them at each call.

    Args:
        folder: where libggml-base.so and libggml-cpu.so lie.
        kind: ``q8_0`` or ``q4_0``.
        weight: (outputs, inputs).
        x: (rows, inputs).
        count: of matrices, each in memory of its own.
    """

    def __init__(self, folder: Path, kind: str, weight: Tensor, x: Tensor, count: int) -> None:
        base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
        for name in ("init", "new_tensor_2d", "mul_mat", "new_graph", "get_data"):
            getattr(base, f"ggml_{name}").restype = ctypes.c_void_p
        number, per_block = _TYPES[kind]
        (outputs, inputs), rows = weight.shape, len(x)
        matrix_bytes = outputs * inputs // _BLOCK * per_block
        self.n_bytes = count * matrix_bytes
        size = self.n_bytes + (count + 1) * (rows * (inputs + outputs) * 4 + (1 << 14)) + (8 << 20)
        pointer, i64 = ctypes.c_void_p, ctypes.c_int64
        self._context = pointer(base.ggml_init(_Params(size, None, False)))
        self._cpu.ggml_cpu_init()

        def tensor(kind: int, columns: int, n_rows: int) -> tuple[ctypes.c_void_p, int]:
            made = pointer(base.ggml_new_tensor_2d(self._context, kind, i64(columns), i64(n_rows)))
            return made, base.ggml_get_data(made)

        right, at = tensor(_F32, inputs, rows)
        x = x.contiguous()
        ctypes.memmove(at, x.data_ptr(), x.nbytes)
        numbers = weight.detach().float().contiguous()
        self._graph = pointer(base.ggml_new_graph(self._context))
        first = 0
        for _ in range(count):
            left, at = tensor(number, inputs, outputs)
            if first:
                ctypes.memmove(at, first, matrix_bytes)
            else:
                base.ggml_quantize_chunk.restype = ctypes.c_size_t
                base.ggml_quantize_chunk(
                    *(number, pointer(numbers.data_ptr()), pointer(at)),
                    *(i64(0), i64(outputs), i64(inputs), None),
                )
                first = at
            product = pointer(base.ggml_mul_mat(self._context, left, right))
            base.ggml_build_forward_expand(self._graph, product)
        self._last, self._base = product, base
        self._shape = rows, outputs

    def __call__(self) -> None:
        """Compute all products."""
        threads = torch.get_num_threads()
        self._cpu.ggml_graph_compute_with_ctx(self._context, self._graph, threads)

    def result(self) -> Tensor:
        """The last product (rows, outputs)."""
        rows, outputs = self._shape
        address = self._base.ggml_get_data(self._last)
        numbers = (ctypes.c_float * (rows * outputs)).from_address(address)
        return torch.frombuffer(numbers, dtype=torch.float32).view(rows, outputs).clone()

    def __del__(self) -> None:
        self._base.ggml_free(self._context)

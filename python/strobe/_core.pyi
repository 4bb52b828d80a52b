# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any, Unpack

from strobe._options import Options, Tensor

version: str

class TensorShape:
    def __init__(self, shape: list[int], dtype: str, cuda: bool, index: int) -> None: ...

class ScoreFunction:
    def __init__(self, score: str, mask: str, captures: dict[str, Any] | None) -> None: ...
    def explain(self) -> str: ...
    keeps_hidden: bool
    differentiable: list[str]

def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor | None,
    max_logits: Tensor | None,
    heads_first: bool = False,
    **options: Unpack[Options],
) -> None: ...
def backward(
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    lse: Tensor | None,
    d_lse: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    d_bias: Tensor | None,
    d_sink: Tensor | None,
    allocate_workspace: Callable[[int], Tensor] | None,
    d_captures: dict[str, Tensor] | None = None,
    dqv: Tensor | None = None,
    **options: Unpack[Options],
) -> None: ...
def jvp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_tangent: Tensor | None,
    k_tangent: Tensor | None,
    v_tangent: Tensor | None,
    o: Tensor | None,
    lse: Tensor | None,
    o_tangent: Tensor,
    lse_tangent: Tensor | None,
    **options: Unpack[Options],
) -> None: ...
def explain(q: Tensor, k: Tensor, v: Tensor, backward: bool, **options: Unpack[Options]) -> str: ...
def quantize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q8: Tensor,
    k8: Tensor,
    v8: Tensor,
    q_descale: Tensor,
    k_descale: Tensor,
    v_descale: Tensor,
    q_shift: Tensor | None,
    q_scales: int,
    k_scales: int,
    v_scales: int,
    rotate_qk: bool,
    rotate_v: bool,
    seed: int,
    allocate_workspace: Callable[[int], Tensor] | None,
    **options: Any,
) -> None: ...
def merge(parts_o: list[Tensor], parts_lse: list[Tensor], o: Tensor, lse: Tensor, **options: Any) -> None: ...
def merge_backward(
    parts_o: list[Tensor],
    parts_lse: list[Tensor],
    d_o: Tensor,
    d_lse: Tensor | None,
    parts_d_o: list[Tensor],
    parts_d_lse: list[Tensor],
    **options: Any,
) -> None: ...
def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    tensors: dict[str, Tensor],
    interleaved: bool,
    q_in_order: bool,
    **options: Any,
) -> None: ...
def plan_quantization(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mode: int,
    max_rmse: float,
    max_error: float,
    seed: int,
    **options: Any,
) -> dict[str, Any]: ...
def set_threads(threads: int) -> None: ...
def get_threads() -> int: ...
def gpu_report() -> dict[str, Any]: ...
def run_program(arguments: list[bytes], python: str) -> int: ...
def boolean(name: str, value: Any) -> bool: ...
def integer(name: str, value: Any) -> int: ...
def unsigned_integer(name: str, value: Any) -> int: ...
def dropout_mask(mask: Any, dropout: float, seed: int, offset: int) -> None: ...
def local_block_mask(mask: Any, left: int, right: int) -> None: ...
def strided_block_mask(mask: Any, stride: int) -> None: ...
def butterfly_block_mask(mask: Any) -> None: ...
def jax_handlers() -> dict[str, Any]: ...
def ready_row_format(name: str) -> dict[str, Any]: ...
def eight_bit_row_format(element: str, columns: int) -> dict[str, Any]: ...
def describe_row_format(format: Any) -> str: ...
def encode_rows(rows: Tensor, cache: Tensor, format: Any, **options: Any) -> None: ...
def decode_rows(cache: Tensor, rows: Tensor, format: Any, **options: Any) -> None: ...
def append_rows(
    cache: Tensor,
    rows: Tensor,
    cache_seqlens: Tensor,
    cu_seqlens_new: Tensor | None,
    page_table: Tensor | None,
    cache_batch_idx: Tensor | None,
    format: Any,
    **options: Any,
) -> None: ...
def sparse_forward(
    q: Tensor,
    sources: list[Any],
    o: Tensor,
    lse: Tensor | None,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    scale: float | None,
    softcap: float,
    **options: Any,
) -> None: ...
def explain_sparse(
    q: Tensor,
    sources: list[Any],
    head_dim_v: int,
    lse: bool,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    scale: float | None,
    softcap: float,
    **options: Any,
) -> str: ...
def sparse_backward(
    q: Tensor,
    sources: list[Any],
    o: Tensor,
    lse: Tensor,
    sink: Tensor | None,
    cu_seqlens_q: Tensor | None,
    scale: float | None,
    softcap: float,
    d_o: Tensor,
    d_lse: Tensor | None,
    dq: Tensor,
    gradients: list[tuple[Tensor, Tensor | None]],
    d_sink: Tensor | None,
    **options: Any,
) -> None: ...

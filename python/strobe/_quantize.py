# SPDX-License-Identifier: Apache-2.0
"""Q, K and V in 8 bits."""

from dataclasses import dataclass
from typing import Any, Literal

from strobe import _core
from strobe._frameworks import framework_of
from strobe._options import Tensor
from strobe._quantized import UNITS, Quantization, Quantized, Sequences, Unit, plan_of
from strobe._shapes import dtype_name


def quantize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    element: Any = "int8",
    q_scales: Unit = "row",
    k_scales: Unit = "group",
    v_scales: Unit = "row",
    rotate_qk: bool = True,
    rotate_v: bool = True,
    center_k: bool = True,
    seed: int = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    threads: int = 0,
    engine: str = "automatic",
    stream: int | None = None,
) -> Quantized:
    """q, k and v as 8-bit tensors with scales, for ``strobe.attention``.

    q [batch, seqlen_q, heads_q, head_dim], k [batch, seqlen_k, heads_kv, head_dim] and v [batch, seqlen_k, heads_kv,
    head_dim_v] are float32, float16 or bfloat16, of one framework and on one device, with any strides as long as the
    last is 1. ``element`` is "int8" or "float8_e4m3fn", or the framework's dtype of that name; NumPy holds the latter
    by ml_dtypes.

    Rows share a scale with all rows of the "tensor" or of their batch entry and "head", with 127 neighbours ("block"),
    with 31 ("group") or with none ("row"). ``rotate_qk`` and ``rotate_v`` multiply the columns by random signs, which
    ``seed`` draws, and a Hadamard matrix: scores stay, attention rotates its output back. ``center_k`` takes the keys'
    mean from them, which the softmax does not notice. What each does to the error: docs/eight-bit.md. Results do not
    depend on threads.

    With ``cu_seqlens_q`` or ``cu_seqlens_k`` that side is packed, as of ``strobe.attention``: q [total_q, heads_q,
    head_dim], k [total_k, heads_kv, head_dim] and v [total_k, heads_kv, head_dim_v]. Each sequence has the elements and
    scales that it has alone, but for scales of the "tensor". Scales take memory for the longest sequence in place of
    each: give ``max_seqlen_q`` and ``max_seqlen_k``. The options of the result have all four.

    There are no gradients. Raises ValueError for tensors that are recorded on PyTorch's tape and for arguments that
    contradict this description, TypeError for what are no tensors, NotImplementedError for what no engine of this build
    supports. On a GPU the call returns when its launches are queued.

    Source: Shah et al., "FlashAttention-3" (2024), section 3.3; Zhang et al., "SageAttention" (2024), section 4.2.
    """
    plan = plan_of(
        *(q, k, v),
        Quantization(dtype_name(element), q_scales, k_scales, v_scales, rotate_qk, rotate_v, center_k, seed),
        Sequences(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k),
    )
    framework = framework_of(q)
    if framework.name == "jax":
        from strobe import jax

        return jax.run_quantize(plan, q, k, v, threads)
    framework.reject_gradients("8-bit tensors do not have: detach it", q=q, k=k, v=v)
    outputs = {name: framework.empty(shape, q, plan.dtypes[name]) for name, shape in plan.shapes.items()}
    _core.quantize(
        *(q, k, v),
        **({"q_shift": None} | outputs | plan.quantization.settings() | plan.sequences.given()),
        allocate_workspace=framework.workspace_allocator(q, stream),
        threads=threads,
        engine=engine,
        stream=framework.stream(stream),
    )
    return plan.result(outputs)


@dataclass(frozen=True)
class QuantizationPlan:
    """How to quantise, and what it costs: quantize(q, k, v, **plan.settings)."""

    settings: dict[str, Any]
    """The keyword arguments of ``strobe.quantize``."""
    rmse: float
    """The root mean square error of attention's output, estimated, with a margin."""
    error_bound: float
    """Of any element of the output; infinite where the tensors were not read."""
    measured: bool
    """Whether the tensors were read; otherwise they were taken to be normal."""
    keys_per_sum: int
    """Keys whose products are summed as the hardware does, before they join a float32 sum."""
    explanation: str
    """A few lines for a reader."""


_MODES = ("automatic", "fast", "accurate")  # in the order of strobe::QuantizationMode


def plan_quantization(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    max_rmse: float = 0.0,
    max_error: float = 0.0,
    mode: Literal["automatic", "fast", "accurate"] = "automatic",
    seed: int = 0,
    **options: Any,
) -> QuantizationPlan:
    """The cheapest quantisation of q, k and v whose error keeps to a budget; 0: no bound.

    q, k and v are as for ``quantize``, and ``options`` those of the attention that follows. ``max_rmse`` bounds the
    root mean square error of its output, by an estimate; ``max_error`` that of any element, guaranteed and so far above
    what is seen. Tensors in host memory are read, with the exact probabilities of up to 256 queries; tensors on a GPU,
    and under JAX's transformations, are not: all elements are then taken to be independent and N(0, 1). "fast" is
    float8_e4m3fn with scales by blocks, "accurate" int8 with a scale for each row of v.

    Raises NotImplementedError where nothing keeps to the budget, and otherwise as ``quantize`` does. The model and what
    it assumes: docs/eight-bit.md.
    """
    if mode not in _MODES:
        raise ValueError(f'mode is "{mode}": it must be one of {", ".join(_MODES)}')
    if framework_of(q).name == "jax":
        from strobe import jax

        q, k, v = jax.values_or_shapes(q, k, v)
    plan = _core.plan_quantization(q, k, v, _MODES.index(mode), max_rmse, max_error, seed, **options)
    settings = {name: plan[name] for name in ("element", "rotate_qk", "rotate_v", "center_k", "seed")}
    settings |= {name: UNITS[plan[name]] for name in ("q_scales", "k_scales", "v_scales")}
    results = ("rmse", "error_bound", "measured", "keys_per_sum", "explanation")
    return QuantizationPlan(settings, *(plan[name] for name in results))

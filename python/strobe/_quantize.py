# SPDX-License-Identifier: Apache-2.0
"""Q, K and V in 8 bits."""

from dataclasses import dataclass
from typing import Any, Literal, Unpack

from strobe import _core
from strobe._documented import with_options
from strobe._frameworks import framework_of
from strobe._option_list import check_options
from strobe._options import QuantizeOptions, Tensor
from strobe._quantized import UNITS, Quantized, plan_of
from strobe._shapes import wrong_type


@with_options(QuantizeOptions)
def quantize(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[QuantizeOptions]) -> Quantized:
    """q, k and v as 8-bit tensors with scales, for ``strobe.attention``.

    q [batch, seqlen_q, heads_q, head_dim], k [batch, seqlen_k, heads_kv, head_dim] and v [batch, seqlen_k, heads_kv,
    head_dim_v] are float32, float16 or bfloat16, of one framework and on one device, with any strides as long as the
    last is 1. With ``cu_seqlens_q`` or ``cu_seqlens_k`` that side is packed, as of ``strobe.attention``. Each sequence
    has the elements and scales that it has alone, but for scales of the "tensor". The options of the result have the
    lengths and their bounds.

    Example:

        x = strobe.quantize(q, k, v)
        out = strobe.attention(x.q, x.k, x.v, causal=True, **x.options)

    There are no gradients. Raises ValueError for tensors that are recorded on PyTorch's tape and for arguments that
    contradict this description, TypeError for what are no tensors, NotImplementedError for what no engine of this build
    supports. On a GPU the call returns when its launches are queued.

    The options are those of ``strobe.QuantizeOptions``.

    Source: Shah et al., "FlashAttention-3" (2024), section 3.3; Zhang et al., "SageAttention" (2024), section 4.2.
    """
    check_options("strobe.quantize", options, QuantizeOptions.__annotations__)
    plan = plan_of(q, k, v, options)
    threads, stream = options.get("threads", 0), options.get("stream")
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
        engine=options.get("engine", "automatic"),
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
    check_options("strobe.plan_quantization", options)
    if not isinstance(mode, str):
        raise wrong_type("mode", mode, f"one of {', '.join(_MODES)}")
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

# SPDX-License-Identifier: Apache-2.0
"""The forward on tensors that no tape sees, which every interface but JAX's ends in."""

from typing import Any

from strobe import _core
from strobe._frameworks import Framework, framework_of
from strobe._options import Tensor
from strobe._shapes import (
    EIGHT_BIT,
    dtype_name,
    eight_bit_output_shape,
    lse_shape,
    max_logits_shape,
)


def forward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, return_lse: bool, return_max_logits: bool, options: Any
) -> Any:
    """What ``strobe.attention`` returns."""
    framework = framework_of(q)
    out, lse, max_logits = outputs_of(framework, q, v, out, return_lse, return_max_logits, options)
    region = framework.region("strobe::attention")
    if region is None:
        _core.forward(q, k, v, out, lse, max_logits, **options)
    else:
        with region:
            _core.forward(q, k, v, out, lse, max_logits, **options)
    return results(out, lse, max_logits)


def outputs_of(
    framework: Framework,
    q: Tensor,
    v: Tensor,
    out: Tensor | None,
    return_lse: bool,
    return_max_logits: bool,
    options: Any,
) -> tuple[Any, Any, Any]:
    """out, lse and max_logits, None where it is not asked for; options["out_dtype"] leaves the options."""
    if "q_descale" in options:
        out = _eight_bit_output(q, v, out, options)
    elif options.get("out_dtype") is not None:
        options["out_dtype"] = dtype_name(options["out_dtype"], "out_dtype")  # by which the call refuses it
    if out is None:
        out = framework.empty_output(q, v)
    lse = framework.empty(lse_shape(q), q, "float32") if return_lse else None
    max_logits = None
    if return_max_logits:
        max_logits = framework.empty(max_logits_shape(q, options.get("cu_seqlens_q")), q, "float32")
    return out, lse, max_logits


def results(out: Tensor, lse: Tensor | None, max_logits: Tensor | None) -> Any:
    """``out``, or a tuple of it and of the others that are not None."""
    if max_logits is None:
        return out if lse is None else (out, lse)
    return (out, max_logits) if lse is None else (out, lse, max_logits)


def _eight_bit_output(q: Tensor, v: Tensor, out: Tensor | None, options: Any) -> Tensor:
    """``out``, or an array of options["out_dtype"], which is taken out of them; the call looks at out itself."""
    dtype = options.pop("out_dtype", None)
    if out is not None or str(getattr(q, "dtype", "")) not in EIGHT_BIT:
        return out
    if dtype is None:
        raise ValueError(f"q is {dtype_name(q.dtype)}: give out, or out_dtype")
    return framework_of(q).empty(eight_bit_output_shape(q, v), q, dtype_name(dtype, "out_dtype"))

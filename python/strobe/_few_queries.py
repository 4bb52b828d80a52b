# SPDX-License-Identifier: Apache-2.0
"""Few queries and a bool mask of keys on a GPU: a forward that reads the keys that the mask shows, and no others."""

from collections.abc import Mapping
from typing import Any

from strobe._forward import forward
from strobe._frameworks import Framework
from strobe._mask_argument import check_types, checked_mask
from strobe._options import Tensor
from strobe._shapes import dtype_name, shape_of

FEW_QUERIES = 64  # log: keys-by-rows
_OF_SCORES = frozenset({"scale", "softcap", "sink", "engine", "threads"})  # which do not look at where keys lie


def attend(
    framework: Framework,
    mask: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: Mapping[str, Any],
    return_lse: bool,
    return_max_logits: bool,
) -> Any:
    """What ``strobe.attention`` returns, or None for calls that have to be computed in another way."""
    q, k, v = qkv
    if not framework.is_on_gpu(mask) or not options.keys() <= _OF_SCORES:
        return None
    if not isinstance(options.get("scale"), float | int | None):
        return None  # a tensor, which may have a gradient
    check_types(framework, q, {"mask": mask, "k": k, "v": v})
    if dtype_name(mask.dtype) != "bool" or len(q.shape) != 4 or q.shape[1] > FEW_QUERIES:
        return None
    given = checked_mask(mask, shape_of(q), shape_of(k), options)
    if given is None or given.shape[1:3] != (1, 1) or q.shape[0] != k.shape[0] or shape_of(k)[:3] != shape_of(v)[:3]:
        return None
    return by_rows(framework, given, qkv, options, return_lse, return_max_logits)


def by_rows(
    framework: Framework,
    mask: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: Mapping[str, Any],
    return_lse: bool = False,
    return_max_logits: bool = False,
) -> Any:
    """The same for a bool mask [batch or 1, 1, 1, seqlen_k or 1]."""
    q, k, v = qkv
    rows = framework.visible_rows(mask, k, v)
    if rows is None:
        return None
    k, v, of_rows = rows
    try:
        return forward(q, k, v, None, return_lse, return_max_logits, {**options, **of_rows})
    except NotImplementedError:  # not every kernel reads pages of one row
        return None

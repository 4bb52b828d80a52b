# SPDX-License-Identifier: Apache-2.0
"""The append on tensors that no tape sees, which eager calls and compiled graphs end in."""

from collections.abc import Mapping
from typing import Any

from strobe import _core
from strobe._frameworks import mark_written
from strobe._option_list import options_of
from strobe._options import AppendOptions, Tensor

_OPTIONS = options_of(AppendOptions)
TENSOR_NAMES = tuple(name for name, option in _OPTIONS.items() if option.kind == "tensor" and name != "q_out")
WRITTEN_SCALES = ("k_row_descale", "v_row_descale")
"""The tensors among them that an append writes."""
VALUES = {name: _OPTIONS[name].default for name in ("interleaved", "q_in_order", "threads", "engine")}
"""Options that are no tensors, with their defaults; without the stream."""


def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    q_out: Tensor | None,
    options: Mapping[str, Any],
    stream: int | None,
) -> None:
    """Writes what ``strobe.append`` writes; the rotated q goes to ``q_out``."""
    tensors = {name: options.get(name) for name in TENSOR_NAMES}
    _core.append(
        *(k_cache, v_cache, k_new, v_new, cache_seqlens),
        tensors=tensors | {"q_out": q_out},
        stream=stream,
        **values_of(options),
    )
    mark_written(k_cache, v_cache, q_out, *(tensors[name] for name in WRITTEN_SCALES))


def values_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of VALUES, those that are not given by their defaults."""
    return {name: options.get(name, default) for name, default in VALUES.items()}

# SPDX-License-Identifier: Apache-2.0
"""Strobe as attention backend of SGLang, which finds this package by its entry point and calls ``register``.

It is chosen by ``--attention-backend strobe``, or by ``--prefill-attention-backend`` or ``--decode-attention-backend``
for a part of the steps. For some models SGLang takes backends of a list of names alone: where the variable
STROBE_SGLANG_AS names one of SGLang's own backends, Strobe takes its place.
"""

import os
from typing import Any

NAME = "strobe"


def register() -> None:
    """Names the backend to SGLang; SGLang calls it in each of its processes, and may more than once."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    for name in {NAME, os.environ.get("STROBE_SGLANG_AS") or NAME}:
        register_attention_backend(name)(create)
    for names in (
        choices.ATTENTION_BACKEND_CHOICES,
        choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
    ):
        if NAME not in names:
            names.append(NAME)


def create(runner: Any) -> Any:
    """The backend of a model runner."""
    from strobe_sglang.backend import StrobeAttentionBackend

    return StrobeAttentionBackend(runner)

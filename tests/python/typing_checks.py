# SPDX-License-Identifier: Apache-2.0
"""What mypy says of calls: `make lint` checks this file, and nothing runs it."""

from typing import Any, assert_type

import strobe


class Array:
    """A tensor of some framework."""


def result_types(q: Array, k: Array, v: Array, flag: bool) -> None:
    """Results are of q's type, as many as are asked for."""
    assert_type(strobe.attention(q, k, v), Array)
    assert_type(strobe.attention(q, k, v, mask=q, causal=True, return_lse=False), Array)
    assert_type(strobe.attention(q, k, v, return_lse=True), tuple[Array, Array])
    assert_type(strobe.attention(q, k, v, return_max_logits=True), tuple[Array, Array])
    assert_type(strobe.attention(q, k, v, return_lse=True, return_max_logits=True), tuple[Array, Array, Array])
    assert_type(strobe.attention(q, k, v, return_lse=flag), Any)
    assert_type(strobe.attention(q, k, v, score="score + a[head]", mask="k <= q", captures={"a": q}), Array)
    assert_type(strobe.attention(q, k, v, score=strobe.ScoreFunction("score * 2")), Array)
    assert_type(strobe.explain(q, k, v, mask=(1, 8)), str)
    assert_type(strobe.get_threads(), int)


def mistakes(q: Array) -> None:
    """Each is one error, or the comment behind it is."""
    strobe.attention(q, q, q, cuasal=True)  # type: ignore[call-overload]
    strobe.attention(q, q, q, window=5)  # type: ignore[call-overload]
    strobe.attention(q, q, q, causal="left")  # type: ignore[call-overload]
    strobe.set_threads("all")  # type: ignore[arg-type]

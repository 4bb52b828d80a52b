# SPDX-License-Identifier: Apache-2.0
"""Spans of a prompt whose tokens see each other, as those of an image: requests cut where spans begin and end.

A piece has the queries of one span, or queries outside of spans, and all keys up to its last query: a request of its
own, without a causal mask in a span and with one elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

Ranges = Mapping[int, Sequence[tuple[int, int]]]
"""For each request the first and last position of its spans, which do not overlap."""


class Piece(NamedTuple):
    request: int
    queries: int
    keys: int
    is_causal: bool


def pieces_of(starts: Sequence[int], lengths: Sequence[int], ranges: Ranges) -> list[Piece]:
    """The pieces in the order of their rows; request i has queries from starts[i] to starts[i + 1], its last keys'."""
    pieces = []
    for request, length in enumerate(lengths):
        end = length
        at = length - (starts[request + 1] - starts[request])
        for first, last in _within(ranges.get(request, ()), at, end):
            if at < first:
                pieces.append(Piece(request, first - at, first, True))
            pieces.append(Piece(request, last - first, last, False))
            at = last
        if at < end:
            pieces.append(Piece(request, end - at, end, True))
    return pieces


def _within(spans: Sequence[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Spans of more than one token, in order, cut to positions [begin, end), as half-open intervals."""
    for first, last in sorted(spans):
        cut = max(first, begin), min(last + 1, end)
        if first < last and cut[0] < cut[1]:
            yield cut

# SPDX-License-Identifier: Apache-2.0
"""Spans of a prompt whose tokens see each other, as those of an image: the keys of a query end where its span ends."""

from collections.abc import Iterator, Mapping, Sequence

Ranges = Mapping[int, Sequence[tuple[int, int]]]
"""For each request the first and last position of its spans, which do not overlap."""

MASK = "k <= max(q + k_len - q_len, last[start[batch] + q])"
"""The keys of a query in place of a causal mask. start [requests] is each request's first token of the step; last
[tokens] the position of the last token of a token's span, 0 outside of spans, where the query's own position counts."""


def ends_of(starts: Sequence[int], lengths: Sequence[int], ranges: Ranges) -> list[tuple[int, int, int]]:
    """Tokens of the step in spans, as [first, end) of its rows with their span's last position; single tokens left out.

    Request i has the tokens from starts[i] to starts[i + 1], which are the last of its lengths[i].
    """
    ends = []
    for request, spans in ranges.items():
        end = lengths[request]
        first = end - (starts[request + 1] - starts[request])
        row = starts[request] - first
        ends += [(row + begin, row + behind, last) for begin, behind, last in _within(spans, first, end)]
    return ends


def _within(spans: Sequence[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Spans of more than one token, cut to positions [begin, end): first position, that behind, and the span's last."""
    for first, last in spans:
        cut = max(first, begin), min(last + 1, end)
        if first < last and cut[0] < cut[1]:
            yield *cut, last

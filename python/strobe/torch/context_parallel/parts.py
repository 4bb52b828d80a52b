# SPDX-License-Identifier: Apache-2.0
"""What the options of a call on whole sequences are for a part of it: some of its queries and heads, the keys they see.

A causal mask and a window are aligned to the last key. Where the keys of a part end with its last query, that alignment
is the right one as it is; else the part is placed by offset_q and offset_k.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from strobe._option_list import OPTIONS
from strobe.torch.checks import causal_of, window_of
from strobe.torch.context_parallel.keys import KeyCall, Sight, with_all_sequences
from strobe.torch.context_parallel.layout import Layout

_ALIGNED = 4096  # a multiple of every block and segment of keys, so that row-invariant sums have the same order
_BY_CALL = (
    "causal",
    "window",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "max_seqlen_q",
    "max_seqlen_k",
)
BY_HEAD = {"alibi_slopes": -1, "sink": -1, "block_mask": 1, "bias": 1}  # and the axis that its heads are on


class Heads(NamedTuple):
    """Key heads from `first` to `stop`, and the `group` query heads of each."""

    first: int
    stop: int
    group: int

    @property
    def number(self) -> int:
        return self.stop - self.first

    @property
    def of_queries(self) -> slice:
        return slice(self.first * self.group, self.stop * self.group)

    @property
    def of_keys(self) -> slice:
        return slice(self.first, self.stop)

    def within(self, group: "Heads") -> slice:
        """Which key heads of the group they are."""
        return slice(self.first - group.first, self.stop - group.first)


@dataclass(frozen=True)
class CallOptions:
    """The options of a call on whole sequences, as its parts need them."""

    given: dict[str, Any]
    """Those that are not None or a default."""
    sight: Sight
    batched: bool
    lengths: tuple[int, ...]
    positional: bool
    """A query's place among the keys matters."""
    moved: bool
    """Lengths on the device may move that place."""
    has_tensors: bool


def is_given(options: Mapping[str, Any], name: str) -> bool:
    """Whether the option asks for anything."""
    value = options.get(name)
    if value is None or isinstance(value, Tensor):
        return value is not None
    return bool(value != OPTIONS[name].default)


def key_of(options: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Alike for options that say the same; None for those with tensors, whose values nobody looks at."""
    return None if any(isinstance(x, Tensor) for x in options.values()) else tuple(options.items())


def block_size(options: Mapping[str, Any]) -> int:
    """Rows and columns of a block of block_mask."""
    return options.get("block_size") or OPTIONS["block_size"].default


def call_options(options: Mapping[str, Any], layout: Layout, batched: bool) -> CallOptions:
    """What checks.py has let through."""
    given = {name: value for name, value in options.items() if is_given(options, name)}
    causal, (left, right), chunk = causal_of(given), window_of(given), given.get("chunk", 0)
    used = "seqused_q" in given or "seqused_k" in given
    positional = causal != "none" or max(left, right) >= 0 or chunk > 0 or "alibi_slopes" in given
    align = 1
    if "block_mask" in given:
        align = block_size(given)
    if given.get("row_invariant"):
        align = _ALIGNED
    sight = Sight(causal != "none", left, right, chunk, align, whole=used and positional and causal != "top_left")
    if "log_length" in given:  # the parts of one sequence have fewer keys each
        factor = max(1.0, math.log(max(layout.lengths[0], 1)) / math.log(given.pop("log_length")))
        given["log_length_factor"] = factor
    return CallOptions(
        given, sight, batched, layout.lengths, positional, used, any(isinstance(x, Tensor) for x in given.values())
    )


def part_options(options: CallOptions, call: KeyCall, heads: Heads, q: Tensor) -> dict[str, Any]:
    """What _core.forward and _core.backward take for a call of a rank; q has all its rows and heads."""
    given, heads_q = options.given, q.shape[-2]
    if not options.batched and "dropout" in given:  # which counts the sequences of the call
        call = with_all_sequences(call)
    part = {name: value for name, value in given.items() if name not in _BY_CALL and name != "log_length_factor"}
    for name, axis in BY_HEAD.items():
        if name in part and part[name].shape[axis] == heads_q:
            part[name] = part[name].narrow(axis, heads.first * heads.group, heads.number * heads.group)
    if "log_length_factor" in given:
        part["scale"] = part.get("scale", q.shape[-1] ** -0.5) * given["log_length_factor"]
    if options.batched:
        _rows_and_keys(part, call)
    else:
        _of_sequences(part, call, q.device)
    sight = _sight_of(options, call)
    for name, value in (("causal", sight.causal), ("window", (sight.left, sight.right)), ("chunk", sight.chunk)):
        part.pop(name, None)
        if value != OPTIONS[name].default:
            part[name] = value
    return part | _lengths(options, call, q)


def _sight_of(options: CallOptions, call: KeyCall) -> Sight:
    """Without the masks that hide none of a part's keys from its queries."""
    sight = options.sight
    if options.moved or options.given.get("row_invariant"):  # a call without the mask may have other bits
        return sight
    causal, left, right, chunk = False, -1, -1, 0
    for span, (first, stop) in zip(call.spans, call.keys, strict=True):
        if first >= stop:
            continue
        causal |= sight.causal and stop > span.start + 1
        if sight.left >= 0 and first < span.stop - 1 - sight.left:
            left = sight.left
        if sight.right >= 0 and stop > span.start + 1 + sight.right:
            right = sight.right
        if sight.chunk and len({p // sight.chunk for p in (first, stop - 1, span.start, span.stop - 1)}) > 1:
            chunk = sight.chunk
    return sight._replace(causal=causal, left=left, right=right, chunk=chunk)


def _rows_and_keys(part: dict[str, Any], call: KeyCall) -> None:
    """Bias and block mask of the part's rows and keys alone."""
    (span,), ((first, stop),) = call.spans, call.keys
    if "bias" in part:
        part["bias"] = part["bias"][:, :, slice(*call.rows), first:stop]
    if "block_mask" in part:
        size = block_size(part)
        rows, keys = slice(span.start // size, -(-span.stop // size)), slice(first // size, -(-stop // size))
        part["block_mask"] = part["block_mask"][:, :, rows, keys]


def _of_sequences(part: dict[str, Any], call: KeyCall, device: torch.device) -> None:
    """Slopes and block mask of a packed part's sequences, rows and keys alone."""
    if "alibi_slopes" in part and part["alibi_slopes"].dim() == 2:
        part["alibi_slopes"] = part["alibi_slopes"][_numbers(call, device)[0]]
    if "block_mask" not in part:
        return
    size, mask = block_size(part), part["block_mask"]
    rows = max(-(-(span.stop - span.start) // size) for span in call.spans)
    keys = max(-(-(b - a) // size) for a, b in pairwise(call.begins))
    parts = mask.new_zeros((len(call.spans), mask.shape[1], rows, keys))
    for own, span, (first, stop) in zip(parts, call.spans, call.keys, strict=True):
        seen = mask[span.sequence if mask.shape[0] > 1 else 0]
        seen = seen[:, span.start // size : -(-span.stop // size), first // size : -(-stop // size)]
        own[:, : seen.shape[1], : seen.shape[2]] = seen
    part["block_mask"] = parts


def _lengths(options: CallOptions, call: KeyCall, q: Tensor) -> dict[str, Any]:
    """Where each sequence of the part lies, and how much of it there is."""
    given, device = options.given, q.device
    spans = call.spans
    part: dict[str, Any] = {}
    if not options.batched:
        part |= _packed(call, device)
    used: dict[str, Tensor] = {name: given[name] for name in given if name in ("seqused_q", "seqused_k")}
    places = has_offsets(options, call)
    if not places and not used:
        return part
    sequences, starts, rows, firsts, counts = _numbers(call, device)
    batch = q.shape[0] if options.batched else len(spans)
    if used:
        used = {name: x if options.batched else x[sequences] for name, x in used.items()}
        part |= _used(used, starts, rows, firsts, counts)
    if places:
        if options.sight.whole:  # the last query that there is sees the last key
            ends = to_device([options.lengths[span.sequence] for span in spans], device)
            shift = used.get("seqused_k", ends) - used.get("seqused_q", ends)
            starts, firsts = starts + shift.clamp(min=0), firsts + (-shift).clamp(min=0)
        part["offset_q"] = starts.expand(batch).contiguous()
        part["offset_k"] = firsts.expand(batch).contiguous()
    return part


def has_offsets(options: CallOptions, call: KeyCall) -> bool:
    """Whether offsets place a part: its last query is not at its last key, from which a mask or a modifier counts."""
    if "dropout" in options.given or (options.moved and options.positional):
        return True
    sight = _sight_of(options, call)
    keys = [(span, *run) for span, run in zip(call.spans, call.keys, strict=True) if run[0] < run[1]]
    if sight.chunk and any(first % sight.chunk for _, first, _ in keys):
        return True
    positional = sight.causal or max(sight.left, sight.right) >= 0 or sight.chunk or "alibi_slopes" in options.given
    return bool(positional) and any(stop != span.stop for span, _, stop in keys)


def _used(used: dict[str, Tensor], starts: Tensor, rows: Tensor, firsts: Tensor, counts: Tensor) -> dict[str, Tensor]:
    part = {}
    if "seqused_q" in used:
        part["seqused_q"] = torch.minimum((used["seqused_q"] - starts).clamp(min=0), rows)
    if "seqused_k" in used:
        part["seqused_k"] = torch.minimum((used["seqused_k"] - firsts).clamp(min=0), counts)
    return part


@lru_cache(maxsize=256)
def _numbers(call: KeyCall, device: torch.device) -> tuple[Tensor, ...]:
    """Of each span its sequence, first row, number of rows, first key and number of keys, int32."""
    numbers = [
        (span.sequence, span.start, span.stop - span.start, first, stop - first)
        for span, (first, stop) in zip(call.spans, call.keys, strict=True)
    ]
    return to_device(numbers, device).unbind(1)


@lru_cache(maxsize=256)
def _packed(call: KeyCall, device: torch.device) -> dict[str, Any]:
    """Cumulative lengths of the part; used ones where keys of others lie between those of the part."""
    rows = [span.stop - span.start for span in call.spans]
    counts = [stop - first for first, stop in call.keys]
    owned = [b - a for a, b in zip(call.begins, call.begins[1:], strict=False)]
    cu_seqlens_q = [0]
    for n in rows:
        cu_seqlens_q.append(cu_seqlens_q[-1] + n)
    part: dict[str, Any] = {
        "cu_seqlens_q": to_device(cu_seqlens_q, device),
        "cu_seqlens_k": to_device(call.begins, device),
        "max_seqlen_q": max(rows),
        "max_seqlen_k": max(owned),
    }
    if counts != owned:
        part["seqused_k"] = to_device(counts, device)
    return part


def to_device(numbers: Any, device: torch.device) -> Tensor:
    """As int32; on a GPU without waiting for it."""
    tensor = torch.tensor(numbers, dtype=torch.int32)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

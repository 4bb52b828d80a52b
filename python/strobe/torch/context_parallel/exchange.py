# SPDX-License-Identifier: Apache-2.0
"""Rows on their way between the ranks of a process group.

Tensors here have their rows on the first axis and are dense, so that a run of rows is one piece of memory, which a
message can be sent from and received into. Nothing here waits but Transfer.wait(); on a GPU that only orders streams:
the messages travel on a stream of the group's own, under the kernels that are launched behind them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from strobe.torch.context_parallel.layout import Rows
from strobe.torch.context_parallel.views import view_of

Runs = Sequence[Sequence[Rows]]
"""Runs of rows by rank."""

_WORD = torch.complex128
_MESSAGES = 4  # to a rank from one tensor: more runs than that are joined in memory first


@dataclass
class Transfer:
    """Messages that have been started. What they read and write lives as long as this."""

    works: list[Any] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)
    unpacked: list[tuple[list[Tensor], Tensor]] = field(default_factory=list)

    def wait(self) -> None:
        """Work that follows, on a GPU's current stream, sees what was received."""
        for work in self.works:
            work.wait()
        for places, joined in self.unpacked:
            _copy(places, joined.split([len(place) for place in places]))
        self.works, self.kept, self.unpacked = [], [], []


def _copy(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    if places:
        torch._foreach_copy_(list(places), list(values))


def rows_first(x: Tensor, batched: bool) -> Tensor:
    """[batch, seqlen, ..] as dense [seqlen, batch, ..]; packed tensors have their rows there already."""
    return (x.transpose(0, 1) if batched else x).contiguous()


def rows_second(x: Tensor, batched: bool) -> Tensor:
    """The inverse, without a copy."""
    return x.transpose(0, 1) if batched else x


def join(k: Tensor, v: Tensor, batched: bool) -> Tensor:
    """Keys and values as dense rows, [seqlen, .., columns of all heads of both], so that one message has both."""
    return torch.cat(_columns(k, v, batched), dim=-1)


def join_into(buffer: Tensor, k: Tensor, v: Tensor, batched: bool, places: Sequence[tuple[Rows, Rows]]) -> None:
    """The same of some rows, (of k and v, of the buffer)."""
    if len(places) > _MESSAGES:
        joined = join(k, v, batched)
        _copy([buffer[slice(*place)] for _, place in places], [joined[slice(*own)] for own, _ in places])
        return
    keys, values, target = _in_words(*_columns(k, v, batched), buffer)
    for own, place in places:
        torch.cat([keys[slice(*own)], values[slice(*own)]], dim=-1, out=target[slice(*place)])


class Places:
    """Where a rank's keys lie among its own and in a buffer."""

    def __init__(self, runs: Sequence[tuple[Rows, Rows]], device: torch.device) -> None:
        """The rank's own rows of the runs lie one behind another, from the first to the last."""
        self.runs = runs
        self.rows: Tensor | None = None
        """Of the buffer, where there are many runs."""
        if len(runs) > _MESSAGES:
            self.rows = torch.cat([torch.arange(*place) for _, place in runs]).to(device)


class Joining:
    """What join_into() does with some heads of k and v, for tensors of the same shapes and strides again and again."""

    def __init__(self, buffer: Tensor, k: Tensor, v: Tensor, heads: slice, batched: bool, places: Places) -> None:
        self._buffer, self._heads, self._batched, self._places = buffer, heads, batched, places
        self._is_viewed = _has_dense_heads(k) and _has_dense_heads(v)
        if not self._is_viewed:
            return
        k, v, target = _in_words(k, v, buffer)
        self._as_words = k.dtype == _WORD
        keys, values = _columns(k[..., heads, :], v[..., heads, :], batched)
        self._k, self._v = view_of(keys, k), view_of(values, v)
        self._targets = target.split([keys.shape[-1], values.shape[-1]], dim=-1)
        self._runs = [
            (target[slice(*place)], view_of(keys[slice(*own)], k), view_of(values[slice(*own)], v))
            for own, place in places.runs
        ]

    def run(self, k: Tensor, v: Tensor) -> None:
        is_aligned = k.data_ptr() % _WORD.itemsize == 0 and v.data_ptr() % _WORD.itemsize == 0
        if not self._is_viewed or (self._as_words and not is_aligned):
            join_into(self._buffer, k[..., self._heads, :], v[..., self._heads, :], self._batched, self._places.runs)
            return
        if self._as_words:
            k, v = k.view(_WORD), v.view(_WORD)
        if self._places.rows is not None:
            for target, x in zip(self._targets, (self._k.of(k), self._v.of(v)), strict=True):
                target.index_copy_(0, self._places.rows, x)
            return
        for target, of_k, of_v in self._runs:
            torch.cat([of_k.of(k), of_v.of(v)], dim=-1, out=target)


def _has_dense_heads(x: Tensor) -> bool:
    """Whether the columns of all heads of a row lie side by side."""
    return x.stride(-1) == 1 and x.stride(-2) == x.shape[-1]


def _columns(k: Tensor, v: Tensor, batched: bool) -> tuple[Tensor, Tensor]:
    """Views with the rows first and the columns of all heads last."""
    return (k.transpose(0, 1).flatten(-2), v.transpose(0, 1).flatten(-2)) if batched else (k.flatten(-2), v.flatten(-2))


def _in_words(*tensors: Tensor) -> list[Tensor]:
    """The same memory as elements of 16 bytes, where it is such: of a share of the heads, a kernel that copies element
    by element takes 2.5 times as long for those of 2 bytes."""
    size = tensors[0].element_size()
    whole = all(
        x.is_cuda
        and x.data_ptr() % _WORD.itemsize == 0
        and all(n * size % _WORD.itemsize == 0 for n in (x.shape[-1], *x.stride()[:-1]))
        for x in tensors
    )
    return [x.view(_WORD) for x in tensors] if whole else list(tensors)


def part(joined: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Views of what join() joined, or of what has its columns: [.., heads, head_dim] of k and of v."""
    (*rows, columns), (*strides, _), begin = joined.shape, joined.stride(), joined.storage_offset()
    size, size_v = k.shape[-1], v.shape[-1]
    heads = columns // (size + size_v)
    keys = joined.as_strided((*rows, heads, size), (*strides, size, 1), begin)
    return keys, joined.as_strided((*rows, heads, size_v), (*strides, size_v, 1), begin + heads * size)


def start(group: Any, sent: Iterable[tuple[Tensor, Runs]], received: Iterable[tuple[Tensor, Runs]]) -> Transfer:
    """Starts to send runs of rows of tensors, and to receive into runs of rows of others.

    The ranks must agree: what one sends to another, tensor by tensor and run by run, is what the other receives. Runs
    for the rank itself are copied at once. Ranks that have nothing to send or receive start nothing.
    """
    rank = group.rank()
    transfer = Transfer()
    outgoing: list[tuple[int, Tensor]] = []
    incoming: list[tuple[int, Tensor]] = []
    own_sent: list[Tensor] = []
    own_received: list[Tensor] = []
    for tensor, runs in sent:
        for peer, of_peer in enumerate(runs):
            places = _views(tensor, of_peer)
            if peer == rank:
                own_sent += places
                continue
            if len(places) > _MESSAGES:
                places = [torch.cat(places)]
            outgoing += [(peer, x) for x in places]
    for tensor, runs in received:
        for peer, of_peer in enumerate(runs):
            places = _views(tensor, of_peer)
            if peer == rank:
                own_received += places
                continue
            if len(places) > _MESSAGES:
                joined = tensor.new_empty((sum(map(len, places)), *tensor.shape[1:]))
                transfer.unpacked.append((places, joined))
                places = [joined]
            incoming += [(peer, x) for x in places]
    if outgoing or incoming:
        transfer.works = _start(group, outgoing, incoming)
        transfer.kept = [x for _, x in (*outgoing, *incoming)]
    _copy(own_received, own_sent)
    return transfer


def _start(group: Any, outgoing: Sequence[tuple[int, Tensor]], incoming: Sequence[tuple[int, Tensor]]) -> list[Any]:
    """What torch.distributed.batch_isend_irecv does, whose checks take longer than short messages."""
    device = (outgoing or incoming)[0][1].device
    at_once = group._get_backend(device).supports_coalescing
    if at_once:
        group._start_coalescing(device)
    works = [group.send([x], peer, 0) for peer, x in outgoing] + [group.recv([x], peer, 0) for peer, x in incoming]
    return [group._end_coalescing(device)] if at_once else works


def _views(tensor: Tensor, runs: Sequence[Rows]) -> list[Tensor]:
    """What is left out is without elements, for which there is no message."""
    if not runs or tensor.numel() == 0:
        return []
    return [tensor[start:stop] for start, stop in runs if start < stop]

# SPDX-License-Identifier: Apache-2.0
"""The public class: one sequence, or a pack of documents, on the devices of a process group."""

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, distributed

from strobe._documented import with_options
from strobe._forward import results
from strobe._frameworks.torch import draw_random
from strobe._option_list import is_seeded
from strobe._options import ScoreOptions
from strobe.torch.checks import check_types
from strobe.torch.context_parallel import checks, schemes
from strobe.torch.context_parallel.choice import SCHEMES, scheme_of
from strobe.torch.context_parallel.compiled import attend, can_compile, number_of
from strobe.torch.context_parallel.decode import Shard, merged, shard_attention
from strobe.torch.context_parallel.explain import explain
from strobe.torch.context_parallel.layout import KINDS, Kind, layout_of
from strobe.torch.context_parallel.model import CallSize
from strobe.torch.context_parallel.parts import key_of
from strobe.torch.context_parallel.sequences import Sequences
from strobe.torch.context_parallel.shared import SharedCall
from strobe.torch.functional import cast
from strobe.torch.scales import scaled

Scheme = Literal["auto", "gather", "all_to_all", "ring"]

_NARROWED = 8  # runs of rows: more are taken by one index
_REMEMBERED = 16  # lengths of sequences: calls on the same ones again are prepared already


class ContextParallel:
    """Attention whose sequences are shared out among the ranks of a process group, each of which has some rows.

    ``group`` is a group of torch.distributed, by default the one of all processes, with gloo for tensors in host memory
    and NCCL for those of GPUs; every rank makes the object, with the same arguments, and calls its methods in the same
    order. Or it is a pair (outer, inner) of groups, such as those of the two axes of a DeviceMesh: the ranks of the
    inner one share the heads, all-to-all, of the rows that they have together, and ``scheme`` is that of the outer one.
    ``layout`` says which rows a rank has: "zigzag", two runs that have, together, with a causal mask as much work on
    each rank; "contiguous", one run; "documents", each packed sequence in zigzag by itself, short ones whole.
    ``scheme`` says what travels: "gather", the keys and values that a rank's queries see, and the gradients of those;
    "all_to_all", all rows of a share of the heads; "ring", the keys of one rank after the other, in little memory;
    "auto", gather or all_to_all, by the time that their bytes and work take.

        cp = strobe.torch.ContextParallel(group)
        x, labels = cp.shard(x, dim=1), cp.shard(labels, dim=1)      # [batch, seqlen, ..]: this rank's rows
        q, k, v = project(x, cp.positions())                         # for rotary embeddings
        out = cp.attention(q, k, v, causal=True)

    Results are those of one process: with ``row_invariant=True`` to the bit. Gradients of q, k and v are those of this
    rank's rows, of the loss summed over all ranks. Gradients of what all ranks have alike (sink, scale, as of a model's
    weights) are those of this rank's queries or heads: their sum over the group is what one process has.

    ValueError if the ranks' arguments differ, or name no layout or no scheme, or there is no process group.
    """

    def __init__(self, group: Any = None, *, layout: Kind = "zigzag", scheme: Scheme = "auto") -> None:
        checks.check_choice("layout", layout, KINDS)
        checks.check_choice("scheme", scheme, SCHEMES)
        if not distributed.is_initialized():
            raise ValueError("there is no process group: call torch.distributed.init_process_group first")
        outer, inner = group if isinstance(group, tuple) else (group, None)
        self.group = distributed.group.WORLD if outer is None else outer
        self.inner, self.layout, self.scheme = inner, layout, scheme
        self.rank, self.world = 0, 1
        for level in (self.group,) if inner is None else (self.group, inner):
            rank, world = checks.check_group(level, (layout, scheme))
            self.rank, self.world = self.rank * world + rank, self.world * world
        self._sequences: Sequences | None = None
        self._seen: dict[Any, Sequences] = {}
        self._number = number_of(self)
        self._last: tuple[str, CallSize] | None = None

    def set_sequences(self, seqlen: int, *, cu_seqlens: Tensor | Sequence[int] | None = None) -> None:
        """What shard() learns from its tensor: the whole length, or the sum of the packed ones, and where those begin.

        ``cu_seqlens`` [sequences + 1] begins with 0 and ends with ``seqlen``; one on a GPU is waited for.
        """
        lengths = (seqlen,) if cu_seqlens is None else checks.lengths_of(cu_seqlens, seqlen)
        world = distributed.get_world_size(self.group)
        key = (lengths, cu_seqlens is not None)
        if key not in self._seen:
            if len(self._seen) == _REMEMBERED:
                self._seen.pop(next(iter(self._seen)))
            self._seen[key] = Sequences(self.group, self.inner, layout_of(self.layout, world, lengths), key[1])
        self._sequences = self._seen[key]

    def shard(self, x: Tensor, dim: int = 1, *, cu_seqlens: Tensor | Sequence[int] | None = None) -> Tensor:
        """This rank's rows of a tensor that every rank has, along the axis ``dim`` of extent seqlen, with gradients.

        With ``cu_seqlens`` the axis has packed sequences. The calls that follow are on sequences of these lengths.
        """
        self.set_sequences(x.shape[dim], cu_seqlens=cu_seqlens)
        layout, rank = self._known().of_processes()
        runs = layout.places(rank)
        if len(runs) > _NARROWED:
            rows = torch.cat([torch.arange(*run) for run in runs])
            return x.index_select(dim, rows.to(x.device, non_blocking=True))
        if not runs:
            return x.narrow(dim, 0, 0)
        return torch.cat([x.narrow(dim, start, stop - start) for start, stop in runs], dim)

    def positions(self, device: Any = None) -> Tensor:
        """[rows] int64: where each of this rank's rows is in its sequence, from 0."""
        layout, rank = self._known().of_processes()
        places = [torch.arange(span.start, span.stop) for span in layout.spans(rank)]
        return (torch.cat(places) if places else torch.arange(0)).to(device, non_blocking=True)

    @torch.no_grad()
    def unshard(self, y: Tensor, dim: int = 1) -> Tensor:
        """The whole tensor, on every rank, from the rows that each has along ``dim``: the inverse of shard(). Without
        gradients."""
        sequences = self._known()
        checks.check_rows("y", y.shape[dim], *sequences.of_processes())
        return schemes.unshard(sequences, y, dim)

    @with_options(ScoreOptions)
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        return_lse: bool = False,
        return_max_logits: bool = False,
        **options: Unpack[ScoreOptions],
    ) -> Any:
        """strobe.torch.attention of the whole sequences, of which q, k and v have this rank's rows; it returns those.

        q, k and v are [batch, rows, heads, head_dim], or packed [rows, heads, head_dim] where shard() was given
        cu_seqlens. Options are those of the whole call: seqused_q, seqused_k [sequences], and a block mask are the
        same on every rank, and block_size must divide the first position of each run of rows. A bias and a mask have
        this rank's rows and all keys, [.., rows, seqlen]; the mask becomes a bias. The max_logits are those of the
        whole call. Each rank draws dropout's seed where none is given. Raises as strobe.torch.attention does, and
        NotImplementedError for options that the scheme does not have.

        Only what is asked for waits: on a GPU keys and gradients travel under kernels. Under torch.compile a call of
        one group by the scheme "gather" or "ring" is an operator of the graph, which others break.
        """
        given: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
        if (
            torch.compiler.is_compiling()
            and mask is None
            and not return_max_logits
            and self.inner is None
            and can_compile(self.scheme, given)
        ):
            q, k, v = cast(q, k, v)
            o, lse = attend(self._number, q, k, v, given)
            return (o, lse) if return_lse else o
        return self._attention(q, k, v, mask, return_lse, return_max_logits, given)

    @torch.compiler.disable  # compilers do not order messages
    def _attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        return_lse: bool,
        return_max_logits: bool,
        options: dict[str, Any],
    ) -> Any:
        check_types(q=q, k=k, v=v)
        sequences = self._known()
        q, k, v = cast(q, k, v)
        if mask is not None:
            options["bias"] = checks.bias_of(mask, q, options.get("bias"), sequences.packed)
        if options.get("dropout") and not is_seeded(options):
            options["random_state"] = draw_random(q).view(torch.int32)
        scheme = self._scheme_of(sequences, q, k, v, options)
        if isinstance(options.get("scale"), Tensor):
            q, options["scale"] = scaled(q, options["scale"])
        wanted = return_lse, return_max_logits
        return results(*schemes.attend(scheme, sequences, (q, k, v), dict(options), *wanted))

    def prepared(self, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Any, SharedCall]:
        """For compiled.py: what computes the parts of a call."""
        sequences = self._known()
        return schemes.parts_of(self._scheme_of(sequences, q, k, v, options), sequences, options)

    def _scheme_of(self, sequences: Sequences, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> str:
        """Of a call that is right."""

        def checked() -> tuple[str, CallSize]:
            checks.check_tensors(q, k, v, *sequences.of_processes(), sequences.packed)
            checks.check_names(options)
            checks.check_bias(options.get("bias"), q, sequences.layout, sequences.packed)
            return scheme_of(self.scheme, sequences, q, k, v, options)

        key = key_of(options)
        if key is None:
            self._last = checked()
        else:
            signature = (q.shape, k.shape, v.shape, q.dtype, q.device, key)
            self._last = sequences.remembered(signature, checked)
        return self._last[0]

    def decode(
        self, q: Tensor, k: Tensor, v: Tensor, seqused_k: Tensor, *, interleave: int = 1, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """(out, lse) of a few queries, which every rank has, over a cache of which each rank has a shard.

        ``shard_attention`` says what the arguments are; ``strobe.merge``'s sums join the ranks' parts, in their order.
        """
        if self.inner is not None:
            raise ValueError("decode is called on two levels: make a ContextParallel of one group")
        shard = Shard(self.rank, self.world, interleave)
        return merged(self.group, *shard_attention(q, k, v, seqused_k, shard=shard, **options))

    def explain(self) -> str:
        """What the last call moved, in bytes, what of it is hidden, and how evenly the work is shared, as text."""
        return explain(self._known(), self._last)

    def _known(self) -> Sequences:
        if self._sequences is None:
            raise ValueError("no sequences are known: call shard or set_sequences first")
        return self._sequences

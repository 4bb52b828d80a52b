# SPDX-License-Identifier: Apache-2.0
"""flex_attention and create_block_mask, with PyTorch's arguments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NoReturn

import torch
from torch import Tensor

from strobe._shapes import wrong_type
from strobe.torch.checks import check_types
from strobe.torch.flex.blocks import with_blocks
from strobe.torch.flex.tracing import Sizes, trace
from strobe.torch.functional import attention

_ONE_BLOCK = 1 << 30
"""The size of blocks in PyTorch's masks of one block, which are for calls of any size."""


@dataclass(frozen=True)
class BlockMask:
    """What create_block_mask gives: a function of positions, and the sizes of calls that it is for.

    Nothing is computed for it. Which blocks are empty is found out where attention runs.
    """

    mask_mod: Callable[..., Any]
    shape: tuple[int | None, int | None, int, int]
    """Batch, heads, queries and keys; None: of any number."""
    BLOCK_SIZE: tuple[int, int]
    device: Any = None
    """Where ``sparsity`` runs mask_mod; None: where PyTorch would."""

    @property
    def seq_lengths(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.shape[2:]

    def to(self, device: Any) -> "BlockMask":
        """The mask itself, which holds no tensors, for another device."""
        return replace(self, device=device)

    def sparsity(self) -> float:
        """The percentage of blocks of BLOCK_SIZE that are empty, by PyTorch: mask_mod is run on all positions."""
        return _flex().create_block_mask(self.mask_mod, *self.shape, self.device, self.BLOCK_SIZE).sparsity()

    def __getitem__(self, index: Any) -> NoReturn:
        raise NotImplementedError(
            "a mask of strobe.torch.create_block_mask has no blocks to index: make one of a mask_mod that adds the "
            "first batch, head or query to its positions"
        )


def create_block_mask(
    mask_mod: Callable[..., Any],
    B: int | None,  # noqa: N803 (PyTorch's name)
    H: int | None,  # noqa: N803 (PyTorch's name)
    Q_LEN: int,  # noqa: N803 (PyTorch's name)
    KV_LEN: int,  # noqa: N803 (PyTorch's name)
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,  # noqa: N803 (PyTorch's name)
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """``torch.nn.attention.flex_attention.create_block_mask``: a mask for flex_attention, here or in PyTorch's words.

    ``mask_mod(b, h, q_idx, kv_idx)`` says whether a query sees a key. B and H are the batch and query heads of calls,
    None or 1 for any; Q_LEN and KV_LEN the most queries and keys. PyTorch's further arguments change nothing, and no
    block is computed: ``device`` and ``BLOCK_SIZE`` are kept for code that reads them, and for ``sparsity``.

    Raises TraceError, a NotImplementedError, for a function that cannot be written as text.
    """
    if not callable(mask_mod):
        raise wrong_type("mask_mod", mask_mod, "a function of (b, h, q_idx, kv_idx)")
    for name, size in (("B", B or 0), ("H", H or 0), ("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN)):
        if not isinstance(size, (Integral, torch.SymInt)):
            raise wrong_type(name, size, "an integer")
        if size < 0:
            raise ValueError(f"{name} is {size}: it must be 0 or more")
    sizes = Sizes(B or 1, H or 1, Q_LEN, KV_LEN)
    trace(None, mask_mod, sizes, torch.float32, None)
    rows, columns = BLOCK_SIZE if isinstance(BLOCK_SIZE, (tuple, list)) else (BLOCK_SIZE, BLOCK_SIZE)
    return BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN), (rows, columns), device)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
    *,
    return_aux: Any = None,
) -> Any:
    """``torch.nn.attention.flex_attention.flex_attention`` on Strobe, eagerly, and with gradients of captured tensors.

    query [batch, heads_q, seqlen_q, head_dim], key [batch, heads_kv, seqlen_k, head_dim] and value [batch, heads_kv,
    seqlen_k, head_dim_v]. ``score_mod(score, b, h, q_idx, kv_idx)`` gives the new score, and block_mask, of
    create_block_mask here or in PyTorch, has a ``mask_mod(b, h, q_idx, kv_idx)``; positions count from 0. The two are
    run once in each call, on values that write down what is done to them, and become the options ``score``,
    ``mask_text`` and ``captures`` of ``strobe.torch.attention``: tensors that they read by traced indices are captures,
    whatever their strides, and have gradients where they require them. ``torch.compile`` is not needed. The same
    functions on other shapes and other contents compile nothing, as long as Python's numbers in them, which are part of
    the text, stay the same. The length of an axis whose index may be negative, since PyTorch counts that from the end,
    is a capture, too; where there are 8 others it is such a number. An index beyond the end reads 0.

    Returns out [batch, heads_q, seqlen_q, head_dim_v]; with ``return_lse`` (out, lse), lse [batch, heads_q, seqlen_q]
    float32; with ``return_aux`` (out, AuxOutput). ``kernel_options`` are those of Triton's kernels: nothing reads them.

    A BlockMask of PyTorch means what its compiled kernels compute: a pair is visible in a full block, and where
    mask_mod says so in another block that is listed. If it has full blocks, mask_mod is run once on all of its
    positions, as create_block_mask of PyTorch does, to find out whether the lists say anything that mask_mod does not.
    Lists that do become a capture of the mask, and so do lists that cannot be looked at, under torch.compile and while
    a CUDA graph is captured. The mask of strobe.torch.create_block_mask has no lists, and costs none of this.

    Raises TraceError, a NotImplementedError with the function's name, file and line, for what cannot be written as
    text; otherwise what strobe.torch.attention raises.

    Source: Dong et al., "Flex Attention" (2024).
    """
    check_types(query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested or tensor.dim() != 4:
            raise ValueError(f"{name} must be a dense tensor of rank 4, [batch, heads, seqlen, head_dim]")
    if score_mod is not None and not callable(score_mod):
        raise wrong_type("score_mod", score_mod, "a function of (score, b, h, q_idx, kv_idx)")
    heads_q, heads_kv = query.shape[1], key.shape[1]
    if heads_q != heads_kv and not enable_gqa:
        raise ValueError(f"query has {heads_q} heads and key {heads_kv}: set enable_gqa")
    if key.shape[0] == value.shape[0] == 1 < query.shape[0]:
        key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
    sizes = Sizes(query.shape[0], heads_q, query.shape[2], key.shape[2])
    mask_mod, options = _mask_of(block_mask, sizes)
    options |= trace(score_mod, mask_mod, sizes, query.dtype, query.device)._asdict()
    if scale is not None:
        options["scale"] = scale
    wants_lse = _wants_lse(return_lse, return_aux)
    results = attention(*(x.transpose(1, 2) for x in (query, key, value)), return_lse=wants_lse, **options)
    out, lse = results if wants_lse else (results, None)
    out = out.transpose(1, 2)
    if return_aux is not None:
        return out, _flex().AuxOutput(lse=lse, max_scores=None)
    return (out, lse) if return_lse else out


def _flex() -> Any:
    """PyTorch's module, imported where it is needed: it loads the compiler."""
    from torch.nn.attention import flex_attention as module

    return module


def _wants_lse(return_lse: bool, return_aux: Any) -> bool:
    if return_aux is None:
        return return_lse
    if return_lse:
        raise ValueError("return_lse and return_aux are both given: give return_aux alone")
    if return_aux.max_scores:
        raise NotImplementedError(
            "max_scores of each row is not there: strobe.torch.attention has the largest score of each head, by "
            "return_max_logits"
        )
    return bool(return_aux.lse)


def _mask_of(block_mask: Any, sizes: Sizes) -> tuple[Callable[..., Any] | None, dict[str, Any]]:
    """The function of a mask, and options for what it does not say."""
    if block_mask is None:
        return None, {}
    mask_mod = getattr(block_mask, "mask_mod", None)
    if not callable(mask_mod):
        raise wrong_type("block_mask", block_mask, "what create_block_mask gives")
    if tuple(getattr(block_mask, "BLOCK_SIZE", ())) == 2 * (_ONE_BLOCK,):
        return (None if mask_mod is _flex().noop_mask else mask_mod), {}
    _check_sizes(block_mask, sizes)
    if isinstance(block_mask, BlockMask) or not isinstance(block_mask, _flex().BlockMask):
        return mask_mod, {}
    mask_mod = None if mask_mod is _flex().noop_mask else mask_mod
    return with_blocks(block_mask, mask_mod, sizes.seqlen_q, sizes.seqlen_k)


def _check_sizes(block_mask: Any, sizes: Sizes) -> None:
    batch, heads, *_ = block_mask.shape
    queries, keys = block_mask.seq_lengths
    if batch not in (None, 1, sizes.batch) or heads not in (None, 1, sizes.heads):
        raise ValueError(
            f"block_mask is of {batch} sequences and {heads} heads: query has {sizes.batch} and {sizes.heads}"
        )
    if queries < sizes.seqlen_q or keys < sizes.seqlen_k:
        raise ValueError(
            f"block_mask is of {queries} queries and {keys} keys: the call has {sizes.seqlen_q} and {sizes.seqlen_k}"
        )

# SPDX-License-Identifier: Apache-2.0
"""What the layers of a step have in common. Nothing is read back from a GPU: without host lengths tables have the width
of the longest context."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.srt.speculative.spec_info import SpecInputType
from sglang.srt.utils import is_cpu
from torch import Tensor

from strobe_sglang import trees
from strobe_sglang.limits import MOST_DRAFT_TOKENS, check_step

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass
class Step:
    """The calls' options of a step; tensors of a captured step are views of `Held`."""

    cu_seqlens_q: Tensor
    """[requests + 1] int32."""
    max_seqlen_q: int
    """No request has more queries, also in a replay of a captured graph."""
    seqused_k: Tensor
    """[requests] int32: rows of a request in the cache, this step's and an encoder's among them."""
    page_table: Tensor
    """[requests, pages] int32."""
    window_page_table: Tensor | None = None
    """Likewise in the pool of layers with windows, where the model has one."""
    window_slots: Tensor | None = None
    """[tokens]: where this step's keys go in that pool."""
    encoder_lens: Tensor | None = None
    """[requests] int32: the first rows of a request, which are its encoder's."""
    tree_mask: Tensor | None = None
    """[tokens] int64, where the step verifies trees of drafts."""
    image_token_ranges: Tensor | None = None
    """[tokens, 2] int32: first and last position of the image that a token is in, -1 of none. SGLang's Gemma 4 puts it
    here, as tokens of an image see each other."""


@dataclass
class Held:
    """The tensors of captured steps, as long as the longest: a graph finds there what each replay puts there."""

    step: Step

    @staticmethod
    def of(requests: int, tokens: int, pages: int, device: torch.device, *, has_windows: bool) -> "Held":
        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return Held(
            Step(
                cu_seqlens_q=zeros(requests + 1),
                max_seqlen_q=0,
                seqused_k=zeros(requests),
                page_table=zeros(requests, pages),
                window_page_table=zeros(requests, pages) if has_windows else None,
                window_slots=zeros(tokens, dtype=torch.int64) if has_windows else None,
                encoder_lens=zeros(requests),
                tree_mask=zeros(tokens, dtype=torch.int64),
            )
        )

    def hold(self, step: Step) -> Step:
        """The step with the same contents in these tensors."""
        views = {}
        for name, mine in vars(self.step).items():
            given = getattr(step, name)
            if isinstance(given, Tensor):
                views[name] = mine[: given.shape[0]].copy_(given)
        return Step(max_seqlen_q=step.max_seqlen_q, **views)


class StepBuilder:
    """Steps from batches, for a model runner and its pools."""

    def __init__(self, runner: "ModelRunner") -> None:
        self.device = runner.device
        self.page_size = runner.page_size
        self.req_to_token = runner.req_to_token_pool.req_to_token
        pool = runner.token_to_kv_pool
        self.window_pool = pool if isinstance(pool, SWAKVPool) and pool.swa_layer_nums > 0 else None
        self.drafts = get_spec().speculative_num_draft_tokens or 0
        self.verify_mask = self._verify_mask(runner)

    def _verify_mask(self, runner: "ModelRunner") -> VerifyMask | None:
        """Where SGLang writes the masks of draft trees: [requests, drafts, drafts], without the context's columns."""
        if not self.drafts or runner.is_draft_worker:
            return None
        requests = runner.req_to_token_pool.size
        buffer = torch.zeros(requests * self.drafts**2, dtype=torch.bool, device=self.device)
        return VerifyMask(buffer=buffer, mode=TreeMaskMode.QLEN_ONLY, max_bs=requests)

    @property
    def most_pages(self) -> int:
        return -(-self.req_to_token.shape[1] // self.page_size)

    def held(self, requests: int, tokens: int) -> Held:
        """The tensors of steps that are captured."""
        has_windows = self.window_pool is not None
        return Held.of(requests, tokens, self.most_pages, self.req_to_token.device, has_windows=has_windows)

    def build(self, batch: ForwardBatch, *, captured: bool = False) -> Step | None:
        """The batch's step; None of a batch without requests. A captured step serves batches of any lengths."""
        check_step(batch)
        if batch.forward_mode.is_idle() or batch.batch_size == 0:
            return None
        step = self._lengths(batch, captured=captured)
        longest = None if captured else self._longest(batch)
        if batch.encoder_lens is not None:
            step.encoder_lens = batch.encoder_lens.int()
            step.seqused_k = step.seqused_k + step.encoder_lens
            longest = None
        slots = self._first_slots(batch, longest)
        step.page_table = self._pages(slots)
        if self.window_pool is not None:
            step.window_page_table = self._pages(self.window_pool.translate_loc_from_full_to_swa(slots))
            if batch.out_cache_loc is not None:
                step.window_slots = self.window_pool.translate_loc_from_full_to_swa(batch.out_cache_loc)
        return step

    def _lengths(self, batch: ForwardBatch, *, captured: bool) -> Step:
        """Of queries and keys, and the tree of drafts; page_table is still missing."""
        count, device = batch.batch_size, batch.seq_lens.device
        keys = batch.seq_lens.int()
        if batch.forward_mode.is_target_verify():
            drafts = max(batch.spec_info.num_tokens_per_req, 0) or self.drafts
            starts = torch.arange(0, count * drafts + 1, drafts, dtype=torch.int32, device=device)
            return Step(starts, drafts, keys + drafts, keys, tree_mask=self._tree(batch, drafts))
        if batch.forward_mode.is_decode():
            return Step(torch.arange(count + 1, dtype=torch.int32, device=device), 1, keys, keys)
        queries = batch.extend_seq_lens.cumsum(0, dtype=torch.int32)
        host = None if captured else batch.extend_seq_lens_cpu
        longest = max(host) if host else batch.positions.numel()
        return Step(torch.nn.functional.pad(queries, (1, 0)), int(longest), keys, keys)

    def _tree(self, batch: ForwardBatch, drafts: int) -> Tensor | None:
        """None of a chain: causal masks are enough."""
        spec = batch.spec_info
        mask = spec.custom_mask
        if getattr(spec, "tree_topk", 1) == 1 or mask is None:
            return None
        if drafts > MOST_DRAFT_TOKENS:
            raise NotImplementedError(f"{drafts} draft tokens in a tree: there must be at most {MOST_DRAFT_TOKENS}")
        if self._is_full(spec):
            return trees.words_of(trees.drafts_of_full(mask, batch.seq_lens, drafts))
        return trees.words_of(trees.drafts_only(mask, batch.batch_size, drafts))

    def _is_full(self, spec: object) -> bool:
        """Whether a mask has the context's columns. EAGLE's workers follow `verify_mask`."""
        kind = getattr(spec, "spec_input_type", None)
        if kind == SpecInputType.EAGLE_VERIFY:
            return False
        if kind != SpecInputType.NGRAM_VERIFY:
            raise NotImplementedError(f"a tree of drafts by {type(spec).__name__}: Strobe verifies EAGLE's and NGRAM's")
        from sglang.srt.speculative.ngram_worker import USE_FULL_MASK

        return USE_FULL_MASK and not is_cpu()

    def _longest(self, batch: ForwardBatch) -> int | None:
        """Keys of the longest request, where the host knows."""
        lengths = batch.seq_lens_cpu
        if lengths is None or lengths.numel() == 0:
            return None
        return int(lengths.max()) + (self.drafts if batch.forward_mode.is_target_verify() else 0)

    def _first_slots(self, batch: ForwardBatch, longest: int | None) -> Tensor:
        """[requests, pages]: the slot of each page's first row, in the pool of layers without windows."""
        rows = self.req_to_token[:, : longest : self.page_size]
        return rows.index_select(0, batch.req_pool_indices)

    def _pages(self, slots: Tensor) -> Tensor:
        pages = slots if self.page_size == 1 else slots // self.page_size
        return pages.int()

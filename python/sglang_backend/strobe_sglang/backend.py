# SPDX-License-Identifier: Apache-2.0
"""The attention of SGLang's layers: new keys and values into the pool, and the queries' attention over it."""

from typing import TYPE_CHECKING, Any

import strobe
import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.layout.paged_view import paged_kv_view
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_exec
from strobe.torch.ops import rows
from torch import Tensor

from strobe_sglang.latent import Latents, joined, own_keys
from strobe_sglang.limits import check_arguments, check_latent_scale, check_layer, check_own_layer, check_runner
from strobe_sglang.metadata import Held, Step, StepBuilder

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

_WITHOUT_CAUSAL_MASK = (AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL)
_SEES_ITS_IMAGE = "k <= max(q + k_len - q_len, image[start[batch] + q][1])"
"""In place of a causal mask: keys up to the query, or to the last token of its image."""


class StrobeAttentionBackend(AttentionBackend):
    """Exact attention on CPUs and, from compute capability 8.0 on, on GPUs.

    NotImplementedError for what limits.py refuses.
    """

    needs_cpu_seq_lens: bool = False
    fa_impl_ver = 4
    """By this number SGLang's Gemma 4 knows backends that take `image_token_ranges`, and SGLang keeps prompts with
    images out of graphs."""

    def __init__(self, runner: "ModelRunner") -> None:
        super().__init__()
        check_runner(runner)
        self.device = runner.device
        self.token_to_kv_pool = runner.token_to_kv_pool
        self.req_to_token_pool = runner.req_to_token_pool
        self.max_context_len = runner.model_config.context_len
        self.page_size = runner.page_size
        self.kv_cache_dtype = runner.kv_cache_dtype
        self._latents = Latents.of(runner.token_to_kv_pool) if runner.use_mla_backend else None
        self._builder = StepBuilder(runner)
        self._held: Held | None = None
        self._held_prompts: Held | None = None
        self._chunk = runner.attention_chunk_size if runner.model_config.is_local_attention_model else 0
        self._row_invariant = bool(get_exec().deterministic.enable_deterministic_inference)
        self._one = torch.ones(1, 1, 1, dtype=torch.float32, device=runner.device)
        self.forward_metadata: Step | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self.forward_metadata = self._builder.build(forward_batch)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        self._held = self._builder.held(max_bs, max_num_tokens)

    def init_forward_metadata_out_graph(self, forward_batch: ForwardBatch, in_capture: bool = False) -> None:
        """Puts the batch where captured graphs read. Graphs of prompts have a fixed number of requests, that of their
        first capture, and as many tokens as its batch."""
        step = self._builder.build(forward_batch, captured=True)
        if step is None:
            self.forward_metadata = None
            return
        mode = forward_batch.forward_mode
        if mode.is_extend() and not mode.is_target_verify():
            if self._held_prompts is None:
                self._held_prompts = self._builder.held(forward_batch.batch_size, forward_batch.positions.numel())
            self.forward_metadata = self._held_prompts.hold(step)
        else:
            assert self._held is not None, "init_cuda_graph_state comes first"
            self.forward_metadata = self._held.hold(step)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    @property
    def verify_mask(self) -> VerifyMask | None:
        return self._builder.verify_mask

    def support_triton(self) -> bool:
        return self.device != "cpu"

    def forward_decode(self, *arguments: Any, **named: Any) -> Any:
        """forward_extend: a decode is a step with one query of a request."""
        return self.forward_extend(*arguments, **named)

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        sinks: Tensor | None = None,
        return_lse: bool = False,
        q_rope: Tensor | None = None,
        k_rope: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """out [tokens, heads * v_head_dim], with return_lse also lse [tokens, heads] float32, natural logarithms.

        q [tokens, heads * head_dim] or with an axis of heads; k and v are None where another layer, or an earlier step,
        wrote them. q_rope and k_rope are the last columns of an absorbed layer's q and k where those are given apart.
        Rows behind the last request are zeros.
        """
        has_latents = self._latents is not None
        check_arguments(others if has_latents else others | {"q_rope": q_rope, "k_rope": k_rope})
        check_layer(layer)
        if has_latents and self._is_float8:
            check_latent_scale(layer)
        step = self.forward_metadata
        assert step is not None, "init_forward_metadata comes first"
        if self._latents is not None and not self._latents.has(layer):
            check_own_layer(layer, sinks)
            return self._attend_own(q, k, v, layer, forward_batch, step, return_lse)
        if k is not None and v is not None and save_kv_cache:
            self._write(layer, forward_batch, step, joined(k, k_rope), v)
        sink = None if sinks is None else sinks.detach().float()
        options = self._scales(layer) | self._keys(layer, step) | {"sink": sink, "return_lse": return_lse}
        return self._attend(q, q_rope, *self._cache(layer), layer, forward_batch, options)

    def _attend(
        self,
        q: Tensor,
        q_rope: Tensor | None,
        k: Tensor,
        v: Tensor,
        layer: RadixAttention,
        batch: ForwardBatch,
        options: dict[str, Any],
    ) -> Any:
        """What forward_extend returns, of these keys and values."""
        width = layer.qk_head_dim if q_rope is None else layer.v_head_dim
        q = rows(q.reshape(-1, layer.tp_q_head_num, width))
        out = batch._attn_output
        if out is None:
            out = q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        options = options | {
            "out": out.view(-1, layer.tp_q_head_num, layer.v_head_dim),
            "scale": layer.scaling,
            "softcap": float(layer.logit_cap or 0.0),
            "row_invariant": self._row_invariant,
        }
        if q_rope is None or width == layer.qk_head_dim:  # models without rotated columns give q_rope with none
            result = strobe.attention(q, k, v, **options)
        else:
            q_rope = rows(q_rope.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim - width))
            result = strobe.mla(q, q_rope, k, **options)
        return (out, result[1].transpose(0, 1).contiguous()) if options["return_lse"] else out

    def _attend_own(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: RadixAttention,
        batch: ForwardBatch,
        step: Step,
        return_lse: bool,
    ) -> Any:
        """A layer that is not absorbed, of a model with latent rows, over the keys and values that it is given.

        Where the model asks for the LSE by its batch, to merge parts, out has an axis of heads.
        """
        assert k is not None and v is not None, "the model makes this layer's keys and values of latent rows"
        k = rows(k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim))
        v = rows(v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim))
        is_part = bool(batch.mha_return_lse)
        options = own_keys(batch, step) | {"return_lse": return_lse or is_part}
        result = self._attend(q, None, k, v, layer, batch, options)
        return (result[0].view(-1, layer.tp_q_head_num, layer.v_head_dim), result[1]) if is_part else result

    def _write(self, layer: RadixAttention, batch: ForwardBatch, step: Step, k: Tensor, v: Tensor) -> None:
        """By SGLang's pool, which converts to the cache's dtype; an fp8 cache holds values over the layer's scale, but
        latent rows as they are."""
        slots = KVWriteLoc.for_layer(batch, layer, swa_loc=step.window_slots)
        scales = (layer.k_scale, layer.v_scale) if self._is_float8 and self._latents is None else ()
        self.token_to_kv_pool.set_kv_buffer(layer, slots, k, v, *scales)

    @property
    def _is_float8(self) -> bool:
        return self.kv_cache_dtype == torch.float8_e4m3fn

    def _cache(self, layer: RadixAttention) -> tuple[Tensor, Tensor]:
        """Views [pages, page_size, heads_kv, head_dim] of the layer's part of the pool."""
        if self._latents is not None:
            return self._latents.cache(self.token_to_kv_pool.get_key_buffer(layer.layer_id), self.page_size)
        k, v = self.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        return (
            paged_kv_view(k, self.page_size, layer.tp_k_head_num, layer.qk_head_dim),
            paged_kv_view(v, self.page_size, layer.tp_v_head_num, layer.v_head_dim),
        )

    def _scales(self, layer: RadixAttention) -> dict[str, Any]:
        """Of an fp8 cache; queries stay as they are."""
        if not self._is_float8:
            return {}
        scales = {"k_descale": layer.k_scale, "v_descale": layer.v_scale}
        return {name: self._one if x is None else x.view(1, -1, 1) for name, x in scales.items()}

    def _keys(self, layer: RadixAttention, step: Step) -> dict[str, Any]:
        """Which keys the layer's queries see."""
        queries = {"cu_seqlens_q": step.cu_seqlens_q, "max_seqlen_q": step.max_seqlen_q}
        if layer.is_cross_attention:
            return queries | {"page_table": step.page_table, "seqused_k": step.encoder_lens}
        causal = layer.attn_type not in _WITHOUT_CAUSAL_MASK
        window = layer.sliding_window_size  # without the query's own key
        keys = {
            "page_table": step.window_page_table if self._has_window_pool(layer) else step.page_table,
            "seqused_k": step.seqused_k,
            "leftpad_k": step.encoder_lens,
            "causal": causal,
            "window": (-1, -1) if window < 0 else (window, 0 if causal else window),
            "chunk": self._chunk if layer.use_irope else 0,
            "tree_mask": step.tree_mask,
        }
        if causal and step.image_token_ranges is not None:
            captures = {"image": step.image_token_ranges, "start": step.cu_seqlens_q}
            keys |= {"causal": False, "window": (window, -1), "mask": _SEES_ITS_IMAGE, "captures": captures}
        return queries | keys

    def _has_window_pool(self, layer: RadixAttention) -> bool:
        pool = self._builder.window_pool
        return pool is not None and pool.layers_mapping[layer.layer_id][1]

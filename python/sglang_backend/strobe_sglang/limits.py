# SPDX-License-Identifier: Apache-2.0
"""What Strobe does not serve of SGLang's configurations, layers, steps and calls is NotImplementedError."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.kv_shard_hooks import get_kv_shard_pool
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.runtime_context import get_exec, get_parallel
from strobe.integrations.limits import combination_reason, head_size_reason

from strobe_sglang.latent import Latents

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.model_runner import ModelRunner

_CACHE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
_MOST_LATENT_COLUMNS = 576
MOST_DRAFT_TOKENS = 64
"""Of a tree: a query's number in tree_mask has 64 bits."""


def _refuse(reason: str | None) -> None:
    if reason:
        raise NotImplementedError(reason)


def check_runner(runner: "ModelRunner") -> None:
    """Refuses what a model runner is configured for and no layer could be served with."""
    parallel = get_parallel()
    pool = runner.token_to_kv_pool
    refused = {
        f"latent rows are in a {type(pool).__name__}": runner.use_mla_backend and Latents.of(pool) is None,
        "decode context parallelism is on": parallel.attn_dcp_size > 1,
        "prefill context parallelism is on": parallel.attn_cp_size > 1,
        "the KV cache is sharded by page": get_kv_shard_pool(pool) is not None,
        "--enable-unified-memory is given": runner.kv_index_translator.is_translating,
        f"windows are in a {type(pool).__name__}": isinstance(pool, BaseSWAKVPool) and not isinstance(pool, SWAKVPool),
        "the model's windows depend on the prompt's length": getattr(runner, "prefill_aware_swa", False),
    }
    _refuse(next((f"{what}: Strobe does not support it" for what, is_so in refused.items() if is_so), None))
    if runner.kv_cache_dtype not in _CACHE_DTYPES or runner.kv_cache_dtype_str == "mxfp8":
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _CACHE_DTYPES)
        _refuse(f"the KV cache's dtype is {runner.kv_cache_dtype_str}: it must be one of {names}")
    if runner.kv_cache_dtype not in (runner.dtype, torch.float8_e4m3fn):
        _refuse(f"the KV cache is {runner.kv_cache_dtype} and the model {runner.dtype}: they must be the same, or fp8")
    latents = Latents.of(pool) if runner.use_mla_backend else None
    if latents is None:
        _check_heads(runner, {runner.model_config.head_dim, runner.model_config.v_head_dim})
    else:
        _check_latents(runner, latents)


def _check_heads(runner: "ModelRunner", sizes: set[int]) -> None:
    for size in sizes:
        _refuse(head_size_reason(size, on_gpu=runner.device != "cpu") or _combination_reason(runner, size))


def _check_latents(runner: "ModelRunner", latents: Latents) -> None:
    """Absorbed heads may be wider than others: their values are columns of their keys."""
    columns = latents.latent + latents.rope
    if columns > _MOST_LATENT_COLUMNS:
        _refuse(f"latent rows have {columns} columns: they may have at most {_MOST_LATENT_COLUMNS}")
    _check_heads(runner, {latents.latent, latents.rope} - {0})
    _refuse(_combination_reason(runner, columns))


def _combination_reason(runner: "ModelRunner", size: int) -> str | None:
    return combination_reason(
        size,
        runner.dtype,
        is_float8=runner.kv_cache_dtype == torch.float8_e4m3fn,
        on_gpu=runner.device != "cpu",
        row_invariant=get_exec().deterministic.enable_deterministic_inference,
        capability=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
    )


def check_step(batch: ForwardBatch) -> None:
    """Refuses steps that are neither prompts nor decodes nor verified drafts."""
    mode, spec = batch.forward_mode, batch.spec_info
    if mode.is_dllm_extend() or mode.is_draft_extend_v2() or mode.is_prebuilt():
        _refuse(f"forward_mode is {mode.name}: Strobe computes EXTEND, MIXED, SPLIT_PREFILL, DECODE and TARGET_VERIFY")
    if mode.is_decode() and spec is not None:
        _refuse("a decode of a draft model: --speculative-draft-attention-backend must be another backend")
    if mode.is_target_verify() and getattr(spec, "ragged_verify_layout", None) is not None:
        _refuse("drafts of different lengths in a step: Strobe verifies as many tokens of each request")


def check_layer(layer: "RadixAttention") -> None:
    """Refuses what changes a layer's scores and no option of Strobe has."""
    if layer.logit_cap and layer.logit_capping_method != "tanh":
        _refuse(f"logit_capping_method is {layer.logit_capping_method}: it must be tanh")
    if layer.xai_temperature_len > 0:
        _refuse(f"xai_temperature_len is {layer.xai_temperature_len}: it must be -1")
    if layer.pos_encoding_mode != "NONE":
        _refuse(f"pos_encoding_mode is {layer.pos_encoding_mode}: it must be NONE")


def check_latent_scale(layer: "RadixAttention") -> None:
    """Refuses a scale of an fp8 pool of latent rows: SGLang's model writes the rows of prompts without one."""
    if layer.k_scale is not None and layer.k_scale_float != 1.0:
        _refuse(f"k_scale of latent rows is {layer.k_scale_float}: it must be 1, as SGLang writes prompts without it")


def check_own_layer(layer: "RadixAttention", sinks: torch.Tensor | None) -> None:
    """Refuses what a layer over keys of its own cannot have, as the model may attend to them in parts."""
    has = {
        "sinks": sinks is not None,
        "a sliding window": layer.sliding_window_size >= 0,
        "chunked attention": layer.use_irope,
        "no causal mask": layer.is_cross_attention or layer.attn_type != AttentionType.DECODER,
    }
    what = next((name for name, is_so in has.items() if is_so), None)
    if what:
        _refuse(f"a layer that is not absorbed, of a model with latent rows, has {what}: Strobe does not support it")


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuses arguments of other backends' calls, unless they are None or False."""
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        _refuse(f"{', '.join(given)} given to an attention layer: Strobe takes sinks and return_lse")

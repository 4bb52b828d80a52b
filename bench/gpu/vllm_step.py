# SPDX-License-Identifier: Apache-2.0
"""A layer's part of a vLLM step on a GPU: vllm_step.py [OUT.json]

The backend of strobe-vllm writes new keys and values to slots of a cache and computes attention over it, as vLLM calls
it, in the CUDA graph that vLLM captures for any batch of as many tokens, in one for this shape, and without vLLM's
graphs, as steps of many tokens run. With FA3_SITE, the folder of FlashAttention-3's flash_attn_interface, beside its
flash_attn_with_kvcache, which writes and attends in one call. Steps of prompts alone and layers of encoders are also
beside its flash_attn_varlen_func over the packed new keys, which writes nothing, as encoders do; steps also with the
backend's own write before it. Times are medians between CUDA events, in turns. Where vLLM is missing,
tests/vllm/contract.py stands for it.
"""

import importlib
import json
import os
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
import conftest  # noqa: F401 - puts the contract where imports find it
from steps import Server
from timing import captured, median_milliseconds
from vllm.config import CUDAGraphMode

DEVICE = "cuda"
HEADS, HEADS_KV, HEAD_DIM, BLOCK = 32, 8, 128, 16
COUNTS = (1, 8, 16, 32, 64, 128, 256)
DECODES = [*((count, 4096) for count in COUNTS), (2, 16384), (4, 8192), (16, 32768)]
MIXED = [((2, 512, 2048), (64, 4096)), ((1, 2048, 0), (32, 8192)), ((1, 512, 0), (256, 1024))]  # chunks, then decodes
PROMPTS = [[2048] * 4, [8192], [3000, 1700, 900, 500, 250, 120, 60, 30]]
ENCODERS = [[512] * 16, [2048] * 4, [900, 700, 512, 300, 200, 128, 90, 60, 33, 17]]
SEEDS = (1, 2)


def random_batch(seed):
    """(context, queries) of prompts, of chunks of prompts and of decodes."""
    draw = random.Random(seed)
    prompts = [(0, draw.randrange(16, 1024)) for _ in range(draw.randrange(2, 5))]
    chunks = [(draw.randrange(1, 512) * 16, draw.randrange(16, 1024)) for _ in range(draw.randrange(2, 5))]
    decodes = [(int(2 ** draw.uniform(5, 14)), 1) for _ in range(draw.randrange(48, 128))]
    return prompts + chunks + decodes


def batches():
    """(context, queries) of each request, by name."""
    named = {f"{count} decodes of {keys} keys": [(keys - 1, 1)] * count for count, keys in DECODES}
    for (chunks, chunk, before), (count, keys) in MIXED:
        name = f"{chunks} chunks of {chunk} behind {before}, {count} decodes of {keys} keys"
        named[name] = [(before, chunk)] * chunks + [(keys - 1, 1)] * count
    for seed in SEEDS:
        lengths = random_batch(seed)
        decodes = sum(new == 1 for _, new in lengths)
        named[f"random {seed}: {len(lengths) - decodes} prompts and chunks, {decodes} decodes"] = lengths
    return named | {f"prompts of {told(lengths)}": [(0, new) for new in lengths] for lengths in PROMPTS}


def told(lengths):
    return f"{len(lengths)} x {lengths[0]}" if len(set(lengths)) < len(lengths) else ", ".join(map(str, lengths))


def flash_attention():
    """FlashAttention-3's module, or None."""
    site = os.environ.get("FA3_SITE")
    if not site:
        return None
    sys.path.insert(0, site)
    return importlib.import_module("flash_attn_interface")


def step_of(lengths, mode, *, is_encoder):
    longest = max(sum(pair) for pair in lengths)
    server = Server(
        device=DEVICE,
        dtype=torch.bfloat16,
        heads=HEADS,
        heads_kv=HEADS_KV,
        head_size=HEAD_DIM,
        block_size=BLOCK,
        mode=mode,
        max_tokens=sum(new for _, new in lengths),
        max_requests=len(lengths),
        max_blocks=-(-longest // BLOCK),
        options={"attn_type": "encoder_only"} if is_encoder else {},
        is_checked=False,
    )
    return server, server.step(lengths, causal=not is_encoder)


def runs_of(lengths, rival, *, is_encoder=False):
    """Captured steps by name."""
    runs = {}
    for name, mode in (("any batch", CUDAGraphMode.FULL), ("this shape", CUDAGraphMode.FULL_AND_PIECEWISE)):
        server, step = step_of(lengths, mode, is_encoder=is_encoder)
        runs[name] = run_of(step, server.builder.build_for_cudagraph_capture(step.common()))
    runs["no graph"] = run_of(step, server.builder.build(0, step.common()))
    if rival is None:
        return runs
    if not is_encoder:
        before = server.seq_lens - server.query_start_loc.diff()  # once a step, not in each layer
        runs["FlashAttention-3"] = captured(lambda: over_cache(rival, server, step, before))
    if all(context == 0 for context, _ in lengths):
        runs["FlashAttention-3, packed"] = captured(lambda: over_packed_keys(rival, server, step))
        if not is_encoder:
            slots = step.common().slot_mapping
            runs["FlashAttention-3, written and packed"] = captured(
                lambda: over_packed_keys(rival, server, step, slots)
            )
    return runs


def run_of(step, metadata):
    out = torch.empty_like(step.q)
    return captured(lambda: step.forward(metadata, out))


def over_cache(rival, server, step, before):
    k, v = server.cache.transpose(1, 2).split(HEAD_DIM, dim=-1)
    with torch.no_grad():
        return rival.flash_attn_with_kvcache(
            step.q,
            k,
            v,
            step.k,
            step.v,
            cache_seqlens=before,
            page_table=server.block_table,
            cu_seqlens_q=server.query_start_loc,
            cu_seqlens_k_new=server.query_start_loc,
            max_seqlen_q=max(new for _, new in step.lengths),
            causal=True,
        )


def over_packed_keys(rival, server, step, slots=None):
    """With `slots` the new keys are written there first."""
    longest = max(new for _, new in step.lengths)
    with torch.no_grad():
        if slots is not None:
            server.impl.do_kv_cache_update(server.layer, step.k, step.v, server.cache, slots)
        return rival.flash_attn_varlen_func(
            step.q,
            step.k,
            step.v,
            cu_seqlens_q=server.query_start_loc,
            cu_seqlens_k=server.query_start_loc,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            causal=step.causal,
        )


def main(path=None):
    rival = flash_attention()
    steps = [(name, lengths, False) for name, lengths in batches().items()]
    steps += [(f"encoder, {told(lengths)} tokens", [(0, new) for new in lengths], True) for lengths in ENCODERS]
    results = {}
    for name, lengths, is_encoder in steps:
        runs = runs_of(lengths, rival, is_encoder=is_encoder)
        results[name] = {run: 1e3 * time for run, time in median_milliseconds(runs, rounds=15, launches=5).items()}
        times = ", ".join(f"{run} {time:.1f} us" for run, time in results[name].items())
        print(f"{name}: {times}", flush=True)
        del runs
        torch.cuda.empty_cache()
    if path:
        text = json.dumps({"device": torch.cuda.get_device_name(), "microseconds": results}, indent=2)
        Path(path).write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

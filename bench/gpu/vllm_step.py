# SPDX-License-Identifier: Apache-2.0
"""A layer's part of a vLLM step on a GPU: vllm_step.py [OUT.json]

The backend of strobe-vllm writes new keys and values to slots of a cache and computes attention over it, as vLLM calls
it, in the CUDA graph that vLLM captures for any batch of as many tokens, and in one for this shape. With FA3_SITE, the
folder of FlashAttention-3's flash_attn_interface, beside its flash_attn_with_kvcache, which writes and attends in one
call. Times are medians between CUDA events, in turns. Where vLLM is missing, tests/vllm/contract.py stands for it.
"""

import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "gpu"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
import conftest  # noqa: F401 - puts the contract where imports find it
from steps import Server
from timing import captured, median_milliseconds
from vllm.config import CUDAGraphMode

HEADS, HEADS_KV, HEAD_DIM, BLOCK = 32, 8, 128, 16
DECODES = [(1, 4096), (2, 16384), (4, 8192), (8, 4096), (16, 4096), (32, 4096), (64, 4096), (256, 4096), (16, 32768)]
MIXED = [((2, 512, 2048), (64, 4096)), ((1, 2048, 0), (32, 8192)), ((1, 512, 0), (256, 1024))]  # chunks, then decodes


def flash_attention():
    """FlashAttention-3's call, or None."""
    site = os.environ.get("FA3_SITE")
    if not site:
        return None
    sys.path.insert(0, site)
    from flash_attn_interface import flash_attn_with_kvcache

    return flash_attn_with_kvcache


def step_of(lengths, mode):
    longest = max(sum(pair) for pair in lengths)
    server = Server(
        device="cuda",
        dtype=torch.bfloat16,
        heads=HEADS,
        heads_kv=HEADS_KV,
        head_size=HEAD_DIM,
        block_size=BLOCK,
        mode=mode,
        max_tokens=sum(new for _, new in lengths),
        max_requests=len(lengths),
        max_blocks=-(-longest // BLOCK),
        is_checked=False,
    )
    return server, server.step(lengths)


def runs_of(lengths):
    """Captured steps by name."""
    runs = {}
    for name, mode in (("any batch", CUDAGraphMode.FULL), ("this shape", CUDAGraphMode.FULL_AND_PIECEWISE)):
        server, step = step_of(lengths, mode)
        metadata = server.builder.build_for_cudagraph_capture(step.common())
        out = torch.empty_like(step.q)
        runs[name] = captured(lambda step=step, metadata=metadata, out=out: step.forward(metadata, out))
    call = flash_attention()
    if call is not None:
        before = server.seq_lens - server.query_start_loc.diff()  # once a step, not in each layer
        runs["FlashAttention-3"] = captured(lambda: rival(call, server, step, before))
    return runs


def rival(call, server, step, before):
    k, v = server.cache.transpose(1, 2).split(HEAD_DIM, dim=-1)
    with torch.no_grad():
        return call(
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


def main(path=None):
    results = {}
    batches = {f"{count} decodes of {keys} keys": [(keys - 1, 1)] * count for count, keys in DECODES}
    for (chunks, chunk, before), (count, keys) in MIXED:
        name = f"{chunks} chunks of {chunk} behind {before}, {count} decodes of {keys} keys"
        batches[name] = [(before, chunk)] * chunks + [(keys - 1, 1)] * count
    for name, lengths in batches.items():
        milliseconds = median_milliseconds(runs_of(lengths), rounds=15, launches=5)
        results[name] = {run: 1e3 * time for run, time in milliseconds.items()}
        times = ", ".join(f"{run} {time:.1f} us" for run, time in results[name].items())
        print(f"{name}: {times}", flush=True)
        torch.cuda.empty_cache()
    if path:
        Path(path).write_text(json.dumps({"device": torch.cuda.get_device_name(), "microseconds": results}, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])

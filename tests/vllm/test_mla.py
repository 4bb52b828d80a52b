# SPDX-License-Identifier: Apache-2.0
"""MLA's builder, implementation and prefill backend, driven as vLLM drives them, against float64; on a GPU also in CUDA
graphs. Without vLLM steps have no prompts, whose metadata and chunks of context are vLLM's."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import strobe
import strobe_vllm.mla.implementation
import torch
from buffers import check_nothing_waits
from mla_steps import LATENT, ROPE, SCALE, Server, implementation
from steps import captured
from strobe.torch import Shard
from strobe_vllm import limits
from strobe_vllm.mla.metadata import StrobeMLADecodeMetadata
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

CUDA = torch.cuda.is_available()
DEVICES = [("cpu", torch.float32), ("cpu", torch.bfloat16), ("cpu", torch.float16)]
if CUDA:
    DEVICES = [("cuda", torch.bfloat16), ("cuda", torch.float16)]
HAS_PROMPTS = hasattr(MLAPrefillBackend, "validate_configuration")  # of vLLM itself
needs_prompts = pytest.mark.skipif(not HAS_PROMPTS, reason="needs vLLM")
DECODES = [(120, 1), (0, 1), (200, 1), (15, 1), (16, 1)]
IN_8_BITS = {"scale": 0.02}
PROMPTS = [(0, 37), (64, 20), (0, 2), (16, 16), (300, 5), (150, 40)]


def run(server, step):
    metadata = server.builder.build(0, step.common())
    results = step.forward(metadata)
    step.check(results)
    return metadata


@pytest.fixture(params=DEVICES, ids=lambda pair: f"{pair[0]}-{str(pair[1])[6:]}")
def place(request):
    return {"device": request.param[0], "dtype": request.param[1]}


@pytest.mark.parametrize("heads", [1, 3, 16])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_decodes(place, block_size, heads):
    server = Server(**place, heads=heads, block_size=block_size)
    metadata = run(server, server.step(DECODES))
    assert (metadata.num_decodes, metadata.num_prefills) == (len(DECODES), 0)


def test_blocks_of_all_layers(place):
    """Blocks follow one another with gaps."""
    server = Server(**place, layers=3)
    run(server, server.step(DECODES))


def test_drafts_are_decodes_with_several_queries(place):
    server = Server(**place, drafts=3)
    metadata = run(server, server.step([(120, 4), (0, 1), (200, 2), (15, 3), (33, 4)]))
    assert (metadata.num_decodes, metadata.num_prefills) == (5, 0)
    assert metadata.decode.max_query_len == 4


def test_drafts_that_see_each_other(place):
    server = Server(**place, drafts=3)
    server.builder.non_causal_multi_token_decode = True
    run(server, server.step([(120, 4), (7, 4), (200, 4)], causal=False))


@needs_prompts
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_mixed_batches(place, block_size):
    server = Server(**place, block_size=block_size)
    metadata = run(server, server.step(DECODES + PROMPTS))
    assert (metadata.num_decodes, metadata.num_prefills) == (len(DECODES), len(PROMPTS))
    assert len(metadata.prefill.chunked_context.chunks) > 0


@needs_prompts
def test_contexts_in_several_chunks(place):
    """A request's context is cut where the rows that vLLM gathers at once end."""
    server = Server(**place, workspace=128)
    metadata = run(server, server.step(DECODES + PROMPTS))
    assert sum(chunk.is_continuation for chunk in metadata.prefill.chunked_context.chunks) > 1


@needs_prompts
@pytest.mark.parametrize("seed", range(10))
def test_random_batches(place, seed):
    draw = random.Random(seed)
    drafts = draw.choice([0, 0, 3])
    server = Server(
        **place,
        seed=seed,
        heads=draw.choice([1, 2, 4, 7]),
        block_size=draw.choice([16, 32, 64]),
        workspace=draw.choice([256, 8192]),
        drafts=drafts,
    )
    most = server.block_size * server.max_blocks - 64
    for _ in range(3):
        decodes = [(draw.randrange(most), draw.randrange(1, drafts + 2)) for _ in range(draw.randrange(6))]
        prompts = [
            (draw.choice([0, 0, draw.randrange(most)]), draw.randrange(drafts + 2, 60))
            for _ in range(draw.randrange(1, 6))
        ]
        run(server, server.step(decodes + prompts))


def test_prompts_and_their_contexts(place):
    """The prefill backend alone: a prompt whole, and of a part without a mask merged with the rest."""
    server = Server(**place)
    heads, lengths, contexts = server.heads, [37, 5, 64], [16, 130, 7]
    q, k, v = (server.draw(sum(lengths), heads, columns) for columns in (192, 192, 128))
    old_k, old_v = (server.draw(sum(contexts), heads, columns) for columns in (192, 128))
    backend = server.prefill
    starts, old_starts = (offsets(counts, server.device) for counts in (lengths, contexts))
    backend.prepare_metadata(SimpleNamespace(query_start_loc=starts, max_query_len=64))
    whole = backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=False)
    out = torch.empty_like(whole)
    assert backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=False, out=out) is out
    assert torch.equal(out, whole)
    new = backend.run_prefill_new_tokens(q, k, v, return_softmax_lse=True)
    chunk = SimpleNamespace(query_start_loc=starts, max_query_len=64, cu_seq_lens=old_starts, max_seq_len=130)
    old = backend.run_prefill_context_chunk(chunk, q, old_k, old_v)
    assert new[1].shape == old[1].shape == (heads, sum(lengths))
    merged, _ = strobe.merge([old, new])
    queries = q.split(lengths), k.split(lengths), v.split(lengths), whole.split(lengths), merged.split(lengths)
    old_pieces = zip(old_k.split(contexts), old_v.split(contexts), strict=True)
    for (q1, k1, v1, alone, both), (k0, v0) in zip(zip(*queries, strict=True), old_pieces, strict=True):
        check_rows(alone, q1, k1, v1)
        check_rows(both, q1, torch.cat([k0, k1]), torch.cat([v0, v1]))


def offsets(counts: list[int], device: str) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32, device=device)


def check_rows(out, q, k, v):
    wanted = reference.attention(*(x.double().cpu().numpy()[None] for x in (q, k, v)), scale=SCALE, causal=True)[0][0]
    tolerance = (16 if out.dtype == torch.float32 else 2) * torch.finfo(out.dtype).eps
    assert np.abs(out.double().cpu().numpy() - wanted).max() <= tolerance * max(1.0, v.abs().max().item())


@pytest.mark.parametrize("options", [{}, IN_8_BITS], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("interleave", [1, 4])
def test_ranks_that_share_keys(place, interleave, queries, options):
    """Each rank's part over its shard, with lse, and all of them merged."""
    server, world = Server(**place, **options), 2
    lengths = [(120, queries), (3, queries), (201, queries)]
    step = server.step(lengths)
    server.impl.need_to_return_lse_for_decode = True
    parts = [over_shard(server, step, Shard(rank, world, interleave), queries) for rank in range(world)]
    assert all(lse.shape == (len(step.q), server.heads) for _, lse in parts)
    merged, _ = strobe.merge([(out, lse.transpose(0, 1).contiguous()) for out, lse in parts])
    step.check((merged, torch.empty(0)))


def over_shard(server, step, shard, queries):
    """The part of a rank, whose cache is filled with its rows of each request, one behind the other."""
    cache, lengths = server.empty_cache(), torch.tensor([sum(pair) for pair in step.lengths], dtype=torch.int32)
    table = torch.arange(len(lengths) * server.max_blocks, dtype=torch.int32).view(len(lengths), -1)
    for request, (latents, rotated) in enumerate(step.rows):
        mine = torch.arange(len(latents)) // shard.interleave % shard.world == shard.rank
        slots = table[request, 0] * server.block_size + torch.arange(int(mine.sum()))
        server.write(cache, latents[mine], rotated[mine], slots.long().to(server.device))
    lengths = lengths.to(server.device)
    decode = StrobeMLADecodeMetadata(
        block_table=table.to(server.device),
        seq_lens=shard.count(lengths),
        dcp_tot_seq_lens=lengths,
        query_start_loc=offsets([queries] * len(lengths), server.device),
        max_query_len=queries,
        shard=shard,
    )
    joined = torch.cat([step.q_latent, step.q_rope], dim=-1)  # as vLLM gathers them of all ranks
    return server.impl.forward_mqa(joined, cache, SimpleNamespace(decode=decode, causal=True), server.layer)


def test_captured_decodes_are_replayed_with_others(place):
    """vLLM captures decodes of one shape, and replays them with any lengths, padded by requests without queries."""
    server = Server(**place, drafts=3)
    first = server.step([(5, 4), (200, 4), (33, 4)])
    metadata = server.builder.build_for_cudagraph_capture(first.common())
    check_replays(
        server,
        first,
        metadata,
        [[(300, 4), (17, 4), (90, 4)], [(31, 3), (60, 1), (2, 4)], [(100, 4), (3, 2)]],
    )


def check_replays(server, first, metadata, batches):
    """What is captured of the first step computes others, of 3 requests at most."""
    held = {name: getattr(first, name) for name in ("q_latent", "q_rope", "latents", "rotated")}
    results = []
    replay = captured(lambda: results.append(first.forward(metadata)))
    for lengths in batches:
        step = server.step(lengths, tokens=first.tokens)
        server.builder.build(0, step.common(3, longest=metadata.max_query_len))
        for name, tensor in held.items():
            tensor.copy_(getattr(step, name))
        replay()
        step.check(results[-1])


@pytest.mark.parametrize("options", [{}, IN_8_BITS], ids=["16 bits", "8 bits"])
def test_nothing_waits_for_the_device(options):
    """Neither the builder nor a layer's decodes read a number back."""
    if not CUDA:
        pytest.skip("needs a GPU")
    server = Server(device="cuda", dtype=torch.bfloat16, **options)
    check_nothing_waits(server, server.step(DECODES))


def test_rows_are_stored_in_8_bits(place):
    """As PyTorch rounds them, and the largest element for what is larger; -1 is no slot."""
    server = Server(**place, scale=0.25)
    latents, rotated = 60 * server.draw(40, LATENT), server.draw(40, ROPE)
    assert latents.abs().max() > 448 * server.scale
    slots = torch.randperm(server.num_blocks * server.block_size)[:40].to(server.device)
    slots[::7] = -1
    expected = server.cache.view(-1, LATENT + ROPE).clone()
    server.write(server.cache, latents, rotated, slots)
    rows = server.elements(torch.cat([latents, rotated], dim=-1)).view(torch.uint8)
    expected[slots[slots >= 0]] = rows[slots >= 0]
    assert torch.equal(server.cache.view(-1, LATENT + ROPE), expected)


@pytest.mark.parametrize("heads", [1, 16])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_decodes_over_8_bits(place, block_size, heads):
    server = Server(**place, **IN_8_BITS, heads=heads, block_size=block_size)
    run(server, server.step(DECODES))


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_over_8_bits(place, seed):
    """Of decodes, with drafts on a CPU, and of prompts where vLLM has their contexts."""
    draw = random.Random(seed)
    drafts = 0 if CUDA else draw.choice([0, 3])
    server = Server(
        **place,
        seed=seed,
        heads=draw.choice([1, 2, 4, 8]),
        block_size=draw.choice([16, 32, 64]),
        workspace=draw.choice([256, 8192]),
        drafts=drafts,
        layers=draw.choice([1, 3]) if not HAS_PROMPTS else 1,
        scale=draw.choice([0.011, 0.02, 0.03]),
    )
    most = server.block_size * server.max_blocks - 64
    for _ in range(3):
        decodes = [(draw.randrange(most), draw.randrange(1, drafts + 2)) for _ in range(draw.randrange(1, 7))]
        prompts = [
            (draw.choice([0, draw.randrange(most)]), draw.randrange(drafts + 2, 60))
            for _ in range(draw.randrange(6) if HAS_PROMPTS else 0)
        ]
        run(server, server.step(decodes + prompts))


def test_captured_decodes_over_8_bits(place):
    server = Server(**place, **IN_8_BITS)
    first = server.step([(5, 1), (200, 1), (33, 1)])
    metadata = server.builder.build_for_cudagraph_capture(first.common())
    check_replays(server, first, metadata, [[(300, 1), (17, 1), (90, 1)], [(31, 1), (60, 1)]])


def test_profiling_runs_have_no_cache():
    server = Server()
    step = server.step([(0, 2)])
    server.write(torch.tensor([]), step.latents, step.rotated, server.slots[:2])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sliding_window": 128}, "a layer of MLA has sliding_window, which is not supported"),
        ({"logits_soft_cap": 30.0}, "a layer of MLA has logits_soft_cap"),
        ({"qk_rope_head_dim": 0}, "a layer of MLA has qk_rope_head_dim of 0"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype is fp8_e5m2: it must be one of auto, float16, bfloat16, fp8"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype is fp8_ds_mla: it must be one of auto"),
        ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype is bfloat16 and the model's torch.float32: they must"),
    ],
)
def test_what_is_refused(options, reason):
    with pytest.raises(NotImplementedError, match=reason):
        implementation(4, **options)


def test_batch_invariance_is_refused(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with pytest.raises(NotImplementedError, match="a layer of MLA has VLLM_BATCH_INVARIANT"):
        implementation(4)


def test_what_a_gpu_lacks_is_refused():
    reason = "dtype is torch.float32: with MLA on a GPU it must be torch.float16 or torch.bfloat16"
    assert limits.mla_combination_reason(torch.float32, "auto", on_gpu=True) == reason
    assert limits.mla_combination_reason(torch.float32, "auto", on_gpu=False) is None
    reason = "kv_cache_dtype is float16 and the model's torch.bfloat16: they must be the same, or the cache fp8"
    assert limits.mla_combination_reason(torch.bfloat16, "float16", on_gpu=True) == reason


def test_where_8_bits_are_refused(monkeypatch):
    reason = "kv_cache_dtype is fp8: with MLA on a GPU it needs compute capability 9.0"
    for capability in ((8, 0), (8, 9), (10, 0)):
        assert limits.mla_float8_reason("fp8", LATENT + ROPE, capability) == reason
        assert limits.mla_float8_reason("auto", LATENT + ROPE, capability) is None
    assert limits.mla_float8_reason("fp8", LATENT + ROPE, (9, 0)) is None
    reason = "kv_cache_dtype is fp8 and head_size 320: with MLA on a GPU it must be 576"
    assert limits.mla_float8_reason("fp8", 320, (9, 0)) == reason
    monkeypatch.setattr(strobe_vllm.mla.implementation, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    for heads in (1, 16, 128):
        Server(heads=heads, **IN_8_BITS)
    Server(heads=24, drafts=3)
    with pytest.raises(NotImplementedError, match="decodes have 24 heads: with MLA on a GPU it must be a power of two"):
        Server(heads=24, **IN_8_BITS)
    with pytest.raises(NotImplementedError, match=r"decodes have 256 heads: .* up to 128"):
        Server(heads=256, **IN_8_BITS)
    with pytest.raises(NotImplementedError, match="kv_cache_dtype is fp8 and decodes have up to 4 queries: with MLA"):
        Server(heads=16, drafts=3, **IN_8_BITS)

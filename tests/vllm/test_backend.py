# SPDX-License-Identifier: Apache-2.0
"""Metadata builder and implementation, driven as vLLM drives them, against float64; on a GPU also in CUDA graphs."""

import dataclasses
import random

import pytest
import torch
from buffers import check_nothing_waits
from kinds import KINDS, MIXED, OPTIONS, SPANS, run, step_of
from steps import LAYOUTS, Server, captured
from strobe_vllm import limits

CUDA = torch.cuda.is_available()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", OPTIONS)
def test_mixed_batches(place, options, layout):
    server = Server(**place, layout=layout, options=OPTIONS[options])
    run(server, server.step(MIXED))


@pytest.mark.parametrize("seed", range(12))
def test_random_batches(place, seed):
    draw = random.Random(seed)
    server = Server(
        **place,
        seed=seed,
        heads=8,
        heads_kv=draw.choice([1, 2, 8]),
        head_size=draw.choice([32, 64, 80, 128, 320, 512]),
        block_size=draw.choice([8, 16, 32, 48]),
        layout=draw.choice(list(LAYOUTS)),
        options=OPTIONS[draw.choice(list(OPTIONS))],
    )
    most = server.block_size * server.max_blocks - 64
    for _ in range(3):
        lengths = [
            (draw.choice([0, 1, draw.randrange(most)]), draw.choice([1, 1, 1, 4, draw.randrange(1, 20)]))
            for _ in range(draw.randrange(1, server.max_requests))
        ]
        run(server, server.step(lengths))


@pytest.mark.parametrize("scales", [(0.02,), (0.02, 0.005)], ids=["of the layer", "of each head"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches_of_8_bits(place, scales, layout):
    server = Server(**place, scales=scales, layout=layout)
    run(server, server.step(MIXED))


@pytest.mark.parametrize("window", [None, 20])
def test_without_a_causal_mask(place, window):
    server = Server(**place, options={"sliding_window": window})
    run(server, server.step(MIXED, causal=False))


@pytest.mark.parametrize("window", [None, 20])
def test_causal_flags_of_requests(place, window):
    server = Server(**place, options={"sliding_window": window})
    run(server, server.step(MIXED, causal=[1, 0, 1, 0, 0, 1, 0, 1]))


@pytest.mark.parametrize("optimism", [0, 3])
@pytest.mark.parametrize("window", [None, 24])
def test_spans_of_tokens_that_see_each_other(place, window, optimism):
    server = Server(**place, options={"sliding_window": window}, has_spans=True)
    step = server.step(SPANS[0]).with_spans(SPANS[1])
    step.optimism = torch.tensor([0, optimism, 0, optimism, 0], dtype=torch.int32)  # of decodes alone
    common = step.common()
    metadata = server.builder.build(0, common)
    assert metadata.mm_prefix_range is not None
    step.check(step.forward(metadata))


@pytest.mark.parametrize("options", OPTIONS)
def test_spans_in_layers_of_every_kind(place, options):
    server = Server(**place, options=OPTIONS[options], has_spans=True)
    run(server, server.step(SPANS[0]).with_spans(SPANS[1]))


@pytest.mark.parametrize("scales", [(), (0.02, 0.005)], ids=["the model's dtype", "fp8"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_spans_in_every_layout(place, layout, scales):
    server = Server(**place, layout=layout, scales=scales, has_spans=True)
    run(server, server.step(SPANS[0]).with_spans(SPANS[1]))


def test_spans_of_prompts_without_context(place):
    """The cache has NaN: queries see the keys of the step alone."""
    server = Server(**place, has_spans=True)
    step = server.step([(0, 60), (0, 1), (0, 30)]).with_spans({0: [(3, 20), (21, 59)], 2: [(25, 40)]})
    server.cache.fill_(torch.nan)
    metadata = server.builder.build(0, step.common())
    out = torch.full_like(step.q, torch.nan)
    server.impl.forward(server.layer, step.q, step.k, step.v, server.cache, metadata, out)
    step.check(out)


def test_layers_without_spans_in_a_step_that_has_them(place):
    """vLLM's models clear the field of layers that have none."""
    server = Server(**place, has_spans=True)
    step = server.step(SPANS[0]).with_spans(SPANS[1])
    metadata = server.builder.build(0, step.common())
    metadata.mm_prefix_range = None
    out = step.forward(metadata)
    step.spans = None
    step.check(out)


def test_the_blocks_of_another_group(place):
    """Groups of layers have blocks of their own and may share a step's other metadata, but no builder's buffers."""
    server = Server(**place)
    step = server.step(MIXED)
    common = step.common()
    others = dataclasses.replace(
        common,
        block_table_tensor=torch.zeros_like(common.block_table_tensor),
        slot_mapping=torch.full_like(common.slot_mapping, -1),
    )
    metadata = server.builder.build(0, others)
    step.check(
        step.forward(server.builder.update_block_table(metadata, common.block_table_tensor, common.slot_mapping))
    )
    assert server.builder.supports_update_block_table
    assert not Server(**place, has_spans=True).builder.supports_update_block_table


def test_steps_behind_their_spans_are_plain():
    server = Server()
    step = server.step([(120, 1), (64, 20)]).with_spans({0: [(10, 20)], 1: [(3, 40), (90, 95)]})
    metadata = server.builder.build(0, step.common())
    assert metadata.mm_prefix_range is None
    step.check(step.forward(metadata))


def test_graphs_of_single_queries_have_no_spans():
    """A decode is behind its spans, and so is the last token of a prompt that is computed alone."""
    from vllm.config import CUDAGraphMode

    server = Server(mode=CUDAGraphMode.FULL_AND_PIECEWISE, has_spans=True)
    decodes, drafts = (server.step([(20, queries)] * 4).common() for queries in (1, 3))
    assert server.builder.build_for_cudagraph_capture(decodes).mm_prefix_range is None
    assert server.builder.build_for_cudagraph_capture(drafts).mm_prefix_range is not None


@pytest.mark.parametrize("seed", range(6))
def test_random_spans(place, seed):
    draw = random.Random(seed)
    server = Server(
        **place,
        seed=seed,
        heads_kv=draw.choice([1, 2, 8]),
        head_size=draw.choice([32, 64, 80, 128, 256, 512]),
        block_size=draw.choice([8, 16, 48]),
        layout=draw.choice(list(LAYOUTS)),
        options={"sliding_window": draw.choice([None, 33])},
        has_spans=True,
    )
    for _ in range(3):
        lengths = [
            (draw.choice([0, draw.randrange(100)]), draw.choice([1, 4, draw.randrange(1, 40)]))
            for _ in range(draw.randrange(1, 6))
        ]
        spans = {
            request: [(first, first + draw.randrange(33)) for first in range(draw.randrange(30), sum(pair), 40)]
            for request, pair in enumerate(lengths)
        }
        run(server, server.step(lengths).with_spans(spans))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("kind", ["encoder", "encoder_only"])
def test_encoders_have_no_cache(place, kind, window):
    server = Server(**place, options={"attn_type": kind, "sliding_window": window})
    before = server.cache.clone()
    step = server.step([(0, 37), (0, 1), (0, 64)], causal=False)
    run(server, step)
    assert torch.equal(before.view(torch.uint8), server.cache.reshape(before.shape).view(torch.uint8))


def test_cross_attention_reads_keys_of_the_encoder(place):
    """Queries are the decoder's, and all keys were written before."""
    server = Server(**place, options={"attn_type": "encoder_decoder"})
    step = server.step([(50, 3), (100, 1), (17, 9)], causal=False)
    step.forward(server.builder.build(0, step.common()))
    metadata = server.builder.build(0, step.common())
    out = torch.full_like(step.q, torch.nan)
    server.impl.forward(server.layer, step.q, None, None, server.cache, metadata, out)
    step.check(out)


def test_steps_without_context_read_their_own_keys(place):
    """The cache has NaN, as what they write is not written here."""
    server = Server(**place)
    step = server.step([(0, 37), (0, 1), (0, 20)], tokens=64)
    server.cache.fill_(torch.nan)
    metadata = server.builder.build(0, step.common())
    out = torch.full_like(step.q, torch.nan)
    server.impl.forward(server.layer, step.q, step.k, step.v, server.cache, metadata, out)
    step.check(out)


@pytest.mark.parametrize("case", ["context", "capture", "drafts", "another layer's cache", "fp8", "batch invariance"])
def test_what_reads_the_cache(place, case, monkeypatch):
    """Without keys of its own a layer has the cache alone."""
    if case == "batch invariance":
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    options = {"kv_sharing_target_layer_name": "first"} if case == "another layer's cache" else {}
    server = Server(**place, options=options, scales=(0.05,) if case == "fp8" else ())
    step = server.step([(0, 37), (9 if case == "context" else 0, 1)])
    builder = server.builder
    metadata = (
        builder.build_for_cudagraph_capture(step.common()) if case == "capture" else builder.build(0, step.common())
    )
    if case == "drafts":
        builder.update_draft_decode_metadata(metadata)
    server.impl.do_kv_cache_update(server.layer, step.k, step.v, server.cache, metadata.slot_mapping)
    out = torch.full_like(step.q, torch.nan)
    server.impl.forward(server.layer, step.q, None, None, server.cache, metadata, out)
    step.check(out)


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_is_replayed_with_other_batches(place, kind):
    """vLLM captures a graph with as short queries as can be, and replays it with any batch of as many tokens."""
    arguments, causal = KINDS[kind]
    server = Server(**place, **arguments)
    tokens, requests = 64, 12
    first = step_of(server, [(5, 6), *[(9, 5)] * 10, (3, 8)], causal, tokens)
    common = first.common(requests, longest=8)
    metadata = server.builder.build_for_cudagraph_capture(common)
    held = {name: getattr(first, name) for name in ("q", "k", "v")}
    out = torch.full_like(first.q, torch.nan)
    replay = captured(lambda: first.forward(metadata, out))
    for lengths in (
        [(0, 64)],
        [(300, 1)] * 12,
        [(0, 40), (211, 1), (17, 1), (90, 4)],
        [(31, 1)] * 3 + [(32, 30), (0, 31)],
    ):
        step = step_of(server, lengths, causal, tokens)
        server.builder.build(0, step.common(requests))
        for name, tensor in held.items():
            tensor.copy_(getattr(step, name))
        replay()
        step.check(out)


@pytest.mark.parametrize("options", ["plain", "window"])
def test_a_captured_step_is_replayed_with_other_spans(place, options):
    """Graphs of models with spans serve every batch, too."""
    server = Server(**place, options=OPTIONS[options], has_spans=True)
    tokens, requests = 64, 12
    first = server.step([(5, 6), *[(9, 5)] * 10, (3, 8)], tokens=tokens)
    metadata = server.builder.build_for_cudagraph_capture(first.common(requests, longest=8))
    held = {name: getattr(first, name) for name in ("q", "k", "v")}
    out = torch.full_like(first.q, torch.nan)
    replay = captured(lambda: first.forward(metadata, out))
    for lengths, spans in (
        ([(0, 64)], {0: [(3, 30), (31, 60)]}),
        ([(0, 40), (211, 1), (17, 1), (90, 4)], {0: [(20, 50)], 1: [(5, 30)], 3: [(60, 92)]}),
        ([(300, 1)] * 12, {0: [(0, 20)]}),
        ([(31, 30), (0, 31)], {}),
        ([(31, 30), (0, 31)], {0: [(35, 40)], 1: [(0, 1), (29, 40)]}),
    ):
        step = server.step(lengths, tokens=tokens).with_spans(spans)
        server.builder.build(0, step.common(requests))
        for name, tensor in held.items():
            tensor.copy_(getattr(step, name))
        replay()
        step.check(out)


def test_a_batch_of_uniform_queries_is_captured_as_one():
    from vllm.config import CUDAGraphMode

    server = Server(mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    step = server.step([(20, 3)] * 4)
    assert server.builder.build_for_cudagraph_capture(step.common()).max_query_len == 3
    server = Server(mode=CUDAGraphMode.FULL)
    step = server.step([(20, 3)] * 4)
    assert server.builder.build_for_cudagraph_capture(step.common()).max_query_len == 12


needs_gpu = pytest.mark.skipif(not CUDA, reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_the_device(kind):
    """Neither the builder nor a layer's step reads a number back."""
    arguments, causal = KINDS[kind]
    server = Server(device="cuda", dtype=torch.bfloat16, **arguments)
    check_nothing_waits(server, step_of(server, MIXED, causal))


@needs_gpu
def test_spans_do_not_wait_for_the_device():
    server = Server(device="cuda", dtype=torch.bfloat16, has_spans=True)
    check_nothing_waits(server, server.step(SPANS[0]).with_spans(SPANS[1]))


@pytest.mark.parametrize("scales", [(), (0.01, 0.02)], ids=["16 or 32 bits", "fp8"])
def test_batch_invariance(place, monkeypatch, scales):
    """A request has the same bits alone and in a batch, and its last query as it would have as a decode."""
    if scales and place["dtype"] == torch.float32 and place["device"] == "cuda":
        pytest.skip("no GPU has an fp8 cache beside float32")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    server = Server(**place, scales=scales)
    step = server.step(MIXED)
    whole = step.forward(server.builder.build(0, step.common()))
    step.check(whole)
    start = 0
    for index, (_, new) in enumerate(MIXED):
        for first in {0, new - 1}:
            rows = slice(start + first, start + new)
            alone = step.common(1, longest=new - first)
            alone.query_start_loc = torch.tensor([0, new - first], dtype=torch.int32, device=place["device"])
            alone.seq_lens = server.seq_lens[index : index + 1]
            alone.block_table_tensor = server.block_table[index : index + 1]
            alone.num_actual_tokens = new - first
            out = torch.full_like(step.q[rows], torch.nan)
            metadata = server.builder.build(0, alone)
            server.impl.forward(server.layer, step.q[rows], None, None, server.cache, metadata, out)
            assert torch.equal(out, whole[rows])
        start += new


def test_profiling_runs_have_no_metadata(place):
    server = Server(**place)
    out = torch.full((5, 8, 64), torch.nan, dtype=place["dtype"], device=place["device"])
    server.impl.forward(server.layer, out, out, out, torch.tensor([]), None, out)
    assert not out.any()


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="kv_cache_dtype is fp8_e5m2: it must be one of auto, float16"):
        Server(options={"kv_cache_dtype": "fp8_e5m2"})
    with pytest.raises(NotImplementedError, match="head_size is 576: it must be at most 512"):
        Server(head_size=576)
    with pytest.raises(NotImplementedError, match=r"kv_cache_dtype is float16 and the model's torch.float32"):
        Server(options={"kv_cache_dtype": "float16"})
    with pytest.raises(NotImplementedError, match="the model has R-SWA, rswa_window is 128: it is not supported"):
        Server(rswa_window=128)
    options = {"cache_dtype": "fp8", "row_invariant": False, "on_gpu": True}
    reason = "head_size is 512: with an fp8 cache on a GPU it must be at most 256"
    assert limits.combination_reason(512, torch.bfloat16, **options) == reason
    assert limits.combination_reason(256, torch.bfloat16, **options) is None
    assert limits.combination_reason(512, torch.bfloat16, **(options | {"on_gpu": False})) is None
    invariant = options | {"cache_dtype": None, "row_invariant": True}
    assert limits.combination_reason(512, torch.bfloat16, **invariant) is None
    server = Server()
    step = server.step([(0, 2)])
    with pytest.raises(NotImplementedError, match="output_scale is given"):
        server.impl.forward(
            server.layer, step.q, step.k, step.v, server.cache, None, step.q, output_scale=torch.ones(1)
        )

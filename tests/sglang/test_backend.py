# SPDX-License-Identifier: Apache-2.0
"""The backend in SGLang's own classes, driven as its model runner drives backends, against float64."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import strobe_sglang
import torch
from pools import (
    DECODES,
    DEVICE,
    FULL_LAYER,
    MIXED,
    REPLAYS,
    WINDOW_LAYER,
    Server,
    check_replays,
    check_the_same_bits_alone,
    draft_trees,
)
from sglang.srt.arg_groups import choices
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.srt.speculative.spec_info import SpecInputType
from strobe_sglang import metadata

SINKS = [0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -0.5, 0.25]
OPTIONS = {
    "plain": {},
    "window": {"layer": {"sliding_window_size": 32}},
    "sinks": {"sinks": SINKS},
    "softcap": {"layer": {"logit_cap": 2.0}},
    "chunk": {"chunk": 32},
    "window, sinks, softcap": {"layer": {"sliding_window_size": 19, "logit_cap": 5.0}, "sinks": SINKS},
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def run(server, lengths, mode):
    step = server.step(lengths, mode)
    step.check(step.run())


@DTYPES
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("options", OPTIONS)
def test_prompts_chunks_and_decodes(dtype, options, page_size):
    server = Server(dtype=dtype, page_size=page_size, **OPTIONS[options])
    run(server, MIXED, "mixed")
    run(server, DECODES, "decode")


@DTYPES
@pytest.mark.parametrize("seed", range(10))
def test_random_batches(dtype, seed):
    draw = random.Random(seed)
    server = Server(
        dtype=dtype,
        seed=seed,
        heads_kv=draw.choice([1, 2, 8]),
        head_dim=draw.choice([32, 64, 80, 128]),
        head_dim_v=draw.choice([32, 64, 128]),
        page_size=draw.choice([1, 2, 8, 16, 48]),
        **OPTIONS[draw.choice(list(OPTIONS))],
    )
    for mode in ("mixed", "decode", "mixed"):
        most = 1 if mode == "decode" else 20
        count = draw.randrange(1, server.requests)
        lengths = [(draw.choice([0, 1, draw.randrange(300)]), draw.randrange(1, most + 1)) for _ in range(count)]
        run(server, lengths, mode)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("layer_id", [FULL_LAYER, WINDOW_LAYER])
def test_layers_with_windows_in_a_pool_of_their_own(layer_id, page_size):
    layer = {"sliding_window_size": 32} if layer_id == WINDOW_LAYER else {}
    server = Server(has_window_pool=True, layer_id=layer_id, page_size=page_size, layer=layer)
    run(server, MIXED, "mixed")
    run(server, DECODES, "decode")


@DTYPES
@pytest.mark.parametrize("scales", [None, (0.02, 0.01)])
def test_caches_of_8_bits(dtype, scales):
    if DEVICE == "cuda" and dtype == torch.float32:
        with pytest.raises(NotImplementedError, match="an fp8 cache beside float32 is not supported on a GPU"):
            Server(dtype=dtype, is_float8=True, scales=scales, page_size=16)
        return
    server = Server(dtype=dtype, is_float8=True, scales=scales, page_size=16)
    run(server, MIXED, "mixed")
    run(server, DECODES, "decode")


@pytest.mark.parametrize("window", [-1, 9])
@pytest.mark.parametrize("kind", [AttentionType.ENCODER_ONLY, AttentionType.DECODER_BIDIRECTIONAL])
def test_without_a_causal_mask(kind, window):
    server = Server(layer={"attn_type": kind, "sliding_window_size": window})
    run(server, [(0, 37), (0, 1), (0, 64)], "mixed")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("is_cross_attention", [False, True])
def test_encoders_with_decoders(is_cross_attention, page_size):
    """Keys of a request's encoder are before its own in its row; a request may have none."""
    server = Server(page_size=page_size, layer={"is_cross_attention": is_cross_attention})
    for lengths, mode in (([(0, 7), (20, 5), (0, 1)], "mixed"), ([(0, 1), (30, 1), (64, 1)], "decode")):
        step = server.step(lengths, mode, encoders=[33, 0, 100])
        step.check(step.run())


@DTYPES
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("options", ["plain", "window", "softcap"])
def test_tokens_of_an_image_see_each_other(dtype, options, page_size):
    """By Gemma 4's own step before its layers; images that a chunk cuts are causal there."""
    from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration

    server = Server(dtype=dtype, page_size=page_size, **OPTIONS[options])
    step = server.step([(0, 70), (30, 40), (5, 1), (20, 30)], "mixed")
    images = {0: [(3, 20), (21, 60)], 1: [(10, 20), (45, 69)], 3: [(40, 60)]}
    batch = step.batch()
    batch.forward_mode = ForwardMode.EXTEND
    batch.extend_prefix_lens_cpu = batch.extend_prefix_lens.tolist()
    batch.mm_inputs = [
        SimpleNamespace(mm_items=[SimpleNamespace(is_image=lambda: True, offsets=images[request])])
        if request in images
        else None
        for request in range(4)
    ]
    server.backend.init_forward_metadata(batch)
    with forward_context(ForwardContext(attn_backend=server.backend)):
        Gemma4ForConditionalGeneration.prepare_attn_masks(None, batch, batch.input_ids, torch.bool)
    assert server.backend.forward_metadata.image_token_ranges is not None
    step.images = {0: images[0], 1: images[1][1:]}
    step.check(step.forward(batch))


@DTYPES
@pytest.mark.parametrize("drafts", [2, 8, 64])
@pytest.mark.parametrize("options", ["plain", "sinks", "softcap"])
def test_trees_of_drafts(dtype, options, drafts):
    server = Server(dtype=dtype, config={"speculative_num_draft_tokens": drafts}, **OPTIONS[options])
    step = server.step([(1, drafts), (120, drafts), (33, drafts)], "verify")
    step.tree = draft_trees(3, drafts, seed=drafts)
    step.check(step.run())


def test_masks_with_the_columns_of_contexts(monkeypatch):
    """NGRAM's on a GPU."""
    server = Server(config={"speculative_num_draft_tokens": 8})
    step = server.step([(1, 8), (120, 8), (33, 8)], "verify")
    step.tree = draft_trees(3, 8, seed=1)
    batch = step.batch()
    batch.spec_info.custom_mask = step.tree.flatten()
    monkeypatch.setattr(metadata, "is_cpu", lambda: True)
    server.backend.init_forward_metadata(batch)
    plain = step.forward(batch)
    batch.spec_info.custom_mask = step.wide_mask()
    monkeypatch.setattr(metadata, "is_cpu", lambda: False)
    server.backend.init_forward_metadata(batch)
    assert torch.equal(step.forward(batch), plain)
    step.check(plain)


def test_chains_of_drafts_need_no_mask():
    server = Server(config={"speculative_num_draft_tokens": 4})
    step = server.step([(9, 4), (70, 4)], "verify")
    step.tree = torch.ones(2, 4, 4, dtype=torch.bool).tril()
    batch = step.batch()
    batch.spec_info = SimpleNamespace(num_tokens_per_req=-1, custom_mask=torch.zeros(3), tree_topk=1)
    server.backend.init_forward_metadata(batch)
    assert server.backend.forward_metadata.tree_mask is None
    step.check(step.forward(batch))


def test_eagle_writes_masks_to_the_backend():
    """In a buffer for as many requests as there can be, without the context's columns."""
    server = Server(config={"speculative_num_draft_tokens": 6})
    mask = server.backend.verify_mask
    assert (mask.mode, mask.max_bs, mask.is_read) == (TreeMaskMode.QLEN_ONLY, server.requests, True)
    step = server.step([(9, 6), (70, 6)], "verify")
    step.tree = draft_trees(2, 6, seed=2)
    mask.buffer[: step.tree.numel()] = step.tree.flatten()
    batch = step.batch()
    batch.spec_info.spec_input_type = SpecInputType.EAGLE_VERIFY
    batch.spec_info.custom_mask = mask.buffer
    server.backend.init_forward_metadata(batch)
    step.check(step.forward(batch))
    assert Server().backend.verify_mask is None


@pytest.mark.parametrize("has_window_pool", [False, True])
@pytest.mark.parametrize("mode", REPLAYS)
def test_captured_steps_read_what_the_next_batch_puts_there(mode, has_window_pool):
    """In a CUDA graph where there is a GPU."""
    layer_id = WINDOW_LAYER if has_window_pool else FULL_LAYER
    config = {"speculative_num_draft_tokens": 4} if mode == "verify" else {}
    server = Server(page_size=16, has_window_pool=has_window_pool, layer_id=layer_id, config=config)
    check_replays(server, mode)


def test_captures_may_be_larger_than_batches():
    """A graph of 8 requests serves 3: the others are the pool's row 0, one key long, and their results nobody's."""
    server = Server()
    server.backend.init_cuda_graph_state(8, 8)
    step = server.step([(9, 1), (70, 1), (200, 1)], "decode")
    batch = step.batch()
    fill = server.backend.get_cuda_graph_seq_len_fill_value()
    assert fill == 1
    batch.batch_size = 8
    batch.seq_lens = torch.cat([batch.seq_lens, torch.full((5,), fill)])
    batch.req_pool_indices = torch.cat([batch.req_pool_indices, torch.zeros(5, dtype=torch.int64)])
    batch.out_cache_loc = torch.cat([batch.out_cache_loc, torch.zeros(5, dtype=torch.int64)])
    step.q, step.k, step.v = (torch.cat([x, x.new_zeros(5, *x.shape[1:])]) for x in (step.q, step.k, step.v))
    server.backend.init_forward_metadata_out_graph(batch, in_capture=True)
    step.check(step.forward(batch))


def test_deterministic_inference():
    """A request has the same bits alone and in a batch, and its last query as it would have as a decode."""
    server = Server(config={"enable_deterministic_inference": True})
    check_the_same_bits_alone(server, server.step(MIXED, "mixed"))


def test_lse():
    server = Server(sinks=SINKS)
    step = server.step([(0, 5), (20, 3)], "mixed")
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    out, lse = step.forward(batch, return_lse=True)
    step.check(out)
    for request, rows in enumerate((slice(0, 5), slice(5, 8))):
        _, wanted, _ = step.reference(request, step.q[rows].view(-1, 8, 64))
        np.testing.assert_allclose(lse[rows].cpu().numpy(), wanted[0].T, rtol=1e-5, atol=1e-5)


def test_layers_that_share_keys_write_none():
    server = Server()
    step = server.step([(20, 3)], "mixed")
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    out = step.forward(batch)
    before = [x.clone() for x in server.pool.get_kv_buffer(FULL_LAYER)]
    shared = server.backend.forward(step.q, None, None, server.attention, batch)
    assert torch.equal(out, shared)
    kept = server.backend.forward(step.q, step.k + 1, step.v + 1, server.attention, batch, save_kv_cache=False)
    assert torch.equal(out, kept)
    for x, y in zip(before, server.pool.get_kv_buffer(FULL_LAYER), strict=True):
        assert torch.equal(x.nan_to_num(), y.nan_to_num())


def test_rows_behind_the_last_request_are_zeros():
    server = Server()
    step = server.step([(20, 3)], "mixed")
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    q = torch.cat([step.q, step.q.new_full((2, 512), torch.nan)])
    out = server.backend.forward(q, step.k, step.v, server.attention, batch)
    step.check(out[:3])
    assert not out[3:].any()


def test_outputs_that_sglang_allocates():
    server = Server()
    step = server.step([(20, 3)], "mixed")
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    batch._attn_output = step.q.new_full((3, 512), torch.nan)
    out = server.backend.forward(step.q, step.k, step.v, server.attention, batch)
    assert out.data_ptr() == batch._attn_output.data_ptr()
    step.check(out)


def test_registration():
    for _ in range(2):
        strobe_sglang.register()
    assert ATTENTION_BACKENDS["strobe"] is strobe_sglang.create
    assert choices.ATTENTION_BACKEND_CHOICES.count("strobe") == 1
    backend = Server().backend
    assert isinstance(backend, AttentionBackend)
    assert (backend.needs_cpu_seq_lens, backend.support_triton()) == (False, DEVICE == "cuda")


def test_idle_batches():
    server = Server()
    batch = server.step([(3, 1)], "decode").batch()
    batch.forward_mode, batch.batch_size = ForwardMode.IDLE, 0
    server.backend.init_forward_metadata(batch)
    assert server.backend.forward(
        torch.zeros(0, 512, dtype=server.dtype), None, None, server.attention, batch
    ).shape == (0, 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_mla_backend": True}, "latent rows are in a MHATokenToKVPool: Strobe does not support it"),
        ({"prefill_aware_swa": True}, "windows depend on the prompt's length"),
        ({"kv_index_translator": SimpleNamespace(is_translating=True)}, "--enable-unified-memory is given"),
        ({"kv_cache_dtype": torch.float8_e5m2, "kv_cache_dtype_str": "fp8_e5m2"}, "dtype is fp8_e5m2: it must be one"),
        ({"kv_cache_dtype": torch.bfloat16}, "KV cache is torch.bfloat16 and the model torch.float32"),
        ({"model_config": SimpleNamespace(head_dim=576, v_head_dim=512)}, "head_size is 576: it must be at most 512"),
    ],
)
def test_what_models_may_not_have(changes, message):
    server = Server(dtype=torch.float32)
    with get_context().override_server_args(device=DEVICE), pytest.raises(NotImplementedError, match=message):
        strobe_sglang.create(server.runner(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logit_capping_method": "sigmoid", "logit_cap": 3.0}, "logit_capping_method is sigmoid: it must be tanh"),
        ({"pos_encoding_mode": "ALIBI"}, "pos_encoding_mode is ALIBI: it must be NONE"),
        ({"xai_temperature_len": 8}, "xai_temperature_len is 8"),
    ],
)
def test_what_layers_may_not_have(changes, message):
    server = Server()
    for name, value in changes.items():
        setattr(server.attention, name, value)
    with pytest.raises(NotImplementedError, match=message):
        run(server, [(3, 2)], "mixed")


def test_what_steps_and_calls_may_not_have():
    server = Server(config={"speculative_num_draft_tokens": 65})
    step = server.step([(3, 2)], "mixed")
    for mode in (ForwardMode.DLLM_EXTEND, ForwardMode.DRAFT_EXTEND_V2):
        batch = step.batch()
        batch.forward_mode = mode
        with pytest.raises(NotImplementedError, match=f"forward_mode is {mode.name}"):
            server.backend.init_forward_metadata(batch)
    batch = step.batch()
    batch.forward_mode, batch.spec_info = ForwardMode.DECODE, SimpleNamespace()
    with pytest.raises(NotImplementedError, match="a decode of a draft model"):
        server.backend.init_forward_metadata(batch)
    verify = server.step([(3, 65)], "verify")
    verify.tree = draft_trees(1, 65, seed=0)
    with pytest.raises(NotImplementedError, match="65 draft tokens in a tree: there must be at most 64"):
        verify.run()
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    with pytest.raises(NotImplementedError, match="score_mod given to an attention layer"):
        step.forward(batch, score_mod=np.sin, q_rope=None)
    with pytest.raises(NotImplementedError, match="q_rope given to an attention layer"):
        server.backend.forward(step.q, step.k, step.v, server.attention, batch, q_rope=step.q)

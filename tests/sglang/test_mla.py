# SPDX-License-Identifier: Apache-2.0
"""Models with latent rows: the absorbed layer in SGLang's pool of them, and the layer over keys of its own."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import strobe_sglang
import torch
from latent import LatentServer, Prompts
from pools import DECODES, DEVICE, MIXED, REPLAYS, check_replays, check_the_same_bits_alone, draft_trees
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool
from sglang.srt.runtime_context import get_context

ON_CPUS = pytest.mark.skipif(DEVICE == "cuda", reason="refused on GPUs, before anything is asked of one")
DTYPES = pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, marks=ON_CPUS), torch.bfloat16, torch.float16],
    ids=["float32", "bfloat16", "float16"],
)
PROMPTS = [(0, 37), (0, 1), (0, 64), (0, 19)]


@pytest.fixture(autouse=True)
def _arguments():
    """The pool of latent rows asks SGLang's arguments at each write whether ranks share them."""
    with get_context().override_server_args(device=DEVICE):
        yield


def run(server, lengths, mode):
    """With q and new rows whole, and with their rotated columns apart: SGLang does either, by the backend's name."""
    step = server.step(lengths, mode)
    step.check(step.run())
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    step.check(step.forward_apart(batch))


@DTYPES
@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_chunks_and_decodes(dtype, page_size):
    server = LatentServer(dtype=dtype, page_size=page_size)
    run(server, MIXED, "mixed")
    run(server, DECODES, "decode")


@DTYPES
@pytest.mark.parametrize("seed", range(6))
def test_random_batches(dtype, seed):
    draw = random.Random(seed)
    server = LatentServer(
        dtype=dtype,
        seed=seed,
        heads=draw.choice([1, 5, 16, 20]),
        latent=draw.choice([64, 256, 512]),
        rope=draw.choice([0, 32, 64]),
        page_size=draw.choice([1, 2, 16, 64]),
    )
    for mode in ("mixed", "decode", "mixed"):
        most = 1 if mode == "decode" else 20
        count = draw.randrange(1, 6)
        lengths = [(draw.choice([0, 1, draw.randrange(300)]), draw.randrange(1, most + 1)) for _ in range(count)]
        run(server, lengths, mode)


def test_pools_beside_other_states():
    """Kimi Linear's: layer 3 is the pool's first."""
    server = LatentServer(is_hybrid=True, layer_id=3, page_size=16)
    run(server, MIXED, "mixed")
    run(server, DECODES, "decode")


@ON_CPUS
@DTYPES
def test_pools_of_8_bits(dtype):
    """Rows are stored without a scale, as the model stores those of prompts; a scale of 1 changes nothing."""
    server = LatentServer(dtype=dtype, is_float8=True, page_size=16)
    run(server, MIXED, "mixed")
    server.attention.k_scale, server.attention.k_scale_float = torch.tensor(1.0), 1.0
    run(server, DECODES, "decode")
    server.attention.k_scale, server.attention.k_scale_float = torch.tensor(0.5), 0.5
    with pytest.raises(NotImplementedError, match=r"k_scale of latent rows is 0.5: it must be 1"):
        run(server, DECODES, "decode")


@DTYPES
@pytest.mark.parametrize("drafts", [2, 8, 64])
@pytest.mark.parametrize("is_chain", [False, True])
def test_verified_drafts(dtype, is_chain, drafts):
    server = LatentServer(dtype=dtype, config={"speculative_num_draft_tokens": drafts})
    step = server.step([(1, drafts), (120, drafts), (33, drafts)], "verify")
    step.tree = torch.ones(3, drafts, drafts, dtype=torch.bool).tril() if is_chain else draft_trees(3, drafts, seed=1)
    batch = step.batch()
    if is_chain:
        batch.spec_info = SimpleNamespace(num_tokens_per_req=-1, custom_mask=torch.zeros(3), tree_topk=1)
    server.backend.init_forward_metadata(batch)
    assert (server.backend.forward_metadata.tree_mask is None) == is_chain
    step.check(step.forward(batch))
    step.check(step.forward_apart(batch))


@pytest.mark.parametrize("mode", REPLAYS)
def test_captured_steps_read_what_the_next_batch_puts_there(mode):
    """In a CUDA graph where there is a GPU."""
    config = {"speculative_num_draft_tokens": 4} if mode == "verify" else {}
    server = LatentServer(page_size=16, config=config)
    check_replays(server, mode)


@DTYPES
def test_deterministic_inference(dtype):
    """A request has the same bits alone and in a batch, and its last query as it would have as a decode."""
    server = LatentServer(dtype=dtype, config={"enable_deterministic_inference": True})
    check_the_same_bits_alone(server, server.step(MIXED, "mixed"))


def test_lse():
    server = LatentServer()
    step = server.step([(0, 5), (20, 3)], "mixed")
    batch = step.batch()
    server.backend.init_forward_metadata(batch)
    out, lse = step.forward(batch, return_lse=True)
    step.check(out)
    for request, rows in enumerate((slice(0, 5), slice(5, 8))):
        _, wanted, _ = step.reference(request, step.q[rows].view(-1, 8, 576))
        np.testing.assert_allclose(lse[rows].cpu().numpy(), wanted[0].T, rtol=1e-5, atol=1e-5)


def test_values_are_views_of_keys():
    """Nothing of the pool is copied."""
    server = LatentServer(page_size=16)
    keys, values = server.backend._cache(server.attention)
    pool = server.pool.kv_buffer[0]
    assert keys.data_ptr() == values.data_ptr() == pool.data_ptr()
    assert (keys.shape, values.shape) == ((len(pool) // 16, 16, 1, 576), (len(pool) // 16, 16, 1, 512))


def prompts(server, lengths):
    made = Prompts(server, lengths)
    server.backend.init_forward_metadata(made.batch)
    return made


@DTYPES
@pytest.mark.parametrize(("nope", "value"), [(128, 128), (64, 96)])
def test_prompts_that_are_not_absorbed(dtype, nope, value):
    """They read nothing of the pool, which holds NaN."""
    server = LatentServer(dtype=dtype, nope=nope, value=value)
    made = prompts(server, PROMPTS)
    made.check(made.run())


@DTYPES
@pytest.mark.parametrize("lengths", [MIXED, PROMPTS, [(9, 1)]])
def test_prefixes_in_one_shot(dtype, lengths):
    server = LatentServer(dtype=dtype)
    made = prompts(server, lengths)
    made.check(made.run_in_one_shot())


@DTYPES
@pytest.mark.parametrize("size", [7, 128, 512])
def test_prefixes_in_chunks(dtype, size):
    """Requests without a prefix, and shorter ones, have no key in a chunk."""
    server = LatentServer(dtype=dtype)
    made = prompts(server, MIXED)
    made.check(made.run_in_chunks(size))


def test_outputs_that_sglang_allocates():
    server = LatentServer()
    made = prompts(server, PROMPTS)
    made.batch._attn_output = made.q.new_full((len(made.q), server.heads * server.value), torch.nan)
    out = made.run()
    assert out.data_ptr() == made.batch._attn_output.data_ptr()
    made.check(out)


def test_the_layers_keys_are_not_written():
    server = LatentServer()
    made = prompts(server, PROMPTS)
    before = server.pool.kv_buffer[0].clone()
    made.run()
    assert torch.equal(before.nan_to_num(), server.pool.kv_buffer[0].nan_to_num())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window_size": 7}, "has a sliding window"),
        ({"use_irope": True}, "has chunked attention"),
        ({"attn_type": AttentionType.ENCODER_ONLY}, "has no causal mask"),
    ],
)
def test_what_layers_that_are_not_absorbed_may_not_have(changes, message):
    server = LatentServer()
    made = prompts(server, PROMPTS)
    for name, value in changes.items():
        setattr(server.own, name, value)
    with pytest.raises(NotImplementedError, match=f"not absorbed, of a model with latent rows, {message}"):
        made.run()


def test_sinks_are_of_absorbed_layers_alone():
    server = LatentServer(sinks=[0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -0.5, 0.25])
    step = server.step(MIXED, "mixed")
    step.check(step.run())
    made = prompts(server, PROMPTS)
    with pytest.raises(NotImplementedError, match="not absorbed, of a model with latent rows, has sinks"):
        made.run(sinks=torch.zeros(8, dtype=server.dtype))


def refuses(server, message, **changes):
    with pytest.raises(NotImplementedError, match=message):
        strobe_sglang.create(server.runner(**changes))


@pytest.mark.parametrize(
    ("latent", "rope", "message"),
    [
        (520, 64, "latent rows have 584 columns: they may have at most 576"),
        (520, 8, "head_size is 520: it must be at most 512"),
    ],
)
def test_rows_may_not_be_wider(latent, rope, message):
    with pytest.raises(NotImplementedError, match=message):
        LatentServer(latent=latent, rope=rope)


@ON_CPUS
def test_what_gpus_may_not_have():
    refuses(LatentServer(), "head_size is 512: in float32 on a GPU it must be at most 128", device="cuda")
    server = LatentServer(dtype=torch.bfloat16, is_float8=True)
    refuses(server, "head_size is 512: with an fp8 cache on a GPU it must be at most 256", device="cuda")
    server = LatentServer(dtype=torch.bfloat16, rope=20)
    refuses(server, "head_size is 20: on a GPU it must be a multiple of 8", device="cuda")


def test_sparse_attention_is_refused():
    server = LatentServer(dtype=torch.bfloat16, page_size=64)
    pool = DSATokenToKVPool(
        64,
        page_size=64,
        kv_lora_rank=512,
        dtype=torch.bfloat16,
        qk_rope_head_dim=64,
        layer_num=1,
        device=DEVICE,
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=576,
    )
    refuses(server, "latent rows are in a DSATokenToKVPool: Strobe does not support it", token_to_kv_pool=pool)

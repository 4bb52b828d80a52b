# SPDX-License-Identifier: Apache-2.0
"""Random steps of a server of a model with MLA, as vLLM hands them to a backend, and their results in float64."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import reference
import torch
from buffers import Buffers
from strobe_vllm.mla.implementation import StrobeMLAImpl
from strobe_vllm.mla.metadata import StrobeMLAMetadataBuilder
from strobe_vllm.mla.prefill import StrobeMLAPrefill
from vllm.config import set_current_vllm_config
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata

LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
SCALE = (NOPE + ROPE) ** -0.5


class Projection(torch.nn.Module):
    """Keys and values of each head of latents, as vLLM's layer gives them; exact, as each is a latent's column."""

    def __init__(self, heads: int, dtype: torch.dtype, device: str):
        super().__init__()
        columns = torch.randint(LATENT, (heads * (NOPE + VALUE),))
        weight = torch.nn.functional.one_hot(columns, LATENT).to(dtype).to(device)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.columns = columns.to(device)

    def forward(self, latents: torch.Tensor) -> tuple[torch.Tensor, None]:
        return latents[..., self.columns], None


def configuration(server: "Server", prefill: StrobeMLAPrefill | None) -> SimpleNamespace:
    """What vLLM's builder and implementation read of a configuration."""
    layer = SimpleNamespace(
        q_lora_rank=None,
        kv_lora_rank=LATENT,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
        prefill_backend=prefill,
    )
    drafts = SimpleNamespace(num_speculative_tokens=server.drafts, parallel_drafting=False, method="ngram")
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=server.dtype,
            max_model_len=server.workspace // 8,
            get_num_attention_heads=lambda _: server.heads,
            get_head_size=lambda: LATENT + ROPE,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        cache_config=SimpleNamespace(block_size=server.block_size, cache_dtype=server.cache_dtype),
        scheduler_config=SimpleNamespace(max_num_seqs=1),
        attention_config=SimpleNamespace(use_prefill_query_quantization=False),
        compilation_config=SimpleNamespace(static_forward_context={"layer": layer}),
        speculative_config=drafts if server.drafts else None,
        use_v2_model_runner=False,
    )


def implementation(heads: int, projection: Projection | None = None, **options) -> StrobeMLAImpl:
    """A layer's, as vLLM makes it; `options` are in place of those of a plain layer."""
    plain = {
        "num_heads": heads,
        "head_size": LATENT + ROPE,
        "scale": SCALE,
        "num_kv_heads": 1,
        "alibi_slopes": None,
        "sliding_window": None,
        "kv_cache_dtype": "auto",
        "logits_soft_cap": None,
        "attn_type": AttentionType.DECODER,
        "kv_sharing_target_layer_name": None,
        "q_lora_rank": None,
        "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "qk_head_dim": NOPE + ROPE,
        "v_head_dim": VALUE,
        "kv_b_proj": projection,
        "indexer": None,
    }
    return StrobeMLAImpl(**plain | options)


@dataclass
class Server(Buffers):
    """A layer with its cache, and the buffers of a step that vLLM keeps."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    heads: int = 4
    block_size: int = 16
    layers: int = 1  # that lie in one block, of which this is the middle one
    drafts: int = 0  # decodes have up to so many queries more
    workspace: int = 8192  # rows of contexts that vLLM gathers at once, beside 4 blocks
    max_tokens: int = 512
    max_requests: int = 12
    max_blocks: int = 24
    seed: int = 0
    scale: float = 0.0  # of a cache in 8 bits

    def __post_init__(self):
        self.make_buffers()
        self.cache_dtype = "fp8" if self.scale else "auto"
        self.projection = Projection(self.heads, self.dtype, self.device)
        self.prefill = StrobeMLAPrefill(
            num_heads=self.heads,
            scale=SCALE,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=NOPE,
            qk_rope_head_dim=ROPE,
            v_head_dim=VALUE,
            vllm_config=None,
        )
        config = configuration(self, self.prefill)
        with set_current_vllm_config(config):
            self.impl = implementation(self.heads, self.projection, kv_cache_dtype=self.cache_dtype)
            spec = SimpleNamespace(block_size=self.block_size)
            self.builder = StrobeMLAMetadataBuilder(spec, ["layer"], config, torch.device(self.device))
        with torch.device(self.device):
            self.layer = SimpleNamespace(_k_scale=torch.tensor(self.scale or 1.0))
        self.cache = self.empty_cache()

    def empty_cache(self) -> torch.Tensor:
        """NaN where nothing was written; what is stored in 8 bits starts as its NaN, in bytes."""
        shape = (self.num_blocks, self.layers, self.block_size, LATENT + ROPE)
        cache = torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)[:, self.layers // 2]
        return cache.to(torch.float8_e4m3fn).view(torch.uint8) if self.scale else cache

    def elements(self, x: torch.Tensor) -> torch.Tensor:
        """x as a cache stores it."""
        return (x.float() / self.scale).clamp(-448, 448).to(torch.float8_e4m3fn) if self.scale else x

    def read(self, x: torch.Tensor) -> torch.Tensor:
        """x as a cache gives it back, in float64."""
        return self.elements(x).double() * self.layer._k_scale if self.scale else x.double()

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def write(self, cache: torch.Tensor, latents: torch.Tensor, rotated: torch.Tensor, slots: torch.Tensor):
        self.impl.do_kv_cache_update(latents, rotated.unsqueeze(1), cache, slots, self.cache_dtype, self.layer._k_scale)

    def step(self, lengths: list[tuple[int, int]], causal: bool = True, tokens: int = 0) -> "Step":
        """A step of requests with (context, queries), decodes first; the buffers are padded to `tokens`."""
        return Step(self, lengths, causal, tokens or sum(new for _, new in lengths))


class Step:
    """One step: metadata's inputs in the server's buffers, queries and new rows, and the results in float64."""

    def __init__(self, server: Server, lengths, causal, tokens):
        self.server, self.lengths, self.causal, self.tokens = server, lengths, causal, tokens
        blocks = server.shuffled_blocks()
        self.q = server.draw(tokens, server.heads, NOPE + ROPE)
        self.q_latent, self.q_rope = (server.draw(tokens, server.heads, columns) for columns in (LATENT, ROPE))
        self.latents, self.rotated = server.draw(tokens, LATENT), server.draw(tokens, ROPE)
        self.rows = []  # of each request, latent and rotated parts, context and new
        start = 0
        for index, (context, new) in enumerate(lengths):
            own = [blocks.pop() for _ in range(-(-(context + new) // server.block_size))]
            places = server.give_blocks(index, own)
            old = server.draw(context, LATENT), server.draw(context, ROPE)
            server.write(server.cache, *old, places[:context])
            server.slots[start : start + new] = places[context : context + new]
            mine = slice(start, start + new)
            self.rows.append([torch.cat([o, x[mine]]) for o, x in zip(old, (self.latents, self.rotated), strict=True)])
            start += new
        server.set_lengths(lengths)

    def common(self, requests: int | None = None, longest: int | None = None) -> CommonAttentionMetadata:
        return self.server.common(self, requests, longest)

    def forward(self, metadata) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's part of a step, as vLLM calls it: of decodes before their heads' matrices, and of prompts."""
        server, decodes = self.server, metadata.num_decode_tokens
        server.write(server.cache, self.latents, self.rotated, metadata.slot_mapping)
        cache = server.cache.view(torch.float8_e4m3fn) if server.scale else server.cache  # as vLLM hands it on
        latent = torch.empty(0)
        if decodes:
            q = self.q_latent[:decodes], self.q_rope[:decodes]
            latent, lse = server.impl.forward_mqa(q, cache, metadata, server.layer)
            assert lse is None
        prompts = torch.full_like(self.q[decodes:, :, :VALUE], torch.nan).flatten(1)
        if self.tokens > decodes:
            own = (x[decodes:] for x in (self.q, self.latents, self.rotated.unsqueeze(1)))
            server.impl.forward_mha(*own, cache, metadata, server.layer._k_scale, output=prompts)
        return latent, prompts.unflatten(1, (server.heads, VALUE))

    def check(self, results: tuple[torch.Tensor, torch.Tensor]):
        """Every row within what rounding the weights and the results can do; padding is zeros."""
        latent, prompts = results
        start, rows = 0, torch.zeros(0)
        for index, (_, new) in enumerate(self.lengths):
            mine = slice(start, start + new)
            if start < len(latent):
                rows, wanted, values = latent[mine], *self.of_decode(index, mine)
            else:
                rows, wanted, values = prompts[start - len(latent) :][:new], *self.of_prompt(index, mine)
            self._compare(rows, wanted, values, index)
            start += new
        assert not latent[start:].any()

    def _compare(self, rows: torch.Tensor, wanted: np.ndarray, values: np.ndarray, index: int):
        tolerance = (16 if self.server.dtype == torch.float32 else 2) * torch.finfo(self.server.dtype).eps
        error = np.abs(rows.double().cpu().numpy() - wanted).max()
        assert error <= tolerance * max(1.0, np.abs(values).max()), (index, self.lengths[index], error)

    def of_decode(self, index: int, mine: slice) -> tuple[np.ndarray, np.ndarray]:
        """Attention over the rows themselves, and its values."""
        latents, rotated = (self.server.read(x) for x in self.rows[index])
        q = torch.cat([self.q_latent[mine], self.q_rope[mine]], dim=-1)
        return self._reference(q, torch.cat([latents, rotated], dim=-1).unsqueeze(1), latents.unsqueeze(1))

    def of_prompt(self, index: int, mine: slice) -> tuple[np.ndarray, np.ndarray]:
        """Attention over keys and values of each head, and its values. Those of the context are out of the cache."""
        context = self.lengths[index][0]
        latents, rotated = (torch.cat([self.server.read(x[:context]), x[context:]]) for x in self.rows[index])
        projected = self.server.projection(latents)[0].unflatten(-1, (self.server.heads, NOPE + VALUE))
        nope, values = projected.split([NOPE, VALUE], dim=-1)
        keys = torch.cat([nope, rotated.unsqueeze(1).expand(-1, self.server.heads, -1)], dim=-1)
        return self._reference(self.q[mine], keys, values)

    def _reference(self, q, k, v) -> tuple[np.ndarray, np.ndarray]:
        q, k, v = (x.double().cpu().numpy()[None] for x in (q, k, v))
        return reference.attention(q, k, v, scale=SCALE, causal=self.causal)[0][0], v

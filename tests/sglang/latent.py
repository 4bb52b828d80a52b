# SPDX-License-Identifier: Apache-2.0
"""Random batches of models with Multi-head Latent Attention, in SGLang's pool of latent rows."""

from dataclasses import dataclass, field

import reference
import strobe
import torch
from pools import DEVICE, Server, Step, check_rows
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, KVWriteLoc, MLATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context


@dataclass
class LatentServer(Server):
    """The absorbed layer of a model, `attention`, and its layer over keys of its own, `own`."""

    latent: int = 512
    rope: int = 64
    nope: int = 128
    value: int = 128
    is_hybrid: bool = False  # with layers that are not attention, so that the pool counts its own
    heads_kv: int = field(default=1, init=False)

    def __post_init__(self):
        self.head_dim, self.head_dim_v = self.latent + self.rope, self.latent
        super().__post_init__()
        self.attention.scaling = (self.nope + self.rope) ** -0.5
        self.own = RadixAttention(
            self.heads,
            self.nope + self.rope,
            self.attention.scaling,
            self.heads,
            self.layer_id,
            v_head_dim=self.value,
        )

    def runner(self, **changes):
        return super().runner(**{"use_mla_backend": True} | changes)

    def _make_pool(self):
        pool = MLATokenToKVPool(
            self.size,
            page_size=self.page_size,
            dtype=self.stored,
            kv_lora_rank=self.latent,
            qk_rope_head_dim=self.rope,
            layer_num=1,
            device=DEVICE,
            enable_memory_saver=False,
        )
        rows = pool.kv_buffer[0].view(self.stored)
        rows.copy_(torch.full(rows.shape, torch.nan))
        return self._hybrid(pool) if self.is_hybrid else pool

    def _hybrid(self, pool: MLATokenToKVPool) -> HybridLinearKVPool:
        return HybridLinearKVPool(
            size=self.size,
            dtype=self.stored,
            page_size=self.page_size,
            head_num=1,
            head_dim=self.head_dim,
            full_attention_layer_ids=[self.layer_id],
            device=DEVICE,
            mamba_pool=None,
            use_mla=True,
            kv_lora_rank=self.latent,
            qk_rope_head_dim=self.rope,
            full_kv_pool=pool,
        )

    def step(self, lengths, mode, encoders=None) -> "LatentStep":
        return LatentStep(self, lengths, mode)


class LatentStep(Step):
    """A batch whose values are the first columns of its keys."""

    server: LatentServer

    def __init__(self, server: LatentServer, lengths, mode: str):
        super().__init__(server, lengths, mode)
        self.v = self.k[..., : server.latent]
        self.values = [keys[..., : server.latent] for keys in self.keys]

    def _write(self, slots, k, v):
        """As the model writes the rows of prompts: without a scale."""
        self.server.pool.set_kv_buffer(self.server.attention, KVWriteLoc(slots), k, None)

    def forward_apart(self, batch: ForwardBatch) -> torch.Tensor:
        """As `forward`, with the rotated columns of q and of the new rows apart from the latent ones."""
        latent, rope = self.server.latent, self.server.rope
        q = self.q.view(-1, self.server.heads, latent + rope)
        parts = {"q_rope": q[..., latent:], "k_rope": self.k[..., latent:].clone()}
        new = self.k[..., :latent].clone()
        with forward_context(ForwardContext(attn_backend=self.server.backend)):
            return self.server.attention(q[..., :latent].contiguous(), new, new, batch, **parts)


class Prompts:
    """Requests with (context, queries) for the layer that is not absorbed. The model makes its keys of latent rows."""

    def __init__(self, server: LatentServer, lengths: list[tuple[int, int]]):
        self.server, self.lengths = server, lengths
        self.batch = server.step(lengths, "mixed").batch()
        self.q = server.draw(sum(new for _, new in lengths), server.heads, server.nope + server.rope)
        self.keys = [server.draw(sum(both), server.heads, server.nope + server.rope) for both in lengths]
        # Values lie behind the parts of keys that the same product makes, which nobody reads here.
        self.products = [server.draw(sum(both), server.heads, server.nope + server.value) for both in lengths]

    def forward(self, spans: list[slice], **arguments):
        """The layer over these keys of each request."""
        k = torch.cat([keys[span] for keys, span in zip(self.keys, spans, strict=True)])
        products = torch.cat([x[span] for x, span in zip(self.products, spans, strict=True)])
        v = products[..., self.server.nope :]
        with forward_context(ForwardContext(attn_backend=self.server.backend)):
            return self.server.own(self.q, k, v, self.batch, save_kv_cache=False, **arguments)

    def run(self, **arguments):
        """Over the step's own keys."""
        return self.forward([slice(context, None) for context, _ in self.lengths], **arguments)

    def run_in_one_shot(self) -> torch.Tensor:
        self.batch.mha_one_shot = True
        self.batch.mha_return_lse = False
        self.batch.set_attn_attend_prefix_cache(False)
        return self.forward([slice(None)] * len(self.lengths))

    def run_in_chunks(self, size: int) -> torch.Tensor:
        """The step's own keys, then chunks of `size` of the contexts, merged by their LSE."""
        batch = self.batch
        batch.mha_return_lse = True
        batch.set_attn_attend_prefix_cache(False)
        parts = [self.run()]
        batch.set_attn_attend_prefix_cache(True)
        count = -(-max(context for context, _ in self.lengths) // size)
        starts, lens = batch.get_prefix_chunk_seq_lens(batch.extend_prefix_lens, count, size)
        batch.prefix_chunk_cu_seq_lens = torch.nn.functional.pad(lens.cumsum(1), (1, 0)).int()
        batch.prefix_chunk_max_seq_lens = lens.max(1).values.tolist()
        for chunk in range(count):
            batch.set_prefix_chunk_idx(chunk)
            ends = (starts[chunk] + lens[chunk]).tolist()
            parts.append(self.forward([slice(*span) for span in zip(starts[chunk].tolist(), ends, strict=True)]))
        return strobe.merge([(out, lse.T.contiguous()) for out, lse in parts])[0]

    def check(self, out: torch.Tensor):
        server, start = self.server, 0
        out = out.view(-1, server.heads, server.value)
        for keys, products, (_, new) in zip(self.keys, self.products, self.lengths, strict=True):
            q = self.q[start : start + new]
            values = products[..., server.nope :].double().cpu().numpy()
            options = {"scale": server.own.scaling, "causal": True}
            wanted, _, _ = reference.attention(
                q.double().cpu().numpy()[None], keys.double().cpu().numpy()[None], values[None], **options
            )
            check_rows(out[start : start + new], wanted[0], values, server.dtype)
            start += new

# SPDX-License-Identifier: Apache-2.0
"""Random batches in SGLang's own pools, handed to a backend as its model runner does, and their results in float64."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import reference
import torch
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from strobe_sglang import create

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLAIN_DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
FULL_LAYER, WINDOW_LAYER = 0, 1  # of a pool that has both
MODES = {"decode": ForwardMode.DECODE, "mixed": ForwardMode.MIXED, "verify": ForwardMode.TARGET_VERIFY}
MIXED = [(0, 37), (120, 1), (200, 1), (64, 20), (0, 1), (15, 1), (16, 16), (300, 5)]
DECODES = [(0, 1), (1, 1), (15, 1), (16, 1), (120, 1), (333, 1)]
REPLAYS = {
    "decode": ([(1, 1)] * 6, [DECODES, [(300, 1)] * 6, DECODES[::-1]]),
    "mixed": ([(0, 40), (0, 5), (9, 19)], [[(0, 64), (0, 0), (0, 0)], [(200, 1), (31, 31), (0, 32)]]),
    "verify": ([(1, 4)] * 3, [[(200, 4), (1, 4), (17, 4)], [(3, 4)] * 3]),
}
"""Of captured steps: the capture's batch, and those of replays."""


@dataclass
class Server:
    """A layer, the pools of its model, and the backend. `layer` are RadixAttention's arguments, `config` SGLang's."""

    dtype: torch.dtype = PLAIN_DTYPE
    heads: int = 8
    heads_kv: int = 2
    head_dim: int = 64
    head_dim_v: int = 64
    page_size: int = 1
    has_window_pool: bool = False
    layer_id: int = FULL_LAYER
    layer: dict = field(default_factory=dict)
    sinks: list[float] | None = None
    is_float8: bool = False
    scales: tuple[float, float] | None = None
    chunk: int = 0
    config: dict = field(default_factory=dict)
    requests: int = 12
    context: int = 384
    seed: int = 0

    def __post_init__(self):
        torch.manual_seed(self.seed)
        self.random = random.Random(self.seed)
        self.stored = torch.float8_e4m3fn if self.is_float8 else self.dtype
        # The first page stands for none, as in SGLang.
        self.size = self.requests * self.context // self.page_size * self.page_size
        self.rows = ReqToTokenPool(self.requests, self.context, DEVICE, False)
        self.pool = self._make_pool()
        self.attention = RadixAttention(
            self.heads,
            self.head_dim,
            self.head_dim**-0.5,
            self.heads_kv,
            self.layer_id,
            v_head_dim=self.head_dim_v,
            use_irope=self.chunk > 0,
            **self.layer,
        )
        if self.scales is not None:
            self.attention.k_scale, self.attention.v_scale = map(torch.tensor, self.scales)
        with get_context().override_server_args(device=DEVICE, **self.config):
            self.backend = create(self.runner())

    def runner(self, **changes):
        """What the backend reads of SGLang's model runner."""
        model = SimpleNamespace(
            head_dim=self.head_dim,
            v_head_dim=self.head_dim_v,
            context_len=self.context,
            is_local_attention_model=self.chunk > 0,
        )
        translator = KVIndexTranslator(
            req_to_token=self.rows.req_to_token,
            token_to_kv_pool_allocator=None,
            token_to_kv_pool=self.pool,
            page_size=self.page_size,
            device=DEVICE,
        )
        fields = {
            "device": DEVICE,
            "dtype": self.dtype,
            "page_size": self.page_size,
            "kv_cache_dtype": self.stored,
            "kv_cache_dtype_str": "fp8_e4m3" if self.is_float8 else "auto",
            "req_to_token_pool": self.rows,
            "token_to_kv_pool": self.pool,
            "kv_index_translator": translator,
            "use_mla_backend": False,
            "is_draft_worker": False,
            "attention_chunk_size": self.chunk or None,
            "model_config": model,
        }
        return SimpleNamespace(**fields | changes)

    def _make_pool(self):
        """NaN where nothing was written; 8 bits start as their NaN."""
        sizes = {"head_num": self.heads_kv, "head_dim": self.head_dim, "v_head_dim": self.head_dim_v}
        common = {"page_size": self.page_size, "dtype": self.stored, "device": DEVICE, "enable_memory_saver": False}
        if not self.has_window_pool:
            pool = MHATokenToKVPool(self.size, layer_num=1, **common, **sizes)
            pools = [pool]
        else:
            layers = {"swa_attention_layer_ids": [WINDOW_LAYER], "full_attention_layer_ids": [FULL_LAYER]}
            pool = SWAKVPool(self.size, self.size, **layers, **common, **sizes)
            pool.register_mapping(self._shuffled_slots())
            pools = [pool.full_kv_pool, pool.swa_kv_pool]
        for one in pools:
            for buffer in (*one.k_buffer, *one.v_buffer):
                buffer.view(self.stored).copy_(torch.full(buffer.shape, torch.nan))
        return pool

    def _shuffled_slots(self) -> torch.Tensor:
        """Where the slots of one pool are in the other: other pages, the first of which stays, and -1 of -1."""
        pages = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(self.size // self.page_size)])
        slots = pages[:, None] * self.page_size + torch.arange(self.page_size)
        return torch.cat([slots.flatten(), torch.tensor([-1])])

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(self.dtype)

    def step(self, lengths: list[tuple[int, int]], mode: str, encoders: list[int] | None = None) -> "Step":
        """A step of requests with (context, queries): their contexts are in the pool, their new keys are not yet."""
        return Step(self, lengths, mode, encoders)


class Step:
    """A batch as SGLang makes it, its queries, keys and values, and the result in float64."""

    def __init__(self, server: Server, lengths, mode: str, encoders=None):
        self.server, self.lengths, self.mode, self.encoders = server, lengths, mode, encoders
        self.tree = None  # bool [requests, drafts, drafts]
        self.images = {}  # first and last positions of images whose tokens see each other, by request
        tokens = sum(new for _, new in lengths)
        self.q = server.draw(tokens, server.heads * server.head_dim)
        self.k = server.draw(tokens, server.heads_kv, server.head_dim)
        self.v = server.draw(tokens, server.heads_kv, server.head_dim_v)
        self.keys, self.values, self.encoder_keys, self.encoder_values, slots = [], [], [], [], []
        self.indices = torch.tensor(server.random.sample(range(1, server.requests + 1), len(lengths)))
        pages = list(range(1, server.size // server.page_size + 1))
        server.random.shuffle(pages)
        start = 0
        for request, (index, (context, new)) in enumerate(zip(self.indices.tolist(), lengths, strict=True)):
            encoder = encoders[request] if encoders else 0
            mine = self._slots_of(pages, encoder + context + new)
            server.rows.req_to_token[index, : len(mine)] = mine.int()
            old = [server.draw(encoder + context, *x.shape[1:]) for x in (self.k, self.v)]
            self._write(mine[: encoder + context], *old)
            rows = slice(start, start + new)
            for whole, before, own, x, scale in (
                (self.keys, self.encoder_keys, self.k, old[0], 0),
                (self.values, self.encoder_values, self.v, old[1], 1),
            ):
                before.append(self._kept(x[:encoder], scale))
                whole.append(self._kept(torch.cat([x[encoder:], own[rows]]), scale))
            slots.append(mine[encoder + context :])
            start += new
        self.slots = torch.cat(slots)

    def _slots_of(self, pages: list[int], count: int) -> torch.Tensor:
        size = self.server.page_size
        taken = torch.tensor([pages.pop() for _ in range(-(-count // size))], dtype=torch.int64)
        return (taken[:, None] * size + torch.arange(size)).flatten()[:count]

    def _write(self, slots, k, v):
        server = self.server
        window = server.pool.translate_loc_from_full_to_swa(slots) if server.has_window_pool else None
        scales = (server.attention.k_scale, server.attention.v_scale) if server.is_float8 else ()
        server.pool.set_kv_buffer(server.attention, KVWriteLoc(slots, window), k.clone(), v.clone(), *scales)

    def _kept(self, x: torch.Tensor, which: int) -> np.ndarray:
        """x as the cache gives it back."""
        server = self.server
        if not server.is_float8:
            return x.double().cpu().numpy()
        if not server.scales:
            return x.to(torch.float8_e4m3fn).double().cpu().numpy()
        # As SGLang divides, by a tensor: a GPU multiplies by the reciprocal of a number.
        scale = (server.attention.k_scale, server.attention.v_scale)[which]
        return (x / scale).to(torch.float8_e4m3fn).double().cpu().numpy() * scale.item()

    def batch(self) -> ForwardBatch:
        before = torch.tensor([context for context, _ in self.lengths])
        new = torch.tensor([new for _, new in self.lengths])
        is_verify = self.mode == "verify"
        batch = ForwardBatch(
            forward_mode=MODES[self.mode],
            batch_size=len(self.lengths),
            input_ids=torch.zeros(len(self.q), dtype=torch.int64),
            req_pool_indices=self.indices,
            seq_lens=before if is_verify else before + new,
            out_cache_loc=self.slots,
            seq_lens_sum=int((before + new).sum()),
        )
        batch.seq_lens_cpu = batch.seq_lens.cpu()
        batch.positions = torch.zeros(len(self.q), dtype=torch.int64)
        if self.mode == "mixed":
            batch.extend_prefix_lens, batch.extend_seq_lens = before, new
            batch.extend_seq_lens_cpu = new.tolist()
        if is_verify:
            batch.spec_info = NgramVerifyInput(custom_mask=self._mask(), draft_token_num=self.tree.shape[-1])
        if self.encoders:
            batch.encoder_lens = torch.tensor(self.encoders)
        return batch

    def _mask(self) -> torch.Tensor:
        """Of the tree as NGRAM gives it: on GPUs with the columns of contexts."""
        return self.tree.flatten() if DEVICE == "cpu" else self.wide_mask()

    def wide_mask(self) -> torch.Tensor:
        """[drafts, context + drafts] of each request in turn."""
        drafts = self.tree.shape[-1]
        contexts = [torch.ones(drafts, context, dtype=torch.bool) for context, _ in self.lengths]
        return torch.cat([torch.cat(pair, 1).flatten() for pair in zip(contexts, self.tree, strict=True)])

    def forward(self, batch: ForwardBatch, **arguments) -> torch.Tensor:
        """The layer's part of a step, as a model calls it. Cross-attention's keys are those of the encoder, written."""
        server = self.server
        is_cross = server.attention.is_cross_attention
        if server.sinks is not None:
            arguments["sinks"] = torch.tensor(server.sinks, dtype=server.dtype)
        new = (None, None) if is_cross else (self.k.clone(), self.v.clone())
        with forward_context(ForwardContext(attn_backend=server.backend)):
            return server.attention(self.q, *new, batch, **arguments)

    def run(self) -> torch.Tensor:
        batch = self.batch()
        self.server.backend.init_forward_metadata(batch)
        return self.forward(batch)

    def check(self, out: torch.Tensor):
        server, start = self.server, 0
        out = out.view(-1, server.heads, server.head_dim_v)
        for request, (_, new) in enumerate(self.lengths):
            rows = slice(start, start + new)
            q = self.q[rows].view(new, server.heads, server.head_dim)
            wanted, _, values = self.reference(request, q)
            check_rows(out[rows], wanted[0], values, server.dtype)
            start += new

    def reference(self, request: int, q: torch.Tensor):
        """o [1, queries, heads, head_dim_v] and lse [1, heads, queries] of a request's queries; and its values."""
        server, layer = self.server, self.server.attention
        is_cross = layer.is_cross_attention
        of = (self.encoder_keys, self.encoder_values) if is_cross else (self.keys, self.values)
        k, v = (x[request] for x in of)
        causal = not is_cross and layer.attn_type == AttentionType.DECODER
        window = (-1, -1)
        if not is_cross and layer.sliding_window_size >= 0:
            window = (layer.sliding_window_size, 0 if causal else layer.sliding_window_size)
        options = {"scale": layer.scaling, "causal": causal, "window": window, "chunk": server.chunk}
        options["softcap"] = layer.logit_cap
        if server.sinks is not None:
            options["sink"] = torch.tensor(server.sinks).to(server.dtype).double().cpu().numpy()
        if self.tree is not None:
            visible = np.ones((len(q), len(k)), bool)
            visible[:, len(k) - len(q) :] = self.tree[request].cpu().numpy()
            options |= {"causal": False, "bias": np.where(visible, 0.0, -np.inf)[None, None]}
        if request in self.images:
            options |= {"causal": False, "window": (-1, -1), "bias": self._bias_of_images(request, len(q), len(k))}
        o, lse, _ = reference.attention(q.double().cpu().numpy()[None], k[None], v[None], **options)
        return o, lse, v

    def _bias_of_images(self, request: int, queries: int, keys: int) -> np.ndarray:
        """0 where causal or both in one image, and within the window; -inf elsewhere."""
        key = np.arange(keys)
        query = key[keys - queries :, None]
        visible = key <= query
        for first, last in self.images[request]:
            visible |= (first <= query) & (query <= last) & (first <= key) & (key <= last)
        left = self.server.attention.sliding_window_size
        if left >= 0:
            visible &= query - key <= left
        return np.where(visible, 0.0, -np.inf)[None, None]


def check_rows(out: torch.Tensor, wanted: np.ndarray, values: np.ndarray, dtype: torch.dtype):
    """Every row of a request is within what rounding the weights and the result can do."""
    tolerance = (16 if dtype == torch.float32 else 2) * torch.finfo(dtype).eps
    error = np.abs(out.double().cpu().numpy() - wanted).max(initial=0)
    assert error <= tolerance * max(1.0, np.abs(values).max(initial=0)), (wanted.shape, values.shape, error)


def draft_trees(requests, drafts, seed):
    """[requests, drafts, drafts] bool: a draft sees itself and its ancestors, the first of which is the last token."""
    draw = random.Random(seed)
    masks = torch.zeros(requests, drafts, drafts, dtype=torch.bool)
    for mask in masks:
        for token in range(drafts):
            if token:
                mask[token] = mask[draw.randrange(token)]
            mask[token, token] = True
    return masks


def check_replays(server, mode):
    """A step that is captured once gives the next batches' results, too."""
    backend = server.backend
    backend.init_cuda_graph_state(server.requests, 64)
    captured, batches = REPLAYS[mode]

    def step_of(lengths):
        step = server.step(lengths, mode)
        step.tree = draft_trees(len(lengths), 4, seed=len(lengths)) if mode == "verify" else None
        return step

    first = step_of(captured)
    batch = first.batch()
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    replay = (graph_of if DEVICE == "cuda" else stand_in_for_a_graph)(first, batch)
    for lengths in batches:
        step = step_of(lengths)
        batch = step.batch()
        batch.seq_lens_cpu = batch.extend_seq_lens_cpu = None  # as with overlapping schedules: the host does not know
        backend.init_forward_metadata_out_graph(batch)
        step.check(replay(step, batch))


def stand_in_for_a_graph(first: Step, _):
    """Of CPUs: a graph keeps the tensors of its capture and the bounds on queries."""
    backend = first.server.backend
    captured = backend.forward_metadata

    def replay(step: Step, batch: ForwardBatch) -> torch.Tensor:
        backend.forward_metadata = captured
        return step.forward(batch)

    return replay


def graph_of(first: Step, first_batch: ForwardBatch):
    """The layer in a CUDA graph, whose inputs are copied to where the capture's were, as SGLang's runner does."""
    first.forward(first_batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = first.forward(first_batch)

    def replay(step: Step, batch: ForwardBatch) -> torch.Tensor:
        for kept, new in (
            (first.q, step.q),
            (first.k, step.k),
            (first.v, step.v),
            (first_batch.out_cache_loc, batch.out_cache_loc),
        ):
            kept.zero_()[: len(new)].copy_(new)  # slot 0 is nobody's
        graph.replay()
        return out[: len(step.q)]

    return replay


def check_the_same_bits_alone(server, step):
    """A request has the same bits alone and in a batch, and its last query as it would have as a decode."""
    whole = step.run()
    step.check(whole)
    start, (q, slots, lengths, indices) = 0, (step.q, step.slots, step.lengths, step.indices)
    for request, (context, new) in enumerate(lengths):
        for first in {0, new - 1}:
            rows = slice(start + first, start + new)
            step.q, step.slots, step.indices = q[rows], slots[rows], indices[request : request + 1]
            step.lengths = [(context + first, new - first)]
            batch = step.batch()
            server.backend.init_forward_metadata(batch)
            alone = server.backend.forward_extend(step.q, None, None, server.attention, batch)
            assert torch.equal(alone, whole[rows])
        start += new

# SPDX-License-Identifier: Apache-2.0
"""Random steps of a server, as vLLM hands them to a backend, and their results in float64."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import reference
import torch
from buffers import Buffers
from strobe_vllm.implementation import StrobeAttentionImpl
from strobe_vllm.metadata import StrobeMetadataBuilder
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata

# Physical orders of a cache [blocks, heads_kv, block_size, columns], and the layers that lie between blocks.
LAYOUTS = {"NHD": ((0, 2, 1, 3), 1), "HND": ((0, 1, 2, 3), 1), "NHD, blocks of all layers": ((0, 2, 1, 3), 3)}


def captured(run):
    """What repeats the call: the call itself on a CPU, a graph on a GPU."""
    run()
    if not torch.cuda.is_available():
        return run
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@dataclass
class Layer:
    """What an implementation reads of its layer."""

    _k_scale: torch.Tensor
    _v_scale: torch.Tensor


@dataclass
class Server(Buffers):
    """A layer with its cache, the buffers of a step that vLLM keeps, and what is in the cache, in float64."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    heads: int = 8
    heads_kv: int = 2
    head_size: int = 64
    block_size: int = 16
    layout: str = "NHD"
    mode: CUDAGraphMode = CUDAGraphMode.FULL
    max_tokens: int = 256
    max_requests: int = 12
    max_blocks: int = 24
    seed: int = 0
    scales: tuple[float, ...] = ()
    options: dict = field(default_factory=dict)
    has_spans: bool = False  # the model has tokens that may see each other
    rswa_window: int | None = None
    is_checked: bool = True  # keys and values are kept for the reference

    def __post_init__(self):
        self.make_buffers()
        arguments = dict(self.options)
        if self.scales:
            arguments["kv_cache_dtype"] = "fp8"
        if "sinks" in arguments:
            arguments["sinks"] = torch.tensor(arguments["sinks"], device=self.device, dtype=self.dtype)
        with torch.device(self.device):
            self.impl = StrobeAttentionImpl(
                self.heads, self.head_size, self.head_size**-0.5, self.heads_kv, **arguments
            )
            self.impl.process_weights_after_loading(self.dtype)
            scale = torch.tensor(self.scales or 1.0)
            self.layer = Layer(scale, scale * 0.5)
        spec = SimpleNamespace(block_size=self.block_size)
        layers = {"layer": SimpleNamespace(impl=self.impl)}
        config = SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_mode=self.mode, static_forward_context=layers),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=self.max_tokens),
            model_config=SimpleNamespace(is_mm_prefix_lm=self.has_spans, rswa_window=self.rswa_window),
        )
        self.builder = StrobeMetadataBuilder(spec, ["layer"], config, torch.device(self.device))
        self._make_cache()

    def _make_cache(self):
        """NaN where nothing was written; what is stored in 8 bits starts as its NaN."""
        logical = (self.num_blocks, self.heads_kv, self.block_size, 2 * self.head_size)
        order, layers = LAYOUTS[self.layout]
        physical = [logical[axis] for axis in order]
        pool = torch.full((physical[0], layers, *physical[1:]), torch.nan, dtype=self.dtype, device=self.device)
        cache = pool[:, layers // 2]
        if self.scales:
            cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
        self.cache = cache.permute([order.index(axis) for axis in range(4)])

    def stored(self, x: torch.Tensor, scale: torch.Tensor) -> np.ndarray:
        """x [tokens, heads_kv, head_size] as the cache gives it back, in float64."""
        if not self.scales:
            return x.double().cpu().numpy()
        scale = scale.view(1, -1, 1)
        return ((x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).double() * scale).cpu().numpy()

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def step(self, lengths: list[tuple[int, int]], causal=True, tokens: int = 0, shared: int = 0) -> "Step":
        """A step of requests with (context, queries): their contexts are in the cache, their new keys are not yet.

        The buffers are padded to `tokens`. The first `shared` tokens, whole blocks, are those of all requests.
        """
        return Step(self, lengths, causal, tokens or sum(new for _, new in lengths), shared)


class Step:
    """One step: metadata's inputs in the server's buffers, queries, keys and values, and the result in float64."""

    def __init__(self, server: Server, lengths, causal, tokens, shared):
        self.server, self.lengths, self.causal = server, lengths, causal
        self.spans = None
        self.optimism = 0  # by which the host overestimates lengths
        self.tokens = tokens
        blocks = server.shuffled_blocks()
        same = [blocks.pop() for _ in range(shared // server.block_size)]
        self.keys, self.values = [], []
        prefix = tuple(server.draw(shared, server.heads_kv, server.head_size) for _ in "kv")
        self.q = server.draw(tokens, server.heads, server.head_size)
        self.k, self.v = (server.draw(tokens, server.heads_kv, server.head_size) for _ in "kv")
        start = 0
        for index, (context, new) in enumerate(lengths):
            need = -(-(context + new) // server.block_size)
            own = same + [blocks.pop() for _ in range(need - len(same))]
            places = server.give_blocks(index, own)
            old = [torch.cat([p, server.draw(context - shared, server.heads_kv, server.head_size)]) for p in prefix]
            server.impl.do_kv_cache_update(server.layer, *old, server.cache, places[:context])
            server.slots[start : start + new] = places[context : context + new]
            rows = slice(start, start + new)
            for whole, x, mine, scale in (
                (self.keys, old[0], self.k, server.layer._k_scale),
                (self.values, old[1], self.v, server.layer._v_scale),
            ):
                if server.is_checked:
                    whole.append(server.stored(torch.cat([x, mine[rows]]), scale))
            start += new
        server.set_lengths(lengths)
        if isinstance(causal, list):
            self.causal = server.set_causal(causal)

    def with_spans(self, spans: dict[int, list[tuple[int, int]]]) -> "Step":
        """The step with spans of tokens that see each other, by request."""
        self.spans = spans
        return self

    def common(self, requests: int | None = None, longest: int | None = None) -> CommonAttentionMetadata:
        common = self.server.common(self, requests, longest, mm_req_doc_ranges=self.spans)
        common.seq_lens_cpu_upper_bound = common.seq_lens_cpu_upper_bound + self.optimism  # a tensor of its own
        return common

    def forward(self, metadata, out: torch.Tensor | None = None) -> torch.Tensor:
        """The layer's part of a step, as vLLM calls it."""
        server = self.server
        out = torch.full_like(self.q, torch.nan) if out is None else out
        server.impl.do_kv_cache_update(server.layer, self.k, self.v, server.cache, metadata.slot_mapping)
        server.impl.forward(server.layer, self.q, self.k, self.v, server.cache, metadata, out)
        return out

    def check(self, out: torch.Tensor):
        """Every row within what rounding the weights and the result can do; padding is zeros."""
        start = 0
        tolerance = (16 if self.server.dtype == torch.float32 else 2) * torch.finfo(self.server.dtype).eps
        for index, (_, new) in enumerate(self.lengths):
            rows = slice(start, start + new)
            wanted = self._reference(index, self.q[rows])
            error = np.abs(out[rows].double().cpu().numpy() - wanted).max()
            assert error <= tolerance * max(1.0, np.abs(self.values[index]).max()), (index, self.lengths[index], error)
            start += new
        assert not out[start : self.tokens].any()

    def _reference(self, index: int, q: torch.Tensor) -> np.ndarray:
        options = self.server.options
        causal = bool(self.causal[index]) if isinstance(self.causal, torch.Tensor) else self.causal
        window = options.get("sliding_window")
        sink = options.get("sinks")
        spans, bias = self.spans.get(index) if self.spans else None, None
        if spans is not None:
            bias = self._bias_of_spans(index, len(q), spans, window)
            causal, window = False, None
        o, _, _ = reference.attention(
            q.double().cpu().numpy()[None],
            self.keys[index][None],
            self.values[index][None],
            causal=causal,
            window=(-1, -1) if window is None else (window - 1, 0 if causal else window - 1),
            softcap=options.get("logits_soft_cap") or 0.0,
            alibi_slopes=options.get("alibi_slopes"),
            sink=None if sink is None else torch.tensor(sink).to(self.server.dtype).double().numpy(),
            bias=bias,
        )
        return o[0]

    def _bias_of_spans(self, index: int, queries: int, spans, window: int | None) -> np.ndarray:
        """0 where causal or both in one span, and within the window; vLLM leaves longer spans out, or cuts them so."""
        key = np.arange(len(self.keys[index]))
        query = key[len(key) - queries :, None]
        visible = key <= query
        for first, last in spans:
            visible |= (first <= query) & (query <= last) & (first <= key) & (key <= last) & (first < last)
        if window is not None:
            visible &= query - key < window
        return np.where(visible, 0.0, -np.inf)[None, None]

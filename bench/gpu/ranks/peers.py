# SPDX-License-Identifier: Apache-2.0
"""What others make of the same calls: ring-flash-attn's zigzag, and PyTorch's own context_parallel."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import strobe.torch
import torch
from ranks.calls import CAUSAL, Sizes, draw, passes, with_gradients
from ranks.checks import LARGEST_ERROR
from ranks.group import Ranks
from ranks.times import Times
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Peers:
    """Of causal sequences, each rank with two slices of them."""

    def __init__(self, ranks: Ranks, sizes: Sizes, times: Times, ring: str | None) -> None:
        self.ranks, self.sizes, self.times = ranks, sizes, times
        self.narrow = replace(
            sizes, dtype=torch.bfloat16
        )  # ring-flash-attn's gradients of float32 overwrite their sums
        if ring:
            sys.path.insert(0, ring)

    def zigzag(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's slices of a whole tensor."""
        slices, rank = x.chunk(2 * self.ranks.world, dim), self.ranks.rank
        return torch.cat([slices[rank], slices[2 * self.ranks.world - 1 - rank]], dim).contiguous()

    def ring(self, tokens: int) -> dict[str, Any]:
        """ring-flash-attn on the flash_attn that can be imported: with Strobe's drop-in it runs Strobe's kernels."""
        try:
            function = _zigzag_function()
        except ImportError as error:
            return {"scheme": "ring-flash-attn", "tokens": tokens, "left out": str(error)}

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return function(q, k, v, causal=True)

        error = self._error(attention)
        parts = draw(self.narrow, tokens, self.ranks.device)
        measured = {name: self.ranks.milliseconds(call) for name, call in passes(attention, parts, {}).items()}
        return self.times.cell(CAUSAL, tokens, "ring-flash-attn", "zigzag", measured) | {"error": error}

    def _error(self, attention: Callable[..., Tensor]) -> str:
        """Of out and gradients beside one GPU's, in the largest of each: whether what is timed is attention."""
        whole = draw(self.narrow, 2 * self.sizes.checked, self.ranks.device)
        wanted = with_gradients(strobe.torch.attention, whole, {"causal": True})
        mine = with_gradients(attention, [self.zigzag(x) for x in whole], {})
        found = [
            ((a.float() - self.zigzag(b).float()).abs().max() / b.float().abs().max()).item()
            for a, b in zip(mine, wanted, strict=True)
        ]
        worst = max(self.ranks.largest(found))
        return f"{worst:.1e}" + ("" if worst <= LARGEST_ERROR[self.narrow.dtype] else ", WRONG")

    def pytorch(self, tokens: int, method: str, backend: str) -> dict[str, Any]:
        """context_parallel, which has as many key heads as query heads: K and V are repeated."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method
        from torch.nn.attention import SDPBackend, sdpa_kernel

        group = self.sizes.heads // self.sizes.heads_kv
        q, k, v, d_o = draw(self.sizes, tokens * self.ranks.world, self.ranks.device)
        tensors = [q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), d_o]
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]
        del q, k, v, d_o
        set_rotate_method(method)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, is_causal=True)

        mesh = init_device_mesh(self.ranks.device.type, (self.ranks.world,))
        buffers = {"buffers": tensors, "buffer_seq_dims": [2] * 4, "no_restore_buffers": set(tensors)}
        with context_parallel(mesh, **buffers), sdpa_kernel(getattr(SDPBackend, backend)):
            measured = {name: self.ranks.milliseconds(call) for name, call in passes(attention, tensors, {}).items()}
        return self.times.cell(
            CAUSAL, tokens, f"PyTorch, {method}, {backend.partition('_')[0].lower()}", "zigzag", measured
        )


def _zigzag_function() -> Callable[..., Tensor]:
    adapters = ModuleType("ring_flash_attn.adapters")  # its own are for older versions of transformers
    for name in ("hf_adapter", "substitute_hf_flash_attn", "update_ring_flash_attn_params"):
        setattr(adapters, name, None)
    sys.modules["ring_flash_attn.adapters"] = adapters
    from ring_flash_attn import zigzag_ring_flash_attn_func

    return zigzag_ring_flash_attn_func

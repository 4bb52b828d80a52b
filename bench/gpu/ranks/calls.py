# SPDX-License-Identifier: Apache-2.0
"""The calls that ranks share: tensors, options and what one GPU computes alone."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from strobe.torch.context_parallel.keys import Sight
from strobe.torch.context_parallel.model import CallSize
from torch import Tensor

SCHEMES = ("gather", "all_to_all", "ring")


@dataclass(frozen=True)
class Sizes:
    """Of a run."""

    heads: int = 32
    heads_kv: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    tokens: tuple[int, ...] = (8192, 32768, 131072)  # a GPU
    window: int = 4096
    checked: int = 4096
    cache: int = 1 << 22
    training: int = 131072

    @property
    def call(self) -> CallSize:
        return CallSize(
            1, self.heads, self.heads_kv, self.head_dim, self.head_dim, self.dtype.itemsize, Sight(causal=True)
        )


TINY = Sizes(4, 2, 32, torch.float32, (96, 192), 64, 96, 1 << 10, 256)
"""Of a run on the CPU, which shows that the program works."""


@dataclass(frozen=True)
class Mask:
    """Which keys are seen, and the layout that is for it."""

    name: str
    layout: str = "zigzag"
    causal: bool = True
    windowed: bool = False
    packed: bool = False
    deterministic: bool = False

    def options(self, sizes: Sizes) -> dict[str, Any]:
        options: dict[str, Any] = {"causal": True} if self.causal else {}
        if self.windowed:
            options["window"] = (sizes.window - 1, 0)
        if self.deterministic:
            options["deterministic"] = True
        return options

    def sight(self, sizes: Sizes) -> Sight:
        return Sight(self.causal, sizes.window - 1, 0) if self.windowed else Sight(self.causal)


CAUSAL = Mask("causal")
DETERMINISTIC = Mask("deterministic", deterministic=True)
DOCUMENTS = Mask("documents", "documents", packed=True)
WINDOW = Mask("window", "contiguous", windowed=True)
FULL = Mask("full", "contiguous", causal=False)


def draw(sizes: Sizes, rows: int, device: torch.device, packed: bool = False) -> list[Tensor]:
    """q, k, v and the gradient of out, the same on every rank."""
    generator = torch.Generator(device=device).manual_seed(rows)
    lead = (rows,) if packed else (1, rows)
    settings = {"device": device, "dtype": sizes.dtype, "generator": generator}
    of_heads = (sizes.heads, sizes.heads_kv, sizes.heads_kv, sizes.heads)
    return [torch.randn(*lead, heads, sizes.head_dim, **settings) for heads in of_heads]


def documents(rows: int) -> list[int]:
    """Where the sequences of a pack begin and end: a few long ones and many short ones."""
    generator, ends = torch.Generator().manual_seed(7), [0]
    while ends[-1] < rows:
        length = int(torch.randn((), generator=generator).mul(1.2).add(7).exp()) + 1
        ends.append(min(ends[-1] + length, rows))
    return ends


def one_gpu(ends: list[int] | None, options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Options of the same call by one GPU."""
    if ends is None:
        return options
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device)
    longest = max(b - a for a, b in itertools.pairwise(ends))
    lengths = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    return options | lengths | {"max_seqlen_q": longest, "max_seqlen_k": longest}


def with_gradients(attention: Callable[..., Tensor], tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """out, dq, dk and dv."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    out = attention(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]


def passes(attention: Callable[..., Tensor], tensors: list[Tensor], options: dict[str, Any]) -> dict[str, Callable]:
    """What is timed: the forward alone, and both passes."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]

    def forward() -> Tensor:
        with torch.no_grad():
            return attention(*tensors[:3], **options)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(*leaves, **options), leaves, tensors[3])

    return {"forward": forward, "both": both}

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""K and V stored in 8 bits beside a 16-bit q, on the GPU: the same bits as on converted tensors, or of few queries as
close to float32's result as roundings of P and O allow; and how long it takes.

Needs a Hopper GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import checks
import strobe_api
from timing import median_milliseconds

SHAPES = [  # batch, heads_q, heads_kv, seqlen_q, seqlen_k
    (2, 4, 2, 200, 333),
    (1, 2, 2, 700, 300),
    (3, 8, 1, 1, 1000),
    (1, 4, 4, 1, 130),
    (1, 16, 2, 5, 4100),
    (1, 2, 2, 2304, 2304),
]
ROWS = {"head": None, "block": 128, "group": 32, "row": 1}  # that share a scale


def stored(batch, seqlen, heads, head_dim, element, unit):
    """Any finite elements, scales, and what they stand for in float32."""
    shape = (batch, seqlen, heads, head_dim)
    if element == torch.int8:
        elements = torch.randint(-127, 128, shape, device="cuda", dtype=torch.int8)
        typical = 0.02
    else:
        elements = (1.5 * torch.randn(shape, device="cuda")).to(element)
        typical = 1.0
    rows = ROWS[unit] or seqlen
    scales = typical * (0.5 + torch.rand(batch, heads, -(-seqlen // rows), device="cuda"))
    of_rows = scales.repeat_interleave(rows, 2)[:, :, :seqlen].transpose(1, 2)
    return elements, scales, elements.float() * of_rows[..., None]


class Case:
    """A call on stored tensors and the same on converted ones. `spoiled`: with a scale that is NaN, of a late key."""

    def __init__(self, dtype, element, head_dim, shape, units, spoiled=False, **options):
        self.name = f"{dtype} {element} d{head_dim} {shape} {units} {options}"
        self.spoiled = spoiled
        batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
        q = torch.randn(batch, seqlen_q, heads_q, head_dim, device="cuda").to(dtype)
        (k8, k_descale, k), (v8, v_descale, v) = (
            stored(batch, seqlen_k, heads_kv, head_dim, element, unit) for unit in units
        )
        if spoiled:
            v_descale[0, 0, seqlen_k - 20] = float("nan")
            v[0, seqlen_k - 20, 0] = float("nan")
        if options.pop("used", False):
            lengths = [seqlen_k * (b + 1) // (batch + 1) for b in range(batch)]
            options["seqused_k"] = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.results = [(torch.full_like(q, 7.0), q.new_full((batch, heads_q, seqlen_q), 7.0).float()) for _ in "sc"]
        scales = {"k_descale": k_descale, "v_descale": v_descale}
        self.calls = [strobe_api.Forward(q, k8, v8, *self.results[0], **scales, **options)]
        self.converts = "operands as float16" not in self.calls[0].explain()
        if self.converts:
            self.calls.append(strobe_api.Forward(q, k.to(dtype), v.to(dtype), *self.results[1], **options))
        else:
            # The GPU kernels of float32 take head_dims up to 128.
            here = "cuda" if head_dim <= 128 else "cpu"
            self.results[1] = (self.results[1][0].float().to(here), self.results[1][1].to(here))
            options = {name: x.to(here) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
            wide = (x.float().to(here) for x in (q, k, v))
            self.calls.append(strobe_api.Forward(*wide, *self.results[1], **options))
            self.largest = v.nan_to_num().abs().max().item()

    def check(self):
        """False where the bits differ, or values do by more than roundings."""
        for call in self.calls:
            call.run()
        torch.cuda.synchronize()
        (o, lse), (expected, expected_lse) = ((x.cuda() for x in result) for result in self.results)
        if self.converts:
            good = same(o, expected) and same(lse, expected_lse)
        else:
            good = torch.allclose(o.float(), expected, rtol=2**-8, atol=2**-10 * self.largest, equal_nan=True)
            good = good and torch.allclose(lse, expected_lse, atol=1e-4)
        good = good and bool(o.isnan().any()) == self.spoiled
        if not good:
            apart = (o.float() - expected.float()).abs()
            print(
                f"WRONG {self.name}: o differs in {(apart > 0).sum()} of {o.numel()}, by up to "
                f"{apart.nan_to_num().max():.2e}; lse in {(lse != expected_lse).sum()}",
                flush=True,
            )
        return good


def same(x, y):
    return torch.equal(x.nan_to_num(nan=12345.0), y.nan_to_num(nan=12345.0))


def cases():
    """The arguments of every Case."""
    bf16, int8, e4m3 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
    for shape in SHAPES:
        yield (bf16, int8, 128, shape, ("row", "group")), {}
    for shape in (SHAPES[0], SHAPES[-1]):
        yield (bf16, int8, 128, shape, ("row", "group")), {"causal": "bottom_right"}
    for element, head_dim in ((e4m3, 128), (e4m3, 64), (int8, 64), (e4m3, 256)):
        for shape in (SHAPES[0], SHAPES[2]):
            yield (bf16, element, head_dim, shape, ("row", "head")), {}
    yield (bf16, int8, 128, SHAPES[0], ("head", "block")), {"window": (100, 0)}
    yield (bf16, int8, 128, SHAPES[0], ("head", "block")), {"softcap": 10.0}
    yield (bf16, int8, 128, SHAPES[0], ("head", "head")), {"used": True}
    yield (torch.float16, e4m3, 128, SHAPES[0], ("block", "row")), {"causal": "bottom_right"}
    yield (bf16, int8, 128, SHAPES[0], ("row", "row")), {"causal": "bottom_right", "spoiled": True}


def check_all():
    good = [Case(*arguments, **options).check() for arguments, options in cases()]
    print(f"{sum(good)} of {len(good)} calls are as they should be", flush=True)
    return all(good)


def measure():
    shapes = [(64, 32, 8, 1, 8192), (16, 32, 8, 1, 32768), (1, 16, 16, 4096, 4096), (1, 16, 16, 16384, 16384)]
    for shape in shapes:
        batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
        q = torch.randn(batch, seqlen_q, heads_q, 128, device="cuda").bfloat16()
        o = torch.empty_like(q)
        runs = {}
        for element in (torch.int8, torch.float8_e4m3fn):
            (k8, k_descale, k), (v8, v_descale, v) = (
                stored(batch, seqlen_k, heads_kv, 128, element, "head") for _ in range(2)
            )
            runs[str(element)] = strobe_api.Forward(q, k8, v8, o, k_descale=k_descale, v_descale=v_descale).run
        runs["bfloat16"] = strobe_api.Forward(q, k.bfloat16(), v.bfloat16(), o).run
        del k, v
        times = median_milliseconds(runs, 10, 5)
        print(shape, *(f"{name} {1e3 * time:.1f} us" for name, time in times.items()), sep="  ", flush=True)


if __name__ == "__main__":
    checks.main(__doc__, cases(), Case, check_all, measure)

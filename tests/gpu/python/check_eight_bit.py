#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""8-bit forwards on the GPU against the CPU engine's, which rounds alike, and against attention in float64.

Needs a Hopper GPU and PyTorch; STROBE_LIBRARY and STROBE_HEADER as strobe_api.py says.
The CPU engine is within its bound of float64 (tests/eight_bit). With int8 both engines round the same probabilities,
but not from the same bits: where exponents differ in the last place, one may round to the neighbour. The difference
must be small beside the error that rounding itself makes. With e4m3 a row's reference follows its maximum in the
order of the blocks, which is not the same in both: they round independently, and must be equally far from float64.
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts" / "gpu"))
import strobe_api

SHAPES = [  # batch, heads_q, heads_kv, seqlen_q, seqlen_k
    (2, 4, 2, 200, 333),
    (1, 2, 2, 1024, 1024),
    (1, 3, 1, 130, 1),
    (1, 2, 1, 1, 700),
    (1, 2, 2, 700, 300),
]


PACKED = (4, 2, (200, 0, 1, 77, 130), (333, 32, 2, 0, 700))  # heads_q, heads_kv, lengths of q and of k

# What changes scores or O, each in a call of its own.
OPTIONS = [
    {"softcap": 20.0},
    {"alibi_slopes": torch.tensor([0.05, 0.02, 0.3, 0.0])},
    {"softcap": 15.0, "alibi_slopes": torch.tensor([0.05, 0.02, 0.3, 0.0]), "causal": "bottom_right"},
    {"window": (100, 30)},
    {"window": (60, 0), "sink": torch.tensor([1.0, -2.0, 0.5, 3.0])},
    {"chunk": 70},
    {"scale": -0.05, "causal": "bottom_right"},
]


def attention(q, k, v, *, causal=None, window=None, chunk=None, scale=None, softcap=None, alibi_slopes=None, sink=None):
    """float64, of one key head each; rows that see no key are zero."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) * (scale or q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    rows, keys = scores.shape[-2:]
    center = torch.arange(rows)[:, None] + keys - rows
    key = torch.arange(keys)[None]
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * (key - center).abs()
    hidden = torch.zeros(rows, keys, dtype=torch.bool)
    if causal:
        hidden |= key > center
    if window is not None:
        hidden |= (key < center - window[0]) | (key > center + window[1])
    if chunk is not None:
        hidden |= key.div(chunk, rounding_mode="floor") != center.div(chunk, rounding_mode="floor")
    scores = scores.masked_fill(hidden, float("-inf"))
    if sink is not None:
        scores = torch.cat([scores, sink.double()[:, None, None].expand(*scores.shape[:2], rows, 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., :keys]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.double()), scores.logsumexp(-1)


def rms(x):
    return x.double().square().mean().sqrt().item()


def check(element, head_dims, shape, quantizer, options, output=torch.bfloat16):
    """Prints one line; False where the engines differ too much. `head_dims`: of Q and K, and of V."""
    batch, heads_q, heads_kv, seqlen_q, seqlen_k = shape
    q = 1.5 * torch.randn(batch, seqlen_q, heads_q, head_dims[0])
    k, v = (torch.randn(batch, seqlen_k, heads_kv, head_dim) + 0.3 for head_dim in head_dims)
    operands = strobe_api.quantize(q, k, v, element=element, **quantizer)
    results = {}
    for device in ("cpu", "cuda"):
        o = torch.full((*q.shape[:3], head_dims[1]), float("nan"), dtype=output, device=device)
        lse = torch.full((batch, heads_q, seqlen_q), float("nan"), device=device)
        given = {**operands, **options}
        placed = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        strobe_api.Forward(**placed, o=o, lse=lse).run()
        if device == "cuda":
            torch.cuda.synchronize()
        results[device] = o.cpu().float(), lse.cpu()
    expected, expected_lse = attention(q, k, v, **options)
    (cpu, cpu_lse), (gpu, gpu_lse) = results["cpu"], results["cuda"]
    error, gpu_error, difference = rms(cpu - expected), rms(gpu - expected), rms(gpu - cpu)
    close = difference <= 0.35 * error + 1e-6 if element == "int8" else abs(gpu_error - error) <= 0.35 * error + 1e-6
    seen = expected_lse.isfinite()
    lse_difference = (gpu_lse - cpu_lse)[seen].abs().max().item() if seen.any() else 0.0
    # e4m3's products are summed to 13 bits or so, 32 columns after 32.
    lse_limit = 2e-3 * max(1, head_dims[0] / 128)
    finite = gpu.isfinite().all().item() and torch.equal(gpu_lse.isfinite(), seen)
    good = finite and close and lse_difference <= lse_limit
    print(
        f"{element:12s} d{head_dims[0]}/{head_dims[1]} {shape} {quantizer} {', '.join(options)} {output}: "
        f"error cpu {error:.2e} gpu {gpu_error:.2e}, apart {difference:.2e}, lse {lse_difference:.1e} "
        f"{'' if good else 'WRONG'}",
        flush=True,
    )
    return good


def run_on(device, operands, options, shape):
    """o and lse of a packed or batched call on operands of the CPU; both were NaN before."""
    *rows, heads, _ = shape
    o = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=device)
    lse = torch.full((*rows[:-1], heads, rows[-1]), float("nan"), device=device)
    given = {**operands, **options}
    placed = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    strobe_api.Forward(**placed, o=o, lse=lse).run()
    return o.cpu(), lse.cpu()


def packed_operands(element, head_dim, quantizer):
    """Operands of PACKED, with the tensors and the ends of its sequences."""
    heads_q, heads_kv, seqlens_q, seqlens_k = PACKED
    ends = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32) for x in (seqlens_q, seqlens_k)]
    q = 1.5 * torch.randn(int(ends[0][-1]), heads_q, head_dim)
    k, v = (torch.randn(int(ends[1][-1]) + 5, heads_kv, head_dim) + 0.3 for _ in range(2))
    lengths = {"cu_seqlens_q": ends[0], "cu_seqlens_k": ends[1]}
    lengths |= {"max_seqlen_q": max(seqlens_q), "max_seqlen_k": max(seqlens_k)}
    return strobe_api.quantize(q, k, v, element=element, lengths=lengths, **quantizer), (q, k, v), ends


def check_packed(element, head_dim, quantizer, options, device, used=False):
    """Each sequence of a packed call has the bits of a call on it alone."""
    operands, (q, k, v), ends = packed_operands(element, head_dim, quantizer)
    given = dict(options)
    if used:
        given["seqused_k"] = torch.tensor([n - n // 3 for n in PACKED[3]], dtype=torch.int32)
    o, lse = run_on(device, operands, given, q.shape)
    cpu, _ = run_on("cpu", operands, given, q.shape)
    size, apart = rms(cpu), rms(o.float() - cpu.float())
    wrong = []
    for b, (rows_q, rows_k) in enumerate(zip(PACKED[2], PACKED[3], strict=True)):
        own_q, own_k = (slice(int(e[b]), int(e[b + 1])) for e in ends)
        if rows_q == 0 or rows_k == 0:
            continue
        alone = strobe_api.quantize(q[None, own_q], k[None, own_k], v[None, own_k], element=element, **quantizer)
        alone_options = options | ({"seqused_k": given["seqused_k"][b : b + 1].clone()} if used else {})
        wanted, wanted_lse = run_on(device, alone, alone_options, (1, *q[own_q].shape))
        if not torch.equal(o[own_q], wanted[0]) or not torch.equal(lse[:, own_q], wanted_lse[0]):
            wrong.append(b)
    # e4m3's roundings are independent in the two engines, and each is off by 3% of O.
    good = not wrong and o.isfinite().all().item() and apart <= (0.05 if element == "int8" else 0.1) * size
    print(
        f"{element:12s} d{head_dim} packed {PACKED} {quantizer} {', '.join(options)} {'used' if used else ''}: apart "
        f"from the cpu {apart:.2e} of {size:.2e} {'' if good else f'WRONG, sequences {wrong}'}",
        flush=True,
    )
    return good


def check_neighbour(element, device):
    """What is not finite in one packed sequence reaches no other, though its columns of V are neighbours."""
    ends = torch.tensor([0, 40, 80, 120], dtype=torch.int32)
    q, k, v = (torch.randn(120, 2, 128) for _ in range(3))
    v[45, 1, 5] = float("nan")
    lengths = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 40, "max_seqlen_k": 40}
    operands = strobe_api.quantize(q, k, v, element=element, lengths=lengths)
    if element == "float8_e4m3":
        operands["v"].view(torch.uint8)[1, :, 64:96] = 0x7F  # NaN of one's own, in the first columns of the second
    o, _ = run_on(device, operands, {}, q.shape)
    expected = torch.zeros(120, 2, dtype=torch.bool)
    expected[40:80, 1] = True
    good = torch.equal(o.isnan().any(-1), expected)
    print(f"{element:12s} NaN {'stays in its sequence' if good else 'WRONG: it reaches other sequences'}", flush=True)
    return good


def check_all_packed(element, head_dim, device="cuda"):
    good = True
    for causal, used in itertools.product((None, "bottom_right"), (False, True)):
        good &= check_packed(element, head_dim, {}, {"causal": causal}, device, used)
    good &= check_packed(element, head_dim, BLOCKS, {}, device)
    for options in ({"window": (60, 20)}, {"softcap": 15.0, "causal": "bottom_right"}):
        good &= check_packed(element, head_dim, {}, options, device)
    return good and check_neighbour(element, device)


def check_not_finite(element, head_dim):
    """A NaN in a hidden key reaches no row, in a visible one every row that sees it."""
    q, k, v = (torch.randn(1, 300, 2, head_dim) for _ in range(3))
    k[0, 200, 1, 5] = float("nan")
    operands = strobe_api.quantize(q, k, v, element=element)
    placed = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in operands.items()}
    o = torch.zeros(1, 300, 2, head_dim, dtype=torch.bfloat16, device="cuda")
    strobe_api.Forward(**placed, o=o, causal="bottom_right").run()
    bad = o.isnan().all(-1).cpu()[0]
    expected = torch.zeros(300, 2, dtype=torch.bool)
    expected[200:, 1] = True
    good = torch.equal(bad, expected) and torch.equal(o.isnan().any(-1).cpu()[0], expected)
    print(f"{element:12s} d{head_dim} NaN {'stays where it is seen' if good else 'WRONG'}", flush=True)
    return good


BLOCKS = {"q_scales": "block", "k_scales": "block", "v_scales": "block", "seed": 7}
QUANTIZERS = [
    {"rotate_v": False},
    {"center_k": False},
    {"q_scales": "tensor", "k_scales": "tensor", "v_scales": "tensor"},
    BLOCKS,
]


def check_head_dim(element, head_dim):
    """The common ones by every mask, quantiser and option, others by two calls."""
    both = (head_dim, head_dim)
    if head_dim not in (64, 128, 256):
        return all(
            [check(element, pair, SHAPES[0], {}, {"causal": "bottom_right"}) for pair in (both, (head_dim, 128))]
        )
    good = True
    for causal, shape in itertools.product((None, "bottom_right"), SHAPES):
        good &= check(element, both, shape, {}, {"causal": causal})
    good &= check(element, both, SHAPES[0], BLOCKS, {}, torch.float32)
    good &= check_all_packed(element, head_dim)
    if head_dim == 64:
        return good
    for quantizer in QUANTIZERS:
        good &= check(element, both, SHAPES[0], quantizer, {})
    for options in OPTIONS:
        good &= check(element, both, SHAPES[0], {}, options)
    return check_not_finite(element, head_dim) and good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--element", choices=("int8", "float8_e4m3"), action="append", help="both unless given")
    parser.add_argument("--head-dim", type=int, action="append", help="seven unless given")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    good = True
    for element, head_dim in itertools.product(
        arguments.element or ("int8", "float8_e4m3"), arguments.head_dim or (64, 128, 256, 16, 80, 96, 192)
    ):
        good &= check_head_dim(element, head_dim)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

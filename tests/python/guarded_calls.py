# SPDX-License-Identifier: Apache-2.0
"""Random calls on arrays between pages without access, for reads and writes beyond them.

    python tests/python/guarded_calls.py --count 100000 [--first-seed N]

Each call runs twice, on plain arrays and on copies between guard pages, in other layouts, from NumPy or PyTorch. A
stray access ends the program, whose last line on standard error, with --verbose, is the seed; results must agree bit
by bit, plain calls of float32 also with float64; what lies between the elements of outputs must stay as it was.
"""

import argparse
import sys
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import reference
import strobe
import torch
from guarded_memory import Guarded

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)


@dataclass
class Call:
    """function(**inputs, **outputs, **options) returns an array or several, beside what it writes to the outputs."""

    function: Any
    inputs: dict[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    expected: Any = None  # in float64, of the first result

    def run(self, inputs, outputs):
        results = self.function(**inputs, **outputs, **self.options)
        results = results if isinstance(results, tuple) else (results,)
        return [np.asarray(x) for x in results if x is not None] + [np.asarray(x) for x in outputs.values()]


def numbers(rng, shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def integers(values):
    return np.asarray(values, np.int32)


@dataclass
class Shape:
    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_kv: int
    group: int
    head_dim: int
    head_dim_v: int
    dtype: Any

    @classmethod
    def draw(cls, rng):
        longest = int(rng.choice([5, 40, 150]))
        head_dim = int(rng.choice([1, 7, 16, 33, 64, 80]))
        return cls(
            batch=int(rng.integers(1, 4)),
            seqlen_q=int(rng.choice([1, rng.integers(0, longest + 1)])),
            seqlen_k=int(rng.integers(0, 2 * longest)),
            heads_kv=int(rng.integers(1, 3)),
            group=int(rng.integers(1, 4)),
            head_dim=head_dim,
            head_dim_v=int(rng.choice([head_dim, 1, 24, 65])),
            dtype=FLOATS[rng.integers(3)],
        )

    @property
    def heads(self):
        return self.heads_kv * self.group

    def tensors(self, rng):
        q = numbers(rng, (self.batch, self.seqlen_q, self.heads, self.head_dim), self.dtype)
        k = numbers(rng, (self.batch, self.seqlen_k, self.heads_kv, self.head_dim), self.dtype)
        v = numbers(rng, (self.batch, self.seqlen_k, self.heads_kv, self.head_dim_v), self.dtype)
        return {"q": q, "k": k, "v": v}


def score_options(rng, shape):
    """Options and tensors of the score that every layout takes."""
    options = {"causal": (False, False, True, "top_left")[rng.integers(4)], "threads": int(rng.integers(1, 4))}
    if rng.random() < 0.2:
        options["window"] = (int(rng.integers(-1, 40)), int(rng.integers(-1, 40)))
    if rng.random() < 0.2:
        options["softcap"] = 5.0
    if rng.random() < 0.1:
        options["chunk"] = int(rng.integers(1, 50))
    tensors = {}
    if rng.random() < 0.2:
        tensors["alibi_slopes"] = np.abs(numbers(rng, [(shape.heads,), (shape.batch, shape.heads)][rng.integers(2)]))
    if rng.random() < 0.2:
        tensors["sink"] = numbers(rng, (shape.heads,))
    return options, tensors


def plane(rng, shape):
    return (shape.batch if rng.random() < 0.5 else 1, shape.heads if rng.random() < 0.5 else 1)


def batched(rng, shape):
    """Inputs and options of a batched call, a reference for it, and NaN where keys are hidden by lengths."""
    tensors = shape.tensors(rng)
    options, modifiers = score_options(rng, shape)
    if rng.random() < 0.3:
        modifiers["bias"] = numbers(rng, (*plane(rng, shape), shape.seqlen_q, shape.seqlen_k))
    if rng.random() < 0.2:
        blocks = (-(-shape.seqlen_q // 64), -(-shape.seqlen_k // 64))
        modifiers["block_mask"] = rng.integers(0, 2, (*plane(rng, shape), *blocks)).astype(np.uint8)
        options["block_size"] = 64
    expected = None
    if shape.dtype is np.float32:
        plain = {name: value for name, value in options.items() if name != "threads"}
        expected = reference.attention(**tensors, **plain, **modifiers)[0]
    if rng.random() < 0.3:
        expected = None
        used = integers(rng.integers(0, shape.seqlen_k + 1, shape.batch))
        for entry, length in enumerate(used):
            tensors["k"][entry, length:] = tensors["v"][entry, length:] = np.nan
        modifiers["seqused_k"] = used
    return tensors | modifiers, options, expected


def out_like(shape, q):
    return {"out": np.zeros((*q.shape[:-1], shape.head_dim_v), q.dtype)}


def forward_call(rng, shape):
    inputs, options, expected = batched(rng, shape)
    options |= {"return_lse": bool(rng.integers(2)), "return_max_logits": bool(rng.integers(2))}
    return Call(strobe.attention, inputs, out_like(shape, inputs["q"]), options, expected)


def packed_call(rng, shape):
    lengths_q = rng.integers(0, shape.seqlen_q + 1, shape.batch)
    lengths_k = rng.integers(0, shape.seqlen_k + 1, shape.batch)
    ends_q, ends_k = (integers([0, *np.cumsum(lengths)]) for lengths in (lengths_q, lengths_k))
    behind = int(rng.integers(1, 4)) if rng.random() < 0.4 else 0
    q = numbers(rng, (ends_q[-1] + behind, shape.heads, shape.head_dim), shape.dtype)
    k = numbers(rng, (ends_k[-1] + behind, shape.heads_kv, shape.head_dim), shape.dtype)
    v = numbers(rng, (ends_k[-1] + behind, shape.heads_kv, shape.head_dim_v), shape.dtype)
    for rows, end in ((q, ends_q[-1]), (k, ends_k[-1]), (v, ends_k[-1])):
        rows[end:] = np.nan
    options, modifiers = score_options(rng, shape)
    inputs = {"q": q, "k": k, "v": v, "cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k} | modifiers
    return Call(strobe.attention, inputs, out_like(shape, q), options | {"return_lse": True})


def cache_call(rng, shape):
    """Keys in pages or entries, with lengths and left padding; what belongs to no key is NaN."""
    options, modifiers = score_options(rng, shape)
    q = shape.tensors(rng)["q"]
    used = integers(rng.integers(0, shape.seqlen_k + 1, shape.batch))
    padding = integers([rng.integers(0, length + 1) for length in used])
    size = int(rng.choice([1, 3, 16, shape.seqlen_k + 1])) if rng.random() < 0.7 else 0
    per_sequence = -(-shape.seqlen_k // size) if size else 1
    count = shape.batch * per_sequence + 2
    rows = (count, size or shape.seqlen_k, shape.heads_kv)
    k = np.full((*rows, shape.head_dim), np.nan, shape.dtype)
    v = np.full((*rows, shape.head_dim_v), np.nan, shape.dtype)
    places = integers(rng.permutation(count)[: shape.batch * per_sequence]).reshape(shape.batch, per_sequence)
    for sequence in range(shape.batch):
        for row in range(padding[sequence], used[sequence]):
            at = (places[sequence, row // size], row % size) if size else (places[sequence, 0], row)
            k[at] = numbers(rng, (shape.heads_kv, shape.head_dim), shape.dtype)
            v[at] = numbers(rng, (shape.heads_kv, shape.head_dim_v), shape.dtype)
    inputs = {"q": q, "k": k, "v": v, "seqused_k": used, "leftpad_k": padding} | modifiers
    inputs |= {"page_table": places} if size else {"cache_batch_idx": places[:, 0].copy()}
    return Call(strobe.attention, inputs, out_like(shape, q), options | {"return_lse": True})


def backward_call(rng, shape):
    inputs, options, _ = batched(rng, shape)
    options["return_d_bias"] = "bias" in inputs
    options["return_d_sink"] = "sink" in inputs
    forward = {name: value for name, value in options.items() if not name.startswith("return_")}
    o, lse = strobe.attention(**inputs, **forward, return_lse=True)
    inputs |= {"d_o": numbers(rng, o.shape, shape.dtype), "o": o, "lse": lse}
    outputs = {"d" + name: np.zeros_like(inputs[name]) for name in "qkv"}
    return Call(strobe.attention_backward, inputs, outputs, options)


def quantised_call(rng, shape):
    tensors = shape.tensors(rng)
    units = ("tensor", "head", "block", "group", "row")
    options = {f"{name}_scales": units[rng.integers(5)] for name in "qkv"}
    options |= {"element": ("int8", "float8_e4m3fn")[rng.integers(2)], "seed": int(rng.integers(100))}

    def quantise(**arguments):
        made = strobe.quantize(**arguments)
        o = strobe.attention(made.q, made.k, made.v, **made.options)
        return (o, *(x.view(np.uint8) for x in (made.q, made.k, made.v)))

    return Call(quantise, tensors, {}, options)


def append_call(rng, shape):
    seqlen_new, room = int(rng.integers(0, 6)), shape.seqlen_k + 8
    before = integers(rng.integers(0, room - seqlen_new + 1, shape.batch))
    size = int(rng.choice([0, 1, 4]))
    per_sequence = -(-room // size) if size else 1
    rows = (shape.batch * per_sequence + 1, size or room, shape.heads_kv)
    places = integers(rng.permutation(rows[0])[: shape.batch * per_sequence]).reshape(shape.batch, per_sequence)
    inputs = {
        "k_new": numbers(rng, (shape.batch, seqlen_new, shape.heads_kv, shape.head_dim), shape.dtype),
        "v_new": numbers(rng, (shape.batch, seqlen_new, shape.heads_kv, shape.head_dim_v), shape.dtype),
        "cache_seqlens": before,
    }
    inputs |= {"page_table": places} if size else {"cache_batch_idx": places[:, 0].copy()}
    outputs = {
        "k_cache": numbers(rng, (*rows, shape.head_dim), shape.dtype),
        "v_cache": numbers(rng, (*rows, shape.head_dim_v), shape.dtype),
    }
    if rng.random() < 0.3:
        for name in ("k", "v"):
            outputs[f"{name}_cache"] = rng.integers(-128, 128, outputs[f"{name}_cache"].shape, np.int8)
            outputs[f"{name}_row_descale"] = numbers(rng, (rows[0], rows[2], rows[1]))
    if shape.head_dim > 1 and rng.random() < 0.6:
        pairs = int(rng.integers(1, shape.head_dim // 2 + 1))
        inputs |= {name: numbers(rng, (room, pairs)) for name in ("cos", "sin")}
        inputs["q"] = numbers(rng, (shape.batch, seqlen_new, shape.heads, shape.head_dim), shape.dtype)
        outputs["q_out"] = np.zeros_like(inputs["q"])
    return Call(strobe.append, inputs, outputs, {"interleaved": bool(rng.integers(2)), "threads": 2})


def merge_call(rng, shape):
    count = int(rng.integers(1, 5))
    o_shape = (shape.batch, shape.seqlen_q, shape.heads, shape.head_dim_v)
    inputs = {}
    for part in range(count):
        inputs[f"o{part}"] = numbers(rng, o_shape, shape.dtype)
        inputs[f"lse{part}"] = numbers(rng, (shape.batch, shape.heads, shape.seqlen_q))

    def merge(out, **parts):
        return strobe.merge([(parts[f"o{i}"], parts[f"lse{i}"]) for i in range(count)], out=out)

    return Call(merge, inputs, {"out": np.zeros(o_shape, shape.dtype)})


KINDS = (forward_call, packed_call, cache_call, backward_call, quantised_call, append_call, merge_call)


def run_seed(seed):
    rng = np.random.default_rng(seed)
    call = KINDS[seed % len(KINDS)](rng, Shape.draw(rng))
    outputs = {name: Guarded(value, bool(seed // 7 % 2), rng) for name, value in call.outputs.items()}
    inputs = {name: Guarded(value, bool(seed // 7 % 2), rng) for name, value in call.inputs.items()}
    plain = call.run(call.inputs, call.outputs)
    bfloat16 = any(value.dtype == ml_dtypes.bfloat16 for value in [*call.inputs.values(), *call.outputs.values()])
    wrap = torch.from_numpy if seed // 14 % 2 and not bfloat16 and call.function.__name__ != "quantise" else lambda x: x
    results = call.run(
        {name: wrap(guarded.array) for name, guarded in inputs.items()},
        {name: wrap(guarded.array) for name, guarded in outputs.items()},
    )
    for number, (one, other) in enumerate(zip(plain, results, strict=True)):
        assert np.array_equal(one.view(np.uint8), np.ascontiguousarray(other).view(np.uint8)), f"result {number}"
    if call.expected is not None:
        np.testing.assert_allclose(results[0], call.expected, rtol=2e-4, atol=2e-4)
    for name, guarded in inputs.items():
        assert guarded.is_unchanged(), f"{name} was written"
    for name, guarded in outputs.items():
        assert guarded.gaps_are_intact(), f"{name} was written beside its elements"
    del results
    for guarded in [*inputs.values(), *outputs.values()]:
        guarded.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=280)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.count):
        if arguments.verbose:
            print(f"seed {seed}", file=sys.stderr, flush=True)
        try:
            run_seed(seed)
        except Exception as failure:
            failure.add_note(f"again: tests/python/guarded_calls.py --first-seed {seed} --count 1")
            raise
    print(f"{arguments.count} calls")


if __name__ == "__main__":
    main()

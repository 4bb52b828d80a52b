# SPDX-License-Identifier: Apache-2.0
"""vmap over attention: what each sample gets alone, for every option, and in one call where samples can share one."""

import random

import pytest
import strobe.torch
import torch
from torch.autograd.profiler import profile
from torch.func import grad, vmap

SAMPLES, BATCH, HEADS, ROWS, KEYS = 3, 2, 4, 5, 7


class Options:
    """Random tensors of one call, each of one sample or of all, with vmap's axis anywhere."""

    def __init__(self, seed, packed):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors, self.dims, self.values = {}, {}, {}
        self.add("q", *((BATCH * ROWS,) if packed else (BATCH, ROWS)), HEADS, 8, own=True)
        for name in "kv":
            self.add(name, *((BATCH * KEYS,) if packed else (BATCH, KEYS)), 2, 8)
        if packed:
            self.values |= {"max_seqlen_q": ROWS, "max_seqlen_k": KEYS}
            for name, rows in (("cu_seqlens_q", ROWS), ("cu_seqlens_k", KEYS)):
                self.tensors[name], self.dims[name] = torch.arange(3, dtype=torch.int32) * rows, None
        else:
            self.add_modifiers()
        if self.chance():
            self.add("alibi_slopes", *((BATCH,) if self.chance() else ()), HEADS)
        if self.chance():
            self.add("sink", HEADS)
        if self.chance():
            self.values["causal"] = self.random.choice([True, "top_left"])

    def add_modifiers(self):
        if self.chance():
            self.add("bias", self.random.choice([1, BATCH]), self.random.choice([1, HEADS]), ROWS, KEYS)
        if self.chance():
            self.add("block_mask", self.random.choice([1, BATCH]), self.random.choice([1, HEADS]), 1, 1)
            self.tensors["block_mask"] = (self.tensors["block_mask"] > -0.5).to(torch.uint8)
        for name, rows in (("seqused_q", ROWS), ("seqused_k", KEYS)):
            if self.chance():
                self.add(name, BATCH)
                used = self.tensors[name].abs() * rows
                self.tensors[name] = used.clamp(max=rows).to(torch.int32)

    def chance(self):
        return self.random.random() < 0.5

    def add(self, name, *shape, own=None):
        own = self.chance() if own is None else own
        self.dims[name] = self.random.randrange(len(shape) + 1) if own else None
        x = torch.randn(*((SAMPLES,) if own else ()), *shape, generator=self.generator)
        self.tensors[name] = x.movedim(0, self.dims[name]) if own else x

    def sample(self, index):
        return {
            name: x if self.dims[name] is None else x.select(self.dims[name], index) for name, x in self.tensors.items()
        }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_samples_are_what_they_are_alone(seed, packed):
    options = Options(seed, packed)
    differentiable = [name for name in ("q", "k", "v", "bias", "sink") if name in options.tensors]

    def outputs(tensors):
        return strobe.torch.attention(**tensors, **options.values, return_lse=True, return_max_logits=True)

    def loss(chosen, tensors):
        out, lse, _ = outputs(tensors | chosen)
        return out.sin().sum() + torch.where(lse.isfinite(), lse, 0.0).cos().sum()

    def gradients(tensors):
        return grad(loss)({name: tensors[name] for name in differentiable}, tensors)

    results = vmap(outputs, in_dims=(options.dims,))(options.tensors)
    for index, parts in enumerate(zip(*results, strict=True)):
        for part, wanted in zip(parts, outputs(options.sample(index)), strict=True):
            torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-5)
    results = vmap(gradients, in_dims=(options.dims,))(options.tensors)
    for index in range(SAMPLES):
        leaves = {name: x.clone() for name, x in options.sample(index).items()}
        chosen = [leaves[name].requires_grad_() for name in differentiable]
        for name, wanted in zip(differentiable, torch.autograd.grad(loss({}, leaves), chosen), strict=True):
            torch.testing.assert_close(results[name][index], wanted, rtol=1e-5, atol=1e-5)


def calls(function, *arguments):
    """How often the operator was computed, not counting that a batching rule called it again."""
    with profile() as profiled:
        function(*arguments)
    events = [event for event in profiled.function_events if event.name == "strobe::attention"]
    return sum(not any(child.name == event.name for child in event.cpu_children) for event in events)


def test_samples_are_one_call():
    q = torch.randn(SAMPLES, BATCH, ROWS, HEADS, 8)
    k = torch.randn(BATCH, KEYS, 2, 8)
    bias = torch.randn(SAMPLES, 1, 1, ROWS, KEYS)
    attend = strobe.torch.attention
    assert calls(vmap(lambda q, bias: attend(q, k, k, bias=bias)), q, bias) == 1
    assert calls(vmap(vmap(lambda q: attend(q[None], k[:1], k[:1]))), q) == 1
    assert calls(vmap(lambda sink: attend(q[0], k, k, sink=sink)), torch.randn(SAMPLES, HEADS)) == SAMPLES


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout(randomness):
    x = torch.randn(SAMPLES, BATCH, 40, HEADS, 8)
    torch.manual_seed(5)
    dropped = vmap(lambda x: strobe.torch.attention(x, x, x, dropout=0.5), randomness=randomness)(x)
    torch.manual_seed(5)
    shape = (2,) if randomness == "same" else (SAMPLES, 2)
    state = torch.randint(2**63 - 1, shape, dtype=torch.int64).expand(SAMPLES, 2)
    for sample, part, (seed, offset) in zip(x, dropped, state.tolist(), strict=True):
        wanted = strobe.torch.attention(sample, sample, sample, dropout=0.5, seed=seed, offset=offset)
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-6)

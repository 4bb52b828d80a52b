# SPDX-License-Identifier: Apache-2.0
"""A process of two that compute attention of DTensors, by the CPU; test_torch_sharding.py starts them."""

import itertools
import sys

import strobe.torch
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

HEADS, HEAD_DIM = 4, 16


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def call(batch=3, heads_kv=2, rows=9, keys=13, **options):
    """Tensors that have a gradient, those that have none, and options."""
    q, k, v = draw(batch, rows, HEADS, HEAD_DIM), *(draw(batch, keys, heads_kv, HEAD_DIM, seed=x) for x in (1, 2))
    return {"q": q, "k": k, "v": v, **options}


def bias(batch, heads):
    return draw(batch, heads, 9, 13, seed=3)


USED = torch.tensor([13, 5, 0], dtype=torch.int32)
ENDS = torch.tensor([0, 4, 9], dtype=torch.int32)
CALLS = {
    "plain": call(causal=True),
    "one key head": call(heads_kv=1),
    "three key heads": call(heads_kv=4, bias=bias(1, 4)),
    "bias of all": call(bias=bias(1, 1)),
    "bias": call(bias=bias(3, 4), sink=draw(HEADS, seed=4)),
    "sink": call(sink=draw(HEADS, seed=4), seqused_k=USED),
    "slopes": call(alibi_slopes=draw(HEADS, seed=5).abs()),
    "slopes by batch": call(alibi_slopes=draw(3, HEADS, seed=5).abs()),
    "blocks": call(block_mask=torch.ones(3, 1, 1, 1, dtype=torch.uint8)),
    "a learnt scale": call(scale=torch.tensor([0.3, 0.2, 0.1, 0.4])),
    "packed": {
        name: draw(9, heads, HEAD_DIM, seed=seed)
        for seed, (name, heads) in enumerate((("q", HEADS), ("k", 2), ("v", 2)))
    }
    | {"cu_seqlens_q": ENDS, "cu_seqlens_k": ENDS},
}
LEARNT = ("q", "k", "v", "bias", "sink", "scale")


def with_gradients(given, place):
    """out, lse and gradients; place() makes leaves of the tensors."""
    leaves = {name: place(name, x) for name, x in given.items() if isinstance(x, torch.Tensor)}
    for name in LEARNT:
        if name in leaves:
            leaves[name].requires_grad_()
    out, lse = strobe.torch.attention(**given | leaves, return_lse=True)
    loss = out.sin().sum() + lse.exp().log1p().sum()
    learnt = [leaves[name] for name in LEARNT if name in leaves]
    return [out, lse, *torch.autograd.grad(loss, learnt)]


def placements(given, way):
    """By name: the batch, the heads, one after another, or all of it on each device."""
    by_batch = {name: Shard(0) for name in "qkv"}
    by_heads = {name: Shard(given[name].ndim - 2) for name in "qkv"}
    mixed = {"q": Shard(given["q"].ndim - 2), "k": Replicate(), "v": Shard(0)}
    return {"batch": by_batch, "heads": by_heads, "mixed": mixed, "one": {}}[way]


def check(name, way, mesh):
    given = CALLS[name]
    places = placements(given, way)

    def place(tensor_name, x):
        return distribute_tensor(x, mesh, [places.get(tensor_name, Replicate())])

    wanted = with_gradients(given, lambda _, x: x.clone())
    for result, reference in zip(with_gradients(given, place), wanted, strict=True):
        assert isinstance(result, DTensor)
        torch.testing.assert_close(result.full_tensor(), reference, rtol=1e-5, atol=1e-5)


def check_that_nothing_is_sent(way, mesh):
    given = call(batch=2, causal=True)
    places = placements(given, way)
    q, k, v = (distribute_tensor(given[name], mesh, [places[name]]).requires_grad_() for name in "qkv")
    with CommDebugMode() as sent:
        out = strobe.torch.attention(q, k, v, causal=True)
        gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert sent.get_total_counts() == 0, sent.get_comm_counts()
    assert [x.placements for x in (out, *gradients)] == [(places[name],) for name in "qqkv"]


def check_errors(mesh):
    q = distribute_tensor(draw(2, 4, HEADS, HEAD_DIM), mesh, [Shard(0)])
    try:
        strobe.torch.attention(q, q, q, dropout=0.5)
    except NotImplementedError as error:
        assert "dropout of DTensors" in str(error)
    else:
        raise AssertionError("dropout of DTensors")


def main():
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    for name, way in itertools.product(CALLS, ("batch", "heads", "mixed", "one")):
        check(name, way, mesh)
    for way in ("batch", "heads"):
        check_that_nothing_is_sent(way, mesh)
    check_errors(mesh)
    distributed.barrier()
    if distributed.get_rank() == 0:
        sys.stdout.write("as on one device\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

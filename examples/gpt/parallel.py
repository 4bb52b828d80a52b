# SPDX-License-Identifier: Apache-2.0
"""Training by several processes, which torchrun starts: each computes its share of a batch, or of each sequence."""

import gc
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

METHODS = ("ddp", "fsdp")


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def processes() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


@contextmanager
def process_group(device: str) -> Iterator[str]:
    """This process's device: with torchrun on GPUs each has its own.

    Whoever is in here leaves nothing behind that holds the group, such as a model that `distribute` gave: whatever
    drops the group's last reference waits for the group's threads, and a model does so with the interpreter's lock,
    which one of those threads may need to release a tensor.
    """
    if "WORLD_SIZE" not in os.environ:
        yield device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield device
        distributed.barrier()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # what they hold, the model among it
        raise
    finally:
        gc.collect()
        distributed.destroy_process_group()


def share(batch: Tensor) -> Tensor:
    """Of a batch that all processes know, the sequences of this one."""
    if len(batch) % processes() != 0:
        raise SystemExit(f"a batch of {len(batch)} sequences cannot be shared out among {processes()} processes")
    return batch.chunk(processes())[rank()]


class SharedSequences:
    """Of each sequence of a batch that all processes know, the tokens of this one; attention is computed together."""

    def __init__(self) -> None:
        from strobe.torch import ContextParallel

        self._context = ContextParallel()

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._context.attention(q, k, v, causal=True)

    def share(self, tokens: Tensor) -> Tensor:
        """[batch, seqlen] of this process. All have as many, so that the mean of their losses is that of all tokens."""
        if tokens.shape[1] % (2 * processes()) != 0:
            raise SystemExit(
                f"sequences of {tokens.shape[1]} tokens cannot be shared out among {processes()} processes"
            )
        return self._context.shard(tokens)

    def positions(self, device: str) -> Tensor:
        """[seqlen], of the tokens of the last share."""
        return self._context.positions(device)


def distribute(model: nn.Module, method: str) -> nn.Module:
    """The model whose gradients are the means over all processes. `fsdp` shares out parameters, gradients and the
    optimizer's state, block by block; `ddp` keeps all of them everywhere."""
    if processes() == 1:
        return model
    if method == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def synchronize(model: nn.Module, wanted: bool) -> None:
    """Whether the next backward exchanges gradients: of several micro-batches only the last has to."""
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = wanted
    elif processes() > 1:
        model.set_requires_gradient_sync(wanted)


def mean(value: Tensor) -> float:
    """Over all processes."""
    if processes() > 1:
        distributed.all_reduce(value)
        value = value / processes()
    return value.item()

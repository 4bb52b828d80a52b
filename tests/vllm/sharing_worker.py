# SPDX-License-Identifier: Apache-2.0
"""A worker of vLLM's CPU engine (its option ``worker_cls``) that finds the slots of keys which ranks share.

vLLM does so in a kernel of Triton. Without Triton's back end for CPUs, which PyPI does not have, vLLM's CPU platform
registers a function that serves whole caches alone; this worker registers one for shares of them instead.
"""

import torch
from torch import Tensor
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.worker.cpu_worker import CPUWorker

KERNEL = "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel"


def fill_slots(
    tokens: int,
    most_tokens: int,
    query_start_loc: Tensor,
    positions: Tensor,
    block_table: Tensor,
    stride: int,
    slots: Tensor,
    block_size: int,
    world: int,
    rank: int,
    interleave: int,
    padding: int,
    launch_size: int,
) -> None:
    """Writes the slot of each token, `padding` for those of other ranks and behind the last."""
    requests = torch.repeat_interleave(torch.arange(len(query_start_loc) - 1), query_start_loc.diff())
    positions = positions[: len(requests)]
    is_own = positions // interleave % world == rank
    places = positions // (interleave * world) * interleave + positions % interleave
    blocks = block_table[requests, places // block_size].long()
    slots[: len(requests)] = torch.where(is_own, blocks * block_size + places % block_size, padding)
    slots[tokens:most_tokens] = padding


class Worker(CPUWorker):
    def init_device(self) -> None:
        register_kernels({KERNEL: fill_slots})
        super().init_device()

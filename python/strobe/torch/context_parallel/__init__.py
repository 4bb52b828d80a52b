# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: sequences that are longer than one device should have."""

from strobe.torch.context_parallel.decode import Shard, shard_attention
from strobe.torch.context_parallel.parallel import ContextParallel

__all__ = ["ContextParallel", "Shard", "shard_attention"]

# SPDX-License-Identifier: Apache-2.0
"""Tensors and sequences of random calls, for the checks on a GPU."""

import torch

PAD = 16  # canary elements around every row of the output
CANARY = 7.0


def random_tensor(shape, dtype, padded):
    """Padded rows: strides that are not the shape's own."""
    extra = PAD if padded else 0
    return torch.randn(*shape[:-1], shape[-1] + extra, device="cuda", dtype=dtype)[
        ..., extra // 2 : extra // 2 + shape[-1]
    ]


class Side:
    """Sequences of one side, batched or packed: their lengths, used lengths and tensors by sequence."""

    def __init__(self, rng, lengths, packed, used, tail):
        self.packed, self.lengths, self.tail = packed, lengths, tail if packed else 0
        self.used = [rng.randint(0, n) for n in lengths] if used else list(lengths)

        def as_tensor(values):
            return torch.tensor(values, device="cuda", dtype=torch.int32)

        self.starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        self.cu_seqlens = as_tensor(self.starts) if packed else None
        self.seqused = as_tensor(self.used) if used else None

    def shape(self, heads, columns):
        if self.packed:
            return (self.starts[-1] + self.tail, heads, columns)
        return (len(self.lengths), self.lengths[0], heads, columns)

    def of(self, tensor, i):
        return tensor[self.starts[i] : self.starts[i + 1]] if self.packed else tensor[i]

# SPDX-License-Identifier: Apache-2.0
"""Which axes of a call's tensors are batch and heads: what vmap folds into, and what a mesh of devices may split."""

from collections.abc import Mapping
from typing import Any

from strobe._option_list import CAPTURE_NAMES
from strobe._shapes import Shape

# An axis by a letter: "b" batch, "h" heads_q, "k" heads_kv, "." any other. Packed tensors have no batch axis.
_QUERY, _KEY = "b.h.", "b.k."
_AXES = {
    **dict.fromkeys(("q", "o"), _QUERY),
    **dict.fromkeys(("k", "v"), _KEY),
    **dict.fromkeys(("bias", "block_mask"), "bh.."),
    **dict.fromkeys(("lse", "q_shift", "q_descale"), "bh."),
    **dict.fromkeys(("k_descale", "v_descale"), "bk."),
    **dict.fromkeys(("max_logits", "alibi_slopes"), "bh"),
    **dict.fromkeys(("seqused_q", "seqused_k", "offset_q", "offset_k"), "b"),
    "sink": "h",
}

DIFFERENTIABLE = ("q", "k", "v", "bias", "sink", *CAPTURE_NAMES)
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv"} | {name: f"d_{name}" for name in DIFFERENTIABLE[3:]}
"""What the gradient of a tensor is called."""
TANGENTS = {name: f"{name}_tangent" for name in (*DIFFERENTIABLE, "o", "lse", "max_logits")}
"""What the tangent of a tensor is called, an operand or a result of a forward-mode derivative."""

_OF = {"d_o": "o", "d_lse": "lse"}
_OF |= {derivative: name for names in (GRADIENTS, TANGENTS) for name, derivative in names.items()}


class CallAxes:
    """The axes of the tensors of one call: of operands with these shapes, all of 8 bits or not."""

    def __init__(self, operands: Mapping[str, Any], eight_bit: bool) -> None:
        q, k = operands["q"].shape, operands["k"].shape
        self.packed = len(q) == 3 or len(k) == 3
        self.eight_bit = eight_bit
        self.heads_q: int = q[-2]
        self.heads_kv: int = k[-2]
        self.batch: int | None = None if self.packed else q[0]

    def of(self, name: str, shape: Shape) -> str:
        """A letter for each axis; an axis of extent 1 that stands for every sequence or head is any other."""
        name = _OF.get(name, name)
        letters = "bk.." if name == "v" and self.eight_bit else _AXES.get(name, "." * len(shape))
        letters = letters[len(letters) - len(shape) :]
        extents = {"b": self.batch, "h": self.heads_q, "k": self.heads_kv}
        return "".join(x if extents.get(x) == n else "." for x, n in zip(letters, shape, strict=True))

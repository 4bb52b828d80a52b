# SPDX-License-Identifier: Apache-2.0
"""``attn_implementation="strobe"`` for Hugging Face transformers: encoders, decoders, both, generation with a cache.

Every model knows it once this is imported.

attention.py is what a layer calls, masks.py makes the masks of a forward, mask_functions.py reads what a mask function
of transformers means, padding.py decides how that is computed, and compute.py computes it.
"""

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from strobe.integrations.transformers.attention import attend
from strobe.integrations.transformers.masks import make_mask

__all__ = ["register"]


def register() -> None:
    """Makes ``attn_implementation="strobe"`` known to every model, as the import has; calling it again changes nothing.

    The mask that a model asks for is computed: causal, windows, chunks, documents by their positions and padding
    become options of attention, every other mask and those of four axes a bias. Rows of padding may be 0. Attention
    weights are not returned; that and arguments of attention that Strobe does not have raise NotImplementedError.
    """
    AttentionInterface.register("strobe", attend)
    AttentionMaskInterface.register("strobe", make_mask)


register()

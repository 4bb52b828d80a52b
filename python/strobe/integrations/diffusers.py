# SPDX-License-Identifier: Apache-2.0
"""``model.set_attention_backend("strobe")`` for Hugging Face diffusers. Every model knows it once this is imported."""

from typing import Any

from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from strobe.torch import sdpa

__all__ = ["register"]

_NAME = "strobe"


def register() -> None:
    """Makes the backend known, as the import has; calling it again changes nothing.

    diffusers has a registry and an enumeration of names, and no call that adds to them: both are extended as its own
    backends extend them.
    """
    if _NAME in AttentionBackendName._value2member_map_:
        return
    member: Any = str.__new__(AttentionBackendName, _NAME)
    member._name_, member._value_ = _NAME.upper(), _NAME
    AttentionBackendName._member_map_[member._name_] = member
    AttentionBackendName._member_names_.append(member._name_)
    AttentionBackendName._value2member_map_[_NAME] = member
    type.__setattr__(AttentionBackendName, member._name_, member)
    _AttentionBackendRegistry.register(member)(_attend)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    _parallel_config: Any = None,
) -> Tensor:
    """[batch, seqlen_q, heads, head_dim_v] of query, key and value [batch, seqlen, heads, head_dim].

    attn_mask is bool, True where a query sees a key, or added: [batch, seqlen_k] or what broadcasts to [batch, heads,
    seqlen_q, seqlen_k]. With gradients.
    """
    if _parallel_config is not None:
        raise NotImplementedError("context parallelism is enabled: the backend strobe does not have it")
    if attn_mask is not None and attn_mask.dim() == 2 and attn_mask.shape == (query.shape[0], key.shape[1]):
        attn_mask = attn_mask[:, None, None]
    with sdpa():
        out = scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (query, key, value)),
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return out.transpose(1, 2)


register()

# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, made on the spot, whose next tokens depend on attention."""

from pathlib import Path

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer

WIDTH, HEADS, HEADS_KV, HEAD_DIM, LAYERS = 256, 8, 2, 32, 4
VOCABULARY = 512
CONTEXT = 2048
WINDOW = 48
_SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    intermediate_size=512,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS_KV,
    head_dim=HEAD_DIM,
    max_position_embeddings=CONTEXT,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
)
ONE_KEY_HEAD = "one_key_head"
_SLIDING_AND_FULL = ["sliding_attention", "full_attention"] * (LAYERS // 2)

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**_SHAPE),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE),
    ONE_KEY_HEAD: lambda: transformers.Qwen3Config(**_SHAPE | {"num_key_value_heads": 1}),
    "mistral": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=WINDOW),
    "gemma2": lambda: transformers.Gemma2Config(
        **_SHAPE | {"tie_word_embeddings": True},
        sliding_window=WINDOW,
        layer_types=_SLIDING_AND_FULL,
        query_pre_attn_scalar=HEAD_DIM,
        attn_logit_softcapping=5.0,
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SHAPE, sliding_window=WINDOW, layer_types=_SLIDING_AND_FULL, query_pre_attn_scalar=HEAD_DIM
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_SHAPE,
        sliding_window=WINDOW,
        layer_types=_SLIDING_AND_FULL,
        num_local_experts=4,
        num_experts_per_tok=4,  # all: rounding changes a choice among nearly equal ones, and with it the tokens
    ),
    "bloom": lambda: transformers.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=0, eos_token_id=1
    ),
}
"""Grouped heads, norms of q and k, one key head, windows, softcap, windows in half of the layers, sinks, and ALiBi."""

_LATENT = _SHAPE | dict(
    num_key_value_heads=HEADS,
    kv_lora_rank=512,  # and 64 rotated columns: of what vLLM's own CPU backend has kernels of
    qk_rope_head_dim=64,
    head_dim=64,  # in transformers, of what is rotated
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=128,
    first_k_dense_replace=1,
    num_hidden_layers=3,
)
_DEEPSEEK_V2 = _LATENT | dict(
    q_lora_rank=None,
    qk_nope_head_dim=128,
    v_head_dim=128,
    n_group=1,
    topk_group=1,
    topk_method="greedy",
)
MLA_CONFIGS = {
    "deepseek_v2": lambda: transformers.DeepseekV2Config(**_DEEPSEEK_V2),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **_LATENT,
        q_lora_rank=64,
        qk_nope_head_dim=32,
        v_head_dim=48,
        n_group=2,
        topk_group=1,
        topk_method="noaux_tc",
        scoring_func="sigmoid",
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": CONTEXT // 4,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ),
}
"""Latent attention, with queries of their own and compressed ones, and values as wide as keys' first parts and wider;
the second with a scale that YaRN multiplies."""

WITHOUT_EXPERTS = "deepseek_v2_without_experts"
SERVED = "wide"
_CONFIGS = (
    CONFIGS
    | MLA_CONFIGS
    | {
        WITHOUT_EXPERTS: lambda: transformers.DeepseekV2Config(**_DEEPSEEK_V2 | {"first_k_dense_replace": 3}),
        SERVED: lambda: transformers.LlamaConfig(**_SHAPE | {"hidden_size": 1024, "head_dim": 128}),
    }
)


def _draw(model: torch.nn.Module, sharpness: float) -> None:
    """Weights that keep activations near 1; q and k `sharpness` times as large, so that rows attend to few keys."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            deviation = 1.0
        elif name.endswith("router.bias"):
            deviation = 0.02  # transformers' own, which has no seed
        elif parameter.dim() < 2:
            continue
        else:
            sharp = any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "query_key_value"))
            deviation = (sharpness if sharp else 1.0) / parameter.shape[-1] ** 0.5
        parameter.data.normal_(0.0, deviation, generator=generator)


def make(
    name: str,
    folder: Path,
    text: Path,
    sharpness: float = 3.0,
    config: transformers.PretrainedConfig | None = None,
) -> Path:
    """The folder of a model in Hugging Face's format, in float32, with a tokenizer trained on `text`.

    `config` is of a model that has no name here.
    """
    model = transformers.AutoModelForCausalLM.from_config(config or _CONFIGS[name]()).float()
    _draw(model, sharpness)
    target = folder / f"{name}-{sharpness}"
    model.save_pretrained(target)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(text)], vocab_size=VOCABULARY, show_progress=False, special_tokens=["<s>", "</s>", "<pad>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(target)
    return target

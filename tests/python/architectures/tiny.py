# SPDX-License-Identifier: Apache-2.0
"""A tiny model with random weights of any architecture of transformers, from its default configuration made small."""

import re

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY = 130
HEAD = 8
HEADS = 4
WIDTH = HEAD * HEADS
LARGEST = 1e8  # parameters of what still counts as tiny

_SIZES = (
    (r"(text_|src_|tgt_|^)vocab_size(_per_layer_input)?", VOCABULARY),
    (r"num_hidden_layers|num_layers|n_layers?|encoder_layers|decoder_layers|num_decoder_layers|depth|layers", 2),
    (r"num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads|attention_heads|heads", HEADS),
    (r"(cross_)?num_attention_heads|(en|de)coder_num_attention_heads|swa_num_attention_heads", HEADS),
    (r"(swa_|cross_)?num_key_value_heads|num_kv_heads", 2),
    (r"(swa_|cross_|attention_)?head_dim|d_kv|d_head|dim_head|v_head_dim|qk_nope_head_dim|qk_rope_head_dim", HEAD),
    (r"qk_head_dim", 2 * HEAD),
    (r"(en|de)coder_ffn_dim|ffn_dim|d_ff|dff|dim_ff|d_inner|ffn_hidden_size|mlp_dim|n_inner", 48),
    (r"(\w+_)?intermediate_size(_mlp)?|intermediate_dim", 48),
    (r"(\w+_)?hidden_size|d_model|n_embd|dim|emb_dim|(word_)?embed_dim|embedding_size|hidden_dim|d_embed", WIDTH),
    (r"projection_dim|projection_size|project_dim|word_embed_proj_dim|projector_hidden_size|out_hidden_size", WIDTH),
    (r"(kv|q|o)_lora_rank", 16),
    (r"(num_|n_)?(local_|routed_)?experts|moe_num_experts|num_routed_experts", 4),
    (r"(num_)?experts_per_tok|moe_topk|moe_k|top_k_experts|num_selected_experts", 4),
    (r"n_group|topk_group", 1),
    (r"sliding_window(_size)?|local_attention|keep_window_size", 5),
    (r"attention_chunk_size", 6),
    (r"max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|original_max_position_embeddings", 64),
    (r"max_(en|de)coder_position_embeddings|model_max_length|max_seq_len|max_sequence_length", 64),
    (r"image_size|resolution", 32),
    (r"patch_size", 8),
    (r"index_(n_heads|topk)", 4),
    (r"index_head_dim", 2 * HEAD),
    (r"mamba_n_heads|mamba_num_heads|linear_num_(key|value)_heads|linear_num_heads|num_linear_key_value_heads", 4),
    (r"mamba_d_head|mamba_head_dim|linear_(key|value|)_?head_dim", 16),
    (r"mamba_d_state|ssm_state_size|state_size", 16),
    (r"query_pre_attn_scalar", HEAD),
    (r"hidden_size_per_layer_input", HEAD),
    (r"type_vocab_size", 2),
    (r"num_kv_shared_layers|num_nextn_predict_layers|first_k_dense_replace|max_window_layers", 0),
    (r"rotary_dim|rope_dim", HEAD),
)
_KINDS = ("layer_types", "layers_block_type")
_DERIVED = ("out_features", "out_indices", "per_layer_config", "stage_names")  # from what is made smaller here
_IDENTITY = ("transformers_version", "architectures", "_attn_implementation", "torch_dtype", "dtype")


def _size(name, value):
    if name.endswith(("_token_id", "_token_index", "_id", "_index")) and value >= VOCABULARY - 20:
        return VOCABULARY - 2 - sum(map(ord, name)) % 15
    for pattern, size in _SIZES:
        if re.fullmatch(pattern, name):
            return min(size, value) if value > 0 or size == 0 else value
    return value


def _one_of_each(kinds):
    """Each kind of layer once, at least two layers."""
    distinct = list(dict.fromkeys(kinds))
    return (distinct * 2)[: max(2, len(distinct))]


def _small(settings):
    """The same settings with sizes of a tiny model; those of its parts, too."""
    small = {}
    for name, value in settings.items():
        if name in _DERIVED or name in _IDENTITY:
            continue
        if isinstance(value, dict) and name not in ("rope_parameters", "rope_scaling"):
            small[name] = _small(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            small[name] = _size(str(name), value)
        else:
            small[name] = value
    if "kv_lora_rank" in small and "num_key_value_heads" in small:
        small["num_key_value_heads"] = HEADS  # latent attention has keys for each head
    return _with_fewer_layers(small, settings)


def _with_fewer_layers(small, settings):
    layers = next((n for n in ("num_hidden_layers", "n_layer", "num_layers") if isinstance(small.get(n), int)), None)
    if layers is None:
        return small
    kinds = next((small[name] for name in _KINDS if small.get(name)), None)
    if kinds:
        small[layers] = len(_one_of_each(kinds))
    for name, value in settings.items():
        if name in _KINDS and value:
            small[name] = _one_of_each(value)
        elif isinstance(value, list) and len(value) == settings[layers] and name in small:
            small[name] = value[: small[layers]]
            if all(isinstance(x, int) and x > WIDTH for x in value):
                small[name] = [48] * small[layers]
    for name in ("rope_parameters", "rope_scaling"):
        parameters = small.get(name)
        if isinstance(parameters, dict) and "rope_type" in parameters:
            small[name] = parameters | {"mrope_section": [2, 1, 1]}  # half a head
    return small


_MAPPINGS = (
    ("MODEL_FOR_CAUSAL_LM",),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ"),
    ("MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_MULTIMODAL_LM", "MODEL_FOR_MASKED_LM", "MODEL"),
)


def classes():
    """[architecture, classes to try]: one with a causal head, one with a source, and one of another kind if need be."""
    found = {}
    for mappings in _MAPPINGS:
        for architecture in modeling_auto.MODEL_MAPPING_NAMES | modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES:
            names = [getattr(modeling_auto, f"{mapping}_MAPPING_NAMES").get(architecture) for mapping in mappings]
            names = [name if isinstance(name, str) else name[0] for name in names if name]
            if names and (len(mappings) < 3 or architecture not in found):
                found.setdefault(architecture, []).append(list(dict.fromkeys(names)))
            elif names:  # where the other does not build
                found[architecture][-1].extend(names)
    return [(architecture, names) for architecture, groups in found.items() for names in groups]


def configuration(architecture, **settings):
    config_class = CONFIG_MAPPING[architecture]
    small = _small(config_class().to_dict())
    small.pop("model_type", None)
    return config_class(**small | settings)


def model_of(architecture, names, **settings):
    """The model of the first of these classes that builds; the first error where none does."""
    errors = []
    for name in names:
        try:
            return build(getattr(transformers, name), configuration(architecture, **settings))
        except Exception as error:
            errors.append(error)
    raise errors[0]


def build(model_class, config):
    """In float32, with weights that make scores of about 1, the same ones each time."""
    with torch.device("meta"):
        parameters = sum(p.numel() for p in model_class(config).parameters())
    if parameters > LARGEST:
        raise ValueError(f"{parameters / 1e6:.0f} million parameters, too many for a tiny model")
    torch.manual_seed(0)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.5 * parameter[0].numel() ** -0.5)
    return model

# SPDX-License-Identifier: Apache-2.0
"""Which backends vLLM chooses for models with MLA and without: by the selector of its GPU platform, and on a CPU."""

import importlib
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import strobe_vllm
import torch
from installed import HAS_MLA, needs_mla
from vllm.config import set_current_vllm_config
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
from vllm.v1.attention.backends.mla.prefill.selector import (
    MLADimensions,
    MLAPrefillSelectorConfig,
    get_mla_prefill_backend,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

HOPPER = DeviceCapability(9, 0)
DEEPSEEK = MLADimensions(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)


@pytest.fixture(autouse=True)
def plug_in(monkeypatch):
    """vLLM's own registrations again after each test."""
    from vllm.v1.attention.backends import registry
    from vllm.v1.attention.backends.mla.prefill import registry as prefill_registry

    for module, name in ((registry, "_ATTN_OVERRIDES"), (prefill_registry, "_MLA_PREFILL_OVERRIDES")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    strobe_vllm.register()


@pytest.fixture
def gpu_platform(monkeypatch):
    """That of a Hopper GPU; the package for CPUs has the class and lacks the kernels that its module loads."""
    monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
    from vllm.platforms.cuda import CudaPlatformBase

    monkeypatch.setattr(CudaPlatformBase, "get_device_capability", classmethod(lambda cls, device_id=0: HOPPER))
    modules = ["strobe_vllm.backend", "strobe_vllm.support", *(["strobe_vllm.mla.backend"] if HAS_MLA else [])]
    for module in modules:
        monkeypatch.setattr(importlib.import_module(module), "current_platform", SimpleNamespace(is_cpu=lambda: False))
    return CudaPlatformBase


def chosen(platform, backend, *, has_mla: bool, **options) -> str:
    head_size = 576 if has_mla else 128
    config = AttentionSelectorConfig(head_size, torch.bfloat16, "auto", None, use_mla=has_mla)
    model = SimpleNamespace(use_mla=has_mla)
    with set_current_vllm_config(SimpleNamespace(model_config=model, cache_config=None)):
        return platform.get_attn_backend_cls(backend, config._replace(**options), 16)


def custom(platform, **options) -> str:
    """Of a model without MLA."""
    return chosen(platform, AttentionBackendEnum.CUSTOM, has_mla=False, **options)


@needs_mla
def test_custom_is_for_either_model(gpu_platform):
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True) == strobe_vllm.MLA_BACKEND
    assert custom(gpu_platform) == strobe_vllm.BACKEND


@pytest.mark.skipif(HAS_MLA, reason="is of vLLM before 0.31")
def test_models_with_mla_need_a_later_vllm(gpu_platform):
    with pytest.raises(ValueError, match="models with MLA need vLLM"):
        chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True)
    assert "strobe" not in chosen(current_platform, None, has_mla=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_rswa": True}, "R-SWA not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"dtype": torch.float64}, "dtype not supported"),
        ({"block_size": 12}, "block_size not supported"),
        *(({"head_size": size}, "head_size not supported") for size in (100, 520)),
        *(
            ({"kv_cache_dtype": name}, "kv_cache_dtype not supported")
            for name in ("fp8_e5m2", "int8_per_token_head", "int4_per_token_head", "nvfp4")
        ),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype is float16 and the model's torch.bfloat16"),
        (
            {"kv_cache_dtype": "bfloat16", "dtype": torch.float16},
            "kv_cache_dtype is bfloat16 and the model's torch.float16",
        ),
        (
            {"kv_cache_dtype": "fp8", "head_size": 320},
            "head_size is 320: with an fp8 cache on a GPU it must",
        ),
        (
            {"kv_cache_dtype": "fp8", "head_size": 72},
            "head_size is 72: with an fp8 cache on a GPU it must be a",
        ),
        ({"dtype": torch.float32, "head_size": 256}, "head_size is 256: in float32 on a GPU it must be at most 128"),
    ],
)
def test_reasons_where_other_models_are_refused(gpu_platform, options, reason):
    with pytest.raises(ValueError, match=reason):
        custom(gpu_platform, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        *({"dtype": dtype} for dtype in (torch.float16, torch.float32)),
        *({"head_size": size} for size in (8, 72, 256, 512)),
        *({"block_size": size} for size in (8, 16, 48)),
        *({"kv_cache_dtype": name} for name in ("bfloat16", "fp8", "fp8_e4m3")),
        {"kv_cache_dtype": "fp8", "head_size": 256, "use_per_head_quant_scales": True},
        {"kv_cache_dtype": "float16", "dtype": torch.float16},
        *({name: True} for name in ("has_sink", "has_sliding_window", "use_mm_prefix", "use_non_causal", "use_dcp")),
        {"use_kv_connector": True},
        *({"attn_type": kind} for kind in AttentionType),
    ],
)
def test_what_other_models_may_have(gpu_platform, options):
    assert custom(gpu_platform, **options) == strobe_vllm.BACKEND


def test_batch_invariance(gpu_platform, monkeypatch):
    """vLLM has it from the variable."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert custom(gpu_platform, use_batch_invariant=True) == strobe_vllm.BACKEND
    for capability in ((9, 0), (8, 0)):
        is_served = capability == (9, 0)
        of_device = classmethod(lambda cls, device_id=0, capability=capability: DeviceCapability(*capability))
        monkeypatch.setattr(gpu_platform, "get_device_capability", of_device)
        reason = "batch invariance with an fp8 cache on a GPU needs compute capability 9.0"
        with nullcontext() if is_served else pytest.raises(ValueError, match=reason):
            assert custom(gpu_platform, use_batch_invariant=True, kv_cache_dtype="fp8") == strobe_vllm.BACKEND


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_compute_capabilities(gpu_platform, monkeypatch, capability):
    other = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
    monkeypatch.setattr(gpu_platform, "get_device_capability", other)
    if capability >= (8, 0):
        assert custom(gpu_platform, kv_cache_dtype="fp8") == strobe_vllm.BACKEND
    else:
        with pytest.raises(ValueError, match="compute capability not supported"):
            custom(gpu_platform)


@needs_mla
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_sparse": True}, "sparse not supported"),
        ({"use_rswa": True}, "R-SWA not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"use_batch_invariant": True}, "batch invariance not supported"),
        ({"has_sink": True}, "attention sinks not supported"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype is fp8_e5m2: it must be one of auto, float16, bfloat16, fp8"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "kv_cache_dtype is fp8_ds_mla: it must be one of auto"),
        ({"kv_cache_dtype": "fp8", "head_size": 320}, "kv_cache_dtype is fp8 and head_size 320: with MLA on a GPU"),
        ({"kv_cache_dtype": "float16"}, "kv_cache_dtype is float16 and the model's torch.bfloat16"),
        ({"use_mla": False}, "non-MLA not supported"),
    ],
)
def test_reasons_where_mla_is_refused(gpu_platform, options, reason):
    with pytest.raises(ValueError, match=reason):
        chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True, **options)


@needs_mla
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dcp": True},
        {"use_non_causal": True},
        *({"kv_cache_dtype": name} for name in ("bfloat16", "fp8", "fp8_e4m3")),
    ],
)
def test_what_mla_takes(gpu_platform, options):
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True, **options) == strobe_vllm.MLA_BACKEND


@needs_mla
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_latents_of_8_bits_are_refused_beside_hopper(gpu_platform, monkeypatch, capability):
    other = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
    monkeypatch.setattr(gpu_platform, "get_device_capability", other)
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True) == strobe_vllm.MLA_BACKEND
    with pytest.raises(ValueError, match="kv_cache_dtype is fp8: with MLA on a GPU it needs compute capability"):
        chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True, kv_cache_dtype="fp8")


@pytest.mark.parametrize("has_mla", [pytest.param(True, marks=needs_mla), False])
@pytest.mark.parametrize("backend", [None, *(AttentionBackendEnum[name] for name in ("CPU_MLA", "AMX_MLA", "CUSTOM"))])
def test_a_cpu_has_one_backend_whatever_is_chosen(backend, has_mla):
    expected = strobe_vllm.MLA_BACKEND if has_mla else strobe_vllm.BACKEND
    assert chosen(current_platform, backend, has_mla=has_mla) == expected


@needs_mla
def test_prompts_of_mla():
    config = MLAPrefillSelectorConfig(torch.bfloat16, DEEPSEEK)
    backend = MLAPrefillBackendEnum.CUSTOM.get_class()
    assert f"{backend.__module__}.{backend.__qualname__}" == strobe_vllm.MLA_PREFILL
    assert get_mla_prefill_backend(None) is backend  # the one of a CPU
    assert backend.validate_configuration(HOPPER, config) == []
    wide = MLADimensions(qk_nope_head_dim=512, qk_rope_head_dim=64, v_head_dim=128)
    assert backend.validate_configuration(HOPPER, config._replace(mla_dimensions=wide))
    assert backend.validate_configuration(DeviceCapability(7, 5), config)

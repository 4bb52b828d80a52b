# SPDX-License-Identifier: Apache-2.0
"""Which backends vLLM chooses for models with MLA and without: by the selector of its GPU platform, and on a CPU."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import strobe_vllm
import torch
from vllm.config import set_current_vllm_config
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
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
    monkeypatch.setattr("strobe_vllm.mla.backend.current_platform", SimpleNamespace(is_cpu=lambda: False))
    return CudaPlatformBase


def chosen(platform, backend, *, has_mla: bool, **options) -> str:
    head_size = 576 if has_mla else 128
    config = AttentionSelectorConfig(head_size, torch.bfloat16, "auto", None, use_mla=has_mla)
    model = SimpleNamespace(use_mla=has_mla)
    with set_current_vllm_config(SimpleNamespace(model_config=model, cache_config=None)):
        return platform.get_attn_backend_cls(backend, config._replace(**options), 16)


def test_custom_is_for_either_model(gpu_platform):
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True) == strobe_vllm.MLA_BACKEND
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=False) == strobe_vllm.BACKEND


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


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_latents_of_8_bits_are_refused_beside_hopper(gpu_platform, monkeypatch, capability):
    other = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
    monkeypatch.setattr(gpu_platform, "get_device_capability", other)
    assert chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True) == strobe_vllm.MLA_BACKEND
    with pytest.raises(ValueError, match="kv_cache_dtype is fp8: with MLA on a GPU it needs compute capability"):
        chosen(gpu_platform, AttentionBackendEnum.CUSTOM, has_mla=True, kv_cache_dtype="fp8")


@pytest.mark.parametrize("has_mla", [True, False])
@pytest.mark.parametrize("backend", [None, *(AttentionBackendEnum[name] for name in ("CPU_MLA", "AMX_MLA", "CUSTOM"))])
def test_a_cpu_has_one_backend_whatever_is_chosen(backend, has_mla):
    expected = strobe_vllm.MLA_BACKEND if has_mla else strobe_vllm.BACKEND
    assert chosen(current_platform, backend, has_mla=has_mla) == expected


def test_prompts_of_mla():
    config = MLAPrefillSelectorConfig(torch.bfloat16, DEEPSEEK)
    backend = MLAPrefillBackendEnum.CUSTOM.get_class()
    assert f"{backend.__module__}.{backend.__qualname__}" == strobe_vllm.MLA_PREFILL
    assert get_mla_prefill_backend(None) is backend  # the one of a CPU
    assert backend.validate_configuration(HOPPER, config) == []
    wide = MLADimensions(qk_nope_head_dim=512, qk_rope_head_dim=64, v_head_dim=128)
    assert backend.validate_configuration(HOPPER, config._replace(mla_dimensions=wide))
    assert backend.validate_configuration(DeviceCapability(7, 5), config)

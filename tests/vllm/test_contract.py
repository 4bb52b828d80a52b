# SPDX-License-Identifier: Apache-2.0
"""What contract.py says of vLLM is what the installed vLLM has."""

import dataclasses
import inspect

import contract
import mla_contract
import pytest
from installed import needs_mla
from vllm import envs
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.attention import mla_attention
from vllm.v1.attention import backend
from vllm.v1.attention.backends.mla.prefill import base


def test_members_have_the_values_of_vllm():
    for name in ("AttentionType", "AttentionCGSupport"):
        ours, theirs = getattr(contract, name), getattr(backend, name)
        assert all(theirs[member.name].value == member.value for member in ours)
    for mode in contract.CUDAGraphMode:
        full = CUDAGraphMode[mode.name].mixed_mode() == CUDAGraphMode.FULL
        assert full == (mode.mixed_mode() == contract.CUDAGraphMode.FULL)


def test_metadata_has_the_fields_of_vllm():
    theirs = {field.name for field in dataclasses.fields(backend.CommonAttentionMetadata)}
    assert {field.name for field in dataclasses.fields(contract.CommonAttentionMetadata)} <= theirs


def test_builders_are_made_alike():
    ours, theirs = (
        inspect.signature(module.AttentionMetadataBuilder.__init__).parameters for module in (contract, backend)
    )
    assert list(ours) == list(theirs)


@needs_mla
@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (mla_attention, "MLACommonDecodeMetadata"),
        (mla_attention, "MLACommonMetadata"),
        (base, "MLADimensions"),
    ],
)
def test_classes_of_mla_have_the_fields_of_vllm(theirs, name):
    """In their order, but for fields of prompts."""
    fields = [field.name for field in dataclasses.fields(getattr(mla_contract, name))]
    assert fields == [field.name for field in dataclasses.fields(getattr(theirs, name)) if field.name in fields]


@needs_mla
@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (mla_attention.MLACommonMetadataBuilder, "__init__"),
        (mla_attention.MLACommonMetadataBuilder, "build"),
        (base.MLAPrefillBackend, "__init__"),
        (base.MLAPrefillBackend, "prepare_metadata"),
    ],
)
def test_methods_of_mla_are_called_alike(theirs, name):
    ours = getattr(mla_contract, theirs.__name__)
    signatures = [inspect.signature(getattr(owner, name)).parameters for owner in (ours, theirs)]
    assert list(signatures[0]) == list(signatures[1])


@needs_mla
@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (mla_attention.MLACommonMetadataBuilder, "_build_decode"),
        (mla_attention.MLACommonImpl, "forward_mqa"),
        (mla_attention.MLACommonImpl, "do_kv_cache_update"),
        (mla_attention.MLACommonImpl, "_compute_prefill_context"),
        (base.MLAPrefillBackend, "run_prefill_new_tokens"),
        (base.MLAPrefillBackend, "run_prefill_context_chunk"),
    ],
)
def test_overridden_methods_of_mla_have_the_parameters_of_vllm(theirs, name):
    from strobe_vllm.mla import implementation, metadata, prefill

    ours = {
        "MLACommonMetadataBuilder": metadata.StrobeMLAMetadataBuilder,
        "MLACommonImpl": implementation.StrobeMLAImpl,
        "MLAPrefillBackend": prefill.StrobeMLAPrefill,
    }[theirs.__name__]
    signatures = [inspect.signature(getattr(owner, name)).parameters for owner in (ours, theirs)]
    assert list(signatures[0]) == list(signatures[1])


def test_ranks_share_keys_in_a_group_of_vllm(monkeypatch):
    from vllm.distributed import parallel_state

    assert {"all_gather", "world_size"} <= set(dir(parallel_state.GroupCoordinator)) | {"world_size"}
    monkeypatch.setattr(parallel_state, "_DCP", None)
    with pytest.raises(AssertionError):
        parallel_state.get_dcp_group()


@pytest.mark.parametrize("value", ["0", "1"])
def test_batch_invariance_is_asked_for_by_a_variable(monkeypatch, value):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", value)
    assert envs.VLLM_BATCH_INVARIANT == contract._Variables("envs").VLLM_BATCH_INVARIANT == bool(int(value))

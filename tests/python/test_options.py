# SPDX-License-Identifier: Apache-2.0
"""The list of options is that of the C++ module, of the C structs and of every framework's calls."""

import ctypes
import importlib
import inspect
import pydoc
import re
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest
import strobe
import strobe.jax
import strobe.torch
import torch
from strobe import _core, _options
from strobe._option_list import EIGHT_BIT_NAMES, OPTIONS, SCORE_NAMES, options_of
from strobe.torch import ops

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def structs():
    """Those of strobe.h."""
    sys.path.insert(0, str(ROOT / "scripts/gpu"))
    yield importlib.import_module("c_header").Header((ROOT / "include/strobe/strobe.h").read_text()).structs
    sys.path.remove(str(ROOT / "scripts/gpu"))


def test_every_option_has_a_text():
    assert [name for name, option in OPTIONS.items() if not option.text] == []
    assert OPTIONS["scale"].text.startswith("Multiplies Q K^T; 1/sqrt(head_dim) where it is not given.")


def test_the_module_has_the_same_options():
    shape = strobe._shapes.tensor_shape((1, 8, 2, 16), "float32", "cpu")
    with pytest.raises(TypeError, match="no_option is no option of a call: the options are ") as error:
        _core.explain(shape, shape, shape, False, no_option=1)
    names = str(error.value).partition("the options are ")[2].split(", ")
    assert sorted(names) == sorted(OPTIONS)


def test_the_c_structs_have_the_same_options(structs):
    owners = ("options", "sequences", "score_modifiers", "random_state", "execution", "forward_arguments")
    fields = {name: kind for owner in owners for name, kind in structs[f"strobe_{owner}"]._fields_}
    kinds = {
        structs["strobe_tensor"]: {"tensor"},
        structs["strobe_rotation"]: {"word"},
        ctypes.c_float: {"number"},
        ctypes.c_int64: {"integer"},
        ctypes.c_uint64: {"word"},
        ctypes.c_int32: {"flag", "integer", "other"},  # or an enum
        ctypes.c_void_p: {"integer", "tensor", "other"},  # stream; two words in memory; the function of texts
        ctypes.c_char_p: {"other"},  # kernels
    }
    renamed = {"random_state": "random_on_device", "window": "window_left", "score": "function"}
    of_python_alone = {"out_dtype", "mask_text"}  # the dtype of a tensor that is given in C, and a part of the function
    for name in OPTIONS.keys() - of_python_alone:
        kind = fields.pop(renamed.get(name, name))
        assert name == "window" or OPTIONS[name].kind in kinds[kind], name
    results = {"q", "k", "v", "o", "lse", "max_logits"}
    groups = {"sequences", "modifiers", "random"}
    parts_of_options = {"has_scale", "has_window", "window_right", "struct_size"}
    parts_of_options |= {"capture_count", "reserved"}
    callbacks = {"parallel_for", "parallel_for_context", "allocate_workspace", "allocate_workspace_context"}
    assert fields.keys() == results | groups | parts_of_options | callbacks | {"workspace", "workspace_bytes"}


EXECUTION = {"threads", "engine", "stream"}


def test_appends_and_quantisations_have_the_options_of_c(structs):
    fields = {name for name, _ in structs["strobe_append_arguments"]._fields_}
    required = {"struct_size", "k_cache", "v_cache", "k_new", "v_new", "cache_seqlens"}
    options = options_of(strobe.AppendOptions).keys() - EXECUTION - {"q_in_order"} | {"q_at_first_position"}
    assert fields == required | options

    fields = {name for name, _ in structs["strobe_quantize_options"]._fields_}
    fields |= {name for name, _ in structs["strobe_sequences"]._fields_ if not name.startswith("seqused")}
    assert fields == {"struct_size", "reserved"} | (options_of(strobe.QuantizeOptions).keys() - EXECUTION)


OF_TYPES = {"causal", "window"}  # whose default in C is that of a type of their own


@pytest.mark.parametrize(
    ("kind", "header", "elsewhere"),
    [
        (strobe.Options, "attention.h", OF_TYPES),
        (strobe.AppendOptions, "cache.h", EXECUTION),
        (strobe.QuantizeOptions, "quantize.h", EXECUTION),
    ],
    ids=["Options", "AppendOptions", "QuantizeOptions"],
)
def test_defaults_are_those_of_c(kind, header, elsewhere):
    text = (ROOT / "include/strobe" / header).read_text()
    literals = {"false": False, "true": True, "-1": -1, "0": 0, "0.0": 0.0, "128": 128}
    for name, option in options_of(kind).items():
        if option.default is not None and name not in elsewhere:
            (default,) = set(re.findall(rf"\b{name} = (?:\w+::)?([\w.-]+?)F?;", text))
            assert literals.get(default, default) == option.default, name


def test_defaults_change_nothing():
    q, k, v = arrays()
    defaults = {name: option.default for name, option in OPTIONS.items()}
    np.testing.assert_array_equal(strobe.attention(q, k, v, **defaults), strobe.attention(q, k, v))


def test_jax_calls_read_every_option():
    text = (ROOT / "python/src/jax_calls.cpp").read_text()
    read = set(re.findall(r'name == "(\w+)"', text))
    for of_calls in ("tensors", "option_fields"):  # lists of which it reads everything
        read |= set(re.findall(r'"(\w+)"', (ROOT / f"src/call/{of_calls}.h").read_text()))
    by_parts = {"window": {"window_left", "window_right"}, "out_dtype": {"o"}}
    by_parts |= {"captures": {"capture_names"}}
    by_parts |= {name: {"random"} for name in ("seed", "offset", "random_state")}
    for name in (*SCORE_NAMES, *EIGHT_BIT_NAMES):
        assert by_parts.get(name, {name}) <= read, name


FUNCTIONS = {
    strobe.attention: strobe.Options,
    strobe.attention_backward: strobe.Options,
    strobe.explain: strobe.Options,
    strobe.torch.attention: strobe.ScoreOptions,
    strobe.jax.attention: _options.JaxOptions,
    strobe.append: strobe.AppendOptions,
    strobe.quantize: strobe.QuantizeOptions,
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_functions_show_their_options(function):
    """To help(), and to completion by keyword-only parameters."""
    parameters = inspect.signature(function).parameters
    text = pydoc.plain(pydoc.render_doc(function))
    for name, option in options_of(FUNCTIONS[function]).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.default
        assert f"    {name}: {option.type_name}" in text
        assert option.text
        assert option.text in " ".join(text.split())
    assert "options" not in parameters
    assert "Annotated" not in text


@pytest.mark.parametrize("kind", set(FUNCTIONS.values()), ids=lambda kind: kind.__name__)
def test_types_show_their_options(kind):
    text = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace(" |  ", " ").split())
    for option in options_of(kind).values():
        assert option.text in text


def test_examples_of_docstrings_run():
    q, k, v = arrays()
    names = {"np": np, "strobe": strobe, "q": q, "k": k, "v": v}
    for documented in (strobe.attention, strobe.Options, strobe.quantize):
        text = documented.__doc__.partition("Example:")[2].partition("\n\n")[2]
        example = text.partition("\n\n")[0]
        assert "strobe." in example
        exec(textwrap.dedent(example), names)
    assert names["out"].shape == names["q"].shape


SEQLEN = 150
LENGTHS = np.array([0, 40, SEQLEN], np.int32)
PACKED = {"cu_seqlens_q": LENGTHS, "cu_seqlens_k": LENGTHS}
BLOCKS = np.array([[[[1, 0], [1, 1]]]], np.uint8)
SMALL_BLOCKS = np.array([[[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]], np.uint8)


def arrays(packed=False):
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((2, SEQLEN, 2, 16), dtype=np.float32) for _ in range(3))
    return [x[0] for x in (q, k, v)] if packed else [q, k, v]


# A call with the option, and whether the option changes its result.
SAMPLES = {
    "scale": ({"scale": 0.3}, True),
    "causal": ({"causal": "top_left"}, True),
    "window": ({"window": (9, 3)}, True),
    "chunk": ({"chunk": 16}, True),
    "softcap": ({"softcap": 0.5}, True),
    "dropout": ({"dropout": 0.25, "seed": 1}, True),
    "deterministic": ({"deterministic": True}, False),
    "row_invariant": ({"row_invariant": True}, False),
    "log_length": ({"log_length": 4}, True),
    "normalize": ({"normalize": "none", "score": "sigmoid(score)"}, True),
    "alibi_slopes": ({"alibi_slopes": np.array([0.5, 0.1], np.float32)}, True),
    "bias": ({"bias": np.random.default_rng(4).standard_normal((1, 2, SEQLEN, SEQLEN), np.float32)}, True),
    "sink": ({"sink": np.array([1, 2], np.float32)}, True),
    "block_mask": ({"block_mask": BLOCKS}, True),
    "block_size": ({"block_mask": SMALL_BLOCKS, "block_size": 64}, False),
    "seed": ({"dropout": 0.25, "seed": 2**63 + 5, "offset": 0}, True),
    "offset": ({"dropout": 0.25, "seed": 0, "offset": 2**40 + 7}, True),
    "random_state": ({"dropout": 0.25, "seed": 1, "random_state": np.array([1, 2, 3, 4], np.int32)}, True),
    "dropout_first_batch": ({"dropout": 0.25, "seed": 1, "dropout_first_batch": 3}, True),
    "dropout_first_head": ({"dropout": 0.25, "seed": 1, "dropout_first_head": 1, "dropout_heads": 4}, True),
    "dropout_heads": ({"dropout": 0.25, "seed": 1, "dropout_heads": 5}, True),
    "cu_seqlens_q": (PACKED, False),
    "cu_seqlens_k": (PACKED, False),
    "seqused_q": ({"seqused_q": np.array([100, 3], np.int32)}, True),
    "seqused_k": ({"seqused_k": np.array([100, 3], np.int32)}, True),
    "offset_q": ({"offset_q": np.array([7, 0], np.int32), "causal": True}, True),
    "offset_k": ({"offset_k": np.array([0, 30], np.int32), "causal": True}, True),
    "max_seqlen_q": (PACKED | {"max_seqlen_q": 110}, False),
    "max_seqlen_k": (PACKED | {"max_seqlen_k": 110}, False),
    "threads": ({"threads": 1}, False),
    "score": ({"score": "score * 2 - k"}, True),
    "mask_text": ({"mask_text": "k <= q"}, True),
    "captures": ({"score": "score + a[k]", "captures": {"a": np.linspace(0, 9, SEQLEN, dtype=np.float32)}}, None),
}


def of_torch(values):
    return {
        name: torch.from_numpy(x) if isinstance(x, np.ndarray) else of_torch(x) if isinstance(x, dict) else x
        for name, x in values.items()
    }


def call_numpy(q, k, v, options):
    return strobe.attention(q, k, v, **options)


def call_torch(q, k, v, options):
    return strobe.torch.attention(*map(torch.from_numpy, (q, k, v)), **of_torch(options)).numpy()


def call_operator(q, k, v, options):
    arguments = ops.operator_arguments(*map(torch.from_numpy, (q, k, v)), of_torch(options))
    return torch.ops.strobe.attention(*arguments)[0].numpy()


def call_jax(q, k, v, options):
    return np.asarray(jax.jit(lambda *x: strobe.jax.attention(*x, **options))(q, k, v))


@pytest.mark.parametrize("name", SCORE_NAMES)
def test_every_framework_passes_the_option_on(name):
    options, has_effect = SAMPLES[name]
    assert name in options
    tensors = arrays(packed="cu_seqlens_q" in options)
    wanted = call_numpy(*tensors, options)
    for call in (call_torch, call_operator, call_jax):
        np.testing.assert_array_equal(call(*tensors, options), wanted, err_msg=call.__name__)
    if has_effect:
        without = {other: value for other, value in options.items() if other != name}
        assert (wanted != call_numpy(*tensors, without)).any()

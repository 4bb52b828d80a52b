# SPDX-License-Identifier: Apache-2.0
"""Seeds and offsets: all 64 bits count, of every type of integer and in every framework; none is made up."""

import jax
import ml_dtypes
import numpy as np
import pytest
import reference
import strobe
import strobe.jax
import strobe.torch
import torch

jnp = jax.numpy
CALLS = {
    "numpy": strobe.attention,
    "torch": lambda *qkv, **options: strobe.torch.attention(*map(torch.from_numpy, qkv), **options).numpy(),
    "strobe on torch": lambda *qkv, **options: strobe.attention(*map(torch.from_numpy, qkv), **options).numpy(),
    "jax": lambda *qkv, **options: np.asarray(strobe.jax.attention(*map(jnp.asarray, qkv), **options)),
}


@pytest.fixture
def qkv():
    generator = np.random.default_rng(1)
    return [generator.standard_normal((1, 33, 2, 8), dtype=np.float32) for _ in range(3)]


@pytest.mark.parametrize("framework", CALLS)
@pytest.mark.parametrize("name", ["seed", "offset"])
@pytest.mark.parametrize(
    "number",
    [
        *(np.int8(7), np.uint8(200), np.int16(7), np.uint16(7), np.int32(2**31 - 1), np.uint32(2**32 - 1)),
        *(np.int64(2**40 + 7), np.uint64(2**63 + 7), np.array(2**50, np.int64), jnp.uint32(2**32 - 1), torch.tensor(7)),
        *(0, 2**32, 2**63, 2**64 - 1),
    ],
)
def test_all_bits_count(qkv, framework, name, number):
    mask = strobe.dropout_mask((1, 2, 33, 33), 0.5, **{name: int(number)})
    wanted, _, _ = reference.attention(*qkv, dropout=0.5, keep=mask)
    np.testing.assert_allclose(CALLS[framework](*qkv, dropout=0.5, **{name: number}), wanted, atol=1e-5)


@pytest.mark.parametrize(("framework", "dropout"), [*((name, 0.5) for name in CALLS), ("numpy", 0.0), ("jax", 0.0)])
@pytest.mark.parametrize("name", ["seed", "offset"])
@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (-1, ValueError, "is -1: it must be from 0 to 2^64 - 1"),
        (np.int32(-1), ValueError, "is -1: it must be from 0 to 2^64 - 1"),
        (jnp.int32(-1), ValueError, "is -1: it must be from 0 to 2^64 - 1"),
        (2**64, ValueError, "is 18446744073709551616: it must be from 0 to 2^64 - 1"),
        pytest.param(
            10**5000, ValueError, "is a number of thousands of digits: it must be from 0 to 2^64 - 1", id="huge"
        ),
        (1.5, TypeError, "is of type float: it must be an integer"),
        (1.0, TypeError, "is of type float: it must be an integer"),
        (np.float32(1), TypeError, "is of type float32: it must be an integer"),
        (True, TypeError, "is of type bool: it must be an integer"),
        (np.bool_(True), TypeError, "is of type bool: it must be an integer"),
        (torch.tensor(True), TypeError, "is of type torch.Tensor: it must be an integer"),
        ("1", TypeError, "is of type str: it must be an integer"),
        (np.array([1]), TypeError, "is of type ndarray: it must be an integer"),
    ],
)
def test_what_is_no_seed(qkv, framework, name, number, error, message, dropout):
    with pytest.raises(error) as caught:
        CALLS[framework](*qkv, dropout=dropout, **{name: number})
    assert str(caught.value) == f"{name} {message}"


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_dropout_needs_a_seed(qkv, framework):
    with pytest.raises(ValueError, match="dropout is given without a seed: give seed"):
        CALLS[framework](*qkv, dropout=0.5)
    with pytest.raises(ValueError, match="dropout is given without a seed: give seed"):
        CALLS[framework](*qkv, dropout=0.5, seed=None)
    CALLS[framework](*qkv, dropout=0.0)


def test_backward_needs_the_seed_of_the_forward(qkv):
    o, lse = strobe.attention(*qkv, dropout=0.5, seed=1, return_lse=True)
    for make in (np.asarray, torch.from_numpy):
        with pytest.raises(ValueError, match="dropout is given without a seed: give seed"):
            strobe.attention_backward(*map(make, (o, *qkv, o, lse)), dropout=0.5)


@pytest.mark.parametrize("framework", ["torch", "strobe on torch"])
def test_pytorch_draws_a_seed(qkv, framework):
    torch.manual_seed(3)
    first, second = (CALLS[framework](*qkv, dropout=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert (CALLS[framework](*qkv, dropout=0.5) == first).all()
    assert (first != second).any()


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint32"])
def test_traced_seeds(qkv, dtype):
    traced = jax.jit(lambda seed, offset: strobe.jax.attention(*qkv, dropout=0.5, seed=seed, offset=offset))
    seed, offset = (jnp.asarray(x, dtype) for x in (200, 100))
    assert (traced(seed, offset) == strobe.attention(*qkv, dropout=0.5, seed=200, offset=100)).all()


def test_traced_seeds_of_64_bits(qkv):
    with jax.enable_x64(True):
        traced = jax.jit(lambda seed: strobe.jax.attention(*qkv, dropout=0.5, seed=seed))
        assert (traced(jnp.uint64(2**63 + 5)) == strobe.attention(*qkv, dropout=0.5, seed=2**63 + 5)).all()


@pytest.mark.parametrize("seed", [jnp.float32(1), jnp.asarray(True), jnp.zeros(1, jnp.uint32)])
def test_what_is_no_traced_seed(qkv, seed):
    with pytest.raises(TypeError, match=r"seed has shape .* it must be an integer"):
        jax.jit(lambda seed: strobe.jax.attention(*qkv, dropout=0.5, seed=seed))(seed)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (jnp.zeros(*x), "random_state must be four neighbouring int32: the words of seed and offset, low first")
        for x in (*((n, jnp.int32) for n in (0, 1, 2, 3, 5, (1, 4))), (4, jnp.float32))
    ]
    + [(jnp.zeros(4, dtype), f"random_state is {dtype}: it must be int32") for dtype in ("uint32", "int16")],
)
def test_jax_checks_random_state(qkv, state, message):
    for call in (strobe.jax.attention, jax.jit(strobe.jax.attention, static_argnames="dropout")):
        with pytest.raises(ValueError) as caught:
            call(*map(jnp.asarray, qkv), dropout=0.5, random_state=state)
        assert str(caught.value) == message


def test_jax_reads_random_state(qkv):
    state = jnp.asarray(np.array([2**40 + 3, 7], np.uint64).view(np.int32))
    traced = jax.jit(lambda state: strobe.jax.attention(*qkv, dropout=0.5, random_state=state))
    assert (traced(state) == strobe.attention(*qkv, dropout=0.5, seed=2**40 + 3, offset=7)).all()


def test_bfloat16_is_no_integer(qkv):
    with pytest.raises(TypeError, match=r"seed is of type ml_dtypes\.bfloat16: it must be an integer"):
        strobe.attention(*qkv, dropout=0.5, seed=ml_dtypes.bfloat16(1))


SEEDS_OF_GRAPHS = [7, 2**40 + 3, 2**63 + 7, 2**64 - 1, np.int64(2**40 + 3), np.uint8(200), torch.tensor(7)]


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("number", SEEDS_OF_GRAPHS)
@pytest.mark.parametrize("name", ["seed", "offset"])
def test_all_bits_count_in_graphs(qkv, name, number, fullgraph):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda number, *qkv: strobe.torch.attention(*qkv, dropout=0.5, **{name: number}),
        backend="aot_eager",
        fullgraph=fullgraph,
    )
    mask = strobe.dropout_mask((1, 2, 33, 33), 0.5, **{name: int(number)})
    wanted, _, _ = reference.attention(*qkv, dropout=0.5, keep=mask)
    np.testing.assert_allclose(compiled(number, *map(torch.from_numpy, qkv)), wanted, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", ["seed", "offset"])
@pytest.mark.parametrize(
    ("number", "error", "message"),
    [
        (-1, ValueError, "is -1: it must be from 0 to 2^64 - 1"),
        (2**64, ValueError, "is 18446744073709551616: it must be from 0 to 2^64 - 1"),
        (1.5, TypeError, "is of type float: it must be an integer"),
        (np.float32(1), TypeError, "is of type float32: it must be an integer"),
        (True, TypeError, "is of type bool: it must be an integer"),
        (np.bool_(True), TypeError, "is of type bool: it must be an integer"),
        (torch.tensor(True), TypeError, "is of type torch.Tensor: it must be an integer"),
        (torch.tensor(1.5), TypeError, "is of type torch.Tensor: it must be an integer"),
        ("1", TypeError, "is of type str: it must be an integer"),
        (np.array([1]), TypeError, "is of type ndarray: it must be an integer"),
    ],
)
def test_what_is_no_seed_of_a_graph(qkv, name, number, error, message, dropout):
    qkv = [torch.from_numpy(x) for x in qkv]

    def attend(number, *qkv):
        return strobe.torch.attention(*qkv, dropout=dropout, **{name: number})

    def attend_in_vmap(*arguments):
        return torch.func.vmap(lambda q: attend(number, q, *qkv[1:]))(qkv[0][None])

    torch._dynamo.reset()
    for call in (torch.compile(attend, backend="aot_eager"), attend_in_vmap):
        with pytest.raises(error) as caught:
            call(number, *qkv)
        assert str(caught.value) == f"{name} {message}"
    # A graph without breaks has PyTorch's own error, which quotes this one.
    if error is TypeError and not isinstance(number, (np.generic, np.ndarray)):
        with pytest.raises(Exception, match=message):
            torch.compile(attend, backend="aot_eager", fullgraph=True)(number, *qkv)


def test_negative_tensors_are_no_seeds_of_a_graph(qkv):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda seed, *qkv: strobe.torch.attention(*qkv, dropout=0.5, seed=seed), backend="aot_eager"
    )
    with pytest.raises((ValueError, RuntimeError), match="it must be from 0 to 2"):  # where the graph breaks, or in it
        compiled(torch.tensor(-1), *map(torch.from_numpy, qkv))

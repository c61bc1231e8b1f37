"""Dense GEMMs: every layout, type and argument, and every wrong one."""

import numpy as np
import pytest

import oxigemm
from oxigemm import deep_gemm

from arrays import BF16, E4M3, E5M2, calc_diff, dequantized, normals, per_32, per_block, per_token, scales

SHAPES = [(1, 128, 128), (5, 256, 384), (70, 136, 272)]


@pytest.mark.parametrize("m, n, k", SHAPES)
@pytest.mark.parametrize("out", [BF16, np.float32])
def test_fp8_nt(device, m, n, k, out):
    a, b = per_token(m, k), per_block(n, k, seed=1)
    d = np.empty((m, n), out)
    assert deep_gemm.fp8_gemm_nt(a, b, d) is None
    assert calc_diff(d, dequantized(a) @ dequantized(b).T) < 1e-4


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_fp8_layouts(device, layout):
    m, n, k = 16, 128, 256
    a, b = per_token(m, k), per_block(n, k, seed=1)
    transposed = lambda x: tuple(np.ascontiguousarray(part.T) for part in x)  # noqa: E731
    given_a = transposed(a) if layout[0] == "t" else a
    given_b = transposed(b) if layout[1] == "n" else b
    d = np.empty((m, n), BF16)
    getattr(deep_gemm, f"fp8_gemm_{layout}")(given_a, given_b, d)
    assert calc_diff(d, dequantized(a) @ dequantized(b).T) < 1e-4
    # Views of operands along K are the same call.
    view_a = tuple(x.T for x in a) if layout[0] == "t" else a
    view_b = tuple(x.T for x in b) if layout[1] == "n" else b
    seen = np.empty((m, n), BF16)
    getattr(deep_gemm, f"fp8_gemm_{layout}")(view_a, view_b, seen)
    assert (seen.view(np.uint16) == d.view(np.uint16)).all()


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("recipe", [None, (1, 1, 128)])
def test_fp8_addend_and_row_scales(device, same, recipe):
    m, n, k = 64, 64, 128
    a, b = per_token(m, k), per_token(n, k, seed=1)
    old = normals(m, n, seed=2)
    d = old.copy() if same else np.empty_like(old)
    deep_gemm.fp8_gemm_nt(a, b, d, c=d if same else old, recipe=recipe)
    assert calc_diff(d, old + dequantized(a) @ dequantized(b).T) < 1e-4


@pytest.mark.parametrize("rows, recipe", [(1, (1, 1, 32)), (32, (1, 32, 32))])
@pytest.mark.parametrize("m, n, k", [(1, 128, 128), (70, 136, 272), (5, 33, 48)])
def test_fp8_scales_of_32(device, rows, recipe, m, n, k):
    a, b = per_32(m, k), per_32(n, k, rows=rows, seed=1)
    exact = dequantized(a, 32) @ dequantized(b, 32).T
    old = normals(m, n, seed=2)
    recipes = [{}, {"recipe": recipe}, {"recipe_a": (1, 32), "recipe_b": (rows, 32)}]
    for layout, given in zip([np.ascontiguousarray, np.asfortranarray, np.ascontiguousarray], recipes):
        d = np.empty((m, n), np.float32)
        deep_gemm.fp8_gemm_nt((a[0], layout(a[1])), (b[0], layout(b[1])), d, c=old, **given)
        assert calc_diff(d, old + exact) < 1e-4
    d = np.empty((m, n), BF16)
    deep_gemm.fp8_gemm_nt(a, b, d, recipe=recipe)
    assert calc_diff(d, exact) < 1e-4


def test_fp8_e5m2(device):
    a, b = per_token(3, 128, dtype=E5M2), per_block(128, 128, seed=1)
    d = np.empty((3, 128), BF16)
    deep_gemm.fp8_gemm_nt(a, b, d)
    assert calc_diff(d, dequantized(a) @ dequantized(b).T) < 1e-4


def test_scales_of_any_strides_and_padded_rows(device):
    m, n, k = 5, 128, 256
    a, b = per_token(m, k), per_block(n, k, seed=1)
    mn_major = np.zeros((2, 8), np.float32)[:, :m].T
    mn_major[:] = a[1]
    wide = np.zeros((m, k + 16), E4M3)[:, :k]
    wide[:] = a[0]
    d = np.full((m, n + 7), 3.0, np.float32)
    deep_gemm.fp8_gemm_nt((wide, mn_major), b, d[:, :n])
    assert calc_diff(d[:, :n], dequantized(a) @ dequantized(b).T) < 1e-4
    assert (d[:, n:] == 3.0).all()


@pytest.mark.parametrize("dtype, name", [(BF16, "bf16"), (np.float16, "fp16")])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("out", ["same", "float32"])
def test_half(device, dtype, name, layout, out):
    m, n, k = 24, 64, 64
    a, b = normals(m, k).astype(dtype), normals(n, k, seed=1).astype(dtype)
    given_a = np.ascontiguousarray(a.T) if layout[0] == "t" else a
    given_b = np.ascontiguousarray(b.T) if layout[1] == "n" else b
    d = np.empty((m, n), dtype if out == "same" else np.float32)
    old = normals(m, n, seed=2).astype(d.dtype)
    getattr(deep_gemm, f"{name}_gemm_{layout}")(given_a, given_b, d, c=old)
    exact = a.astype(np.float64) @ b.astype(np.float64).T + old.astype(np.float64)
    assert calc_diff(d, exact) < (1e-5 if out == "same" else 1e-10)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_tf32(layout):
    m, n, k = 24, 64, 48
    a, b, old = normals(m, k), normals(n, k, seed=1), normals(m, n, seed=2)
    given_a = np.ascontiguousarray(a.T) if layout[0] == "t" else a
    given_b = np.ascontiguousarray(b.T) if layout[1] == "n" else b
    # A tensor core reads the upper 19 bits.
    read = lambda x: (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)  # noqa: E731
    function, d = getattr(deep_gemm, f"tf32_gemm_{layout}"), np.empty((m, n), np.float32)
    before = oxigemm.get_device()
    try:
        for name in ("cpu", "sim:sm_100a"):
            oxigemm.set_device(name)
            function(given_a, given_b, d, c=old)
            assert calc_diff(d, read(a) @ read(b).T + old.astype(np.float64)) < 1e-10
        oxigemm.set_device("sim")
        with pytest.raises(oxigemm.OxigemmError, match="tf32"):
            function(given_a, given_b, d)
    finally:
        oxigemm.set_device(before)


@pytest.mark.parametrize("m, n, k", [(0, 64, 64), (4, 0, 64), (4, 64, 0)])
def test_nothing_to_multiply(device, m, n, k):
    old = normals(m, n, seed=3)
    for c, expected in [(None, np.zeros((m, n))), (old, old)]:
        d = np.full((m, n), 7.0, np.float32)
        deep_gemm.bf16_gemm_nt(normals(m, k).astype(BF16), normals(n, k).astype(BF16), d, c)
        assert (d == expected).all()


def test_dlpack_arrays(device):
    class Wrapped:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **_):
            return self.array.__dlpack__()

    m, n, k = 4, 32, 32
    a, b = normals(m, k).astype(np.float16), normals(n, k, seed=1).astype(np.float16)
    d = np.empty((m, n), np.float32)
    deep_gemm.fp16_gemm_nt(Wrapped(a), Wrapped(b), Wrapped(d))
    assert calc_diff(d, a.astype(np.float64) @ b.astype(np.float64).T) < 1e-10


def call(**changes):
    """A call that is right but for the changes."""
    arguments = {
        "a": per_token(8, 256),
        "b": per_block(128, 256, seed=1),
        "d": np.empty((8, 128), BF16),
        **changes,
    }
    deep_gemm.fp8_gemm_nt(**arguments)


WRONG = [
    # what is given, the argument at fault, the kind of error, words of the text
    ({"a": per_token(8, 256)[0]}, "a", TypeError, "a pair of an operand and its scales"),
    ({"a": (*per_token(8, 256), None)}, "a", TypeError, "a tuple of 3"),
    ({"a": ("text", scales(8, 2))}, "a", TypeError, "found str"),
    ({"a": (normals(8, 256), scales(8, 2))}, "a", TypeError, "found f32"),
    ({"a": (normals(8, 256).astype(np.float64), scales(8, 2))}, "a", TypeError, "found float64"),
    ({"a": (per_token(8, 256)[0], scales(8, 3))}, "sfa", ValueError, "[8, 2]"),
    ({"a": (per_token(8, 256)[0], scales(8, 2).astype(np.float16))}, "sfa", TypeError, "found f16"),
    ({"a": (per_token(8, 256)[0], scales(8, 3).astype(np.int32))}, "sfa", ValueError, "1 i32 along K"),
    ({"a": (per_token(8, 256)[0].reshape(2, 4, 256), scales(8, 2))}, "a", ValueError, "2 dimensions"),
    ({"a": (per_token(8, 512)[0][:, ::2], scales(8, 2))}, "a", ValueError, "strides"),
    ({"a": (per_token(8, 256)[0][::-1], scales(8, 2))}, "a", ValueError, "strides of 0 or more"),
    ({"b": per_block(128, 128)}, "b", ValueError, "256"),
    ({"b": (per_block(128, 256)[0], scales(5, 2))}, "sfb", ValueError, "found [5, 2]"),
    ({"d": np.empty((8, 64), BF16)}, "d", ValueError, "[8, 128]"),
    ({"d": np.empty((8, 128), np.float16)}, "d", TypeError, "found f16"),
    ({"d": np.empty((128, 8), BF16).T}, "d", ValueError, "strides"),
    ({"c": np.empty((8, 128), np.float32)}, "c", TypeError, "found f32"),
    ({"c": np.empty((8, 64), BF16)}, "c", ValueError, "found [8, 64]"),
    ({"recipe": (1, 1, 128)}, "sfb", ValueError, "[128, 2] by `recipe`"),
    ({"recipe": (1, 128, 32)}, "recipe", ValueError, "(1, 128, 128), (1, 1, 128), (1, 32, 32) or (1, 1, 32)"),
    ({"recipe": (1, 1, 32)}, "sfa", ValueError, "[8, 8] by `recipe`"),
    ({"recipe_a": (1, 32), "recipe_b": (128, 128)}, "recipe", ValueError, "A [1, 32], B [128, 128]"),
    ({"a": (per_token(8, 256)[0], scales(8, 8))}, "sfb", ValueError, "32 of K"),
    ({"recipe": (1, 128, 128), "recipe_a": (1, 128)}, "recipe", ValueError, "either"),
    ({"recipe_a": (1, 128)}, "recipe", ValueError, "both"),
]


@pytest.mark.parametrize("changes, argument, kind, words", WRONG)
def test_what_is_wrong_is_named(device, changes, argument, kind, words):
    with pytest.raises(oxigemm.OxigemmError) as caught:
        call(**changes)
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, kind)
    assert caught.value.argument == argument
    assert f"`{argument}`" in str(caught.value) and words in str(caught.value)


def test_an_array_that_cannot_be_written():
    d = np.empty((8, 128), BF16)
    d.flags.writeable = False
    with pytest.raises(ValueError, match="`d` cannot be written: expected an array that can, found a read-only one"):
        call(d=d)


def test_what_is_right_passes(device):
    call()
    call(recipe=(1, 128, 128), compiled_dims="mnk", disable_ue8m0_cast=True)
    call(recipe_a=(1, 128), recipe_b=(128, 128))


def test_an_output_that_is_an_input_is_refused(device):
    memory = np.zeros(8 * 256 + 8 * 128 * 2, np.uint8)
    a = memory[: 8 * 256].view(E4M3).reshape(8, 256)
    d = memory[256 : 256 + 8 * 128 * 2].view(BF16).reshape(8, 128)
    with pytest.raises(ValueError, match="`a` overlaps `d`"):
        call(a=(a, scales(8, 2)), d=d)


def test_types_are_those_of_the_function():
    x = normals(8, 64).astype(np.float16)
    with pytest.raises(TypeError, match="`a` has the wrong element type: expected bfloat16, found f16"):
        deep_gemm.bf16_gemm_nt(x, x, np.empty((8, 8), np.float32))

"""Casts, and what is beside them."""

import os

import numpy as np
import pytest

import oxigemm
from oxigemm import deep_gemm
from oxigemm.deep_gemm import testing, utils

from arrays import BF16, E4M3, calc_diff, dequantized, normals


def scale_of(largest, use_ue8m0):
    sf = np.maximum(largest, np.float32(1e-4)) / np.float32(448.0)
    return np.exp2(np.ceil(np.log2(sf.astype(np.float64)))).astype(np.float32) if use_ue8m0 else sf


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_per_token(device, use_ue8m0, dtype):
    x = (normals(5, 300) * 3).astype(dtype)
    codes, sf = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0)
    assert codes.dtype == E4M3 and codes.shape == x.shape and sf.shape == (5, 3)
    padded = np.zeros((5, 384), np.float32)
    padded[:, :300] = abs(x.astype(np.float32))
    assert np.allclose(sf, scale_of(padded.reshape(5, 3, 128).max(2), use_ue8m0), rtol=1e-6)
    assert calc_diff(dequantized((codes, sf)), x) < 1e-3


def test_per_token_of_32_and_packed(device):
    x = normals(6, 512)
    codes, sf = deep_gemm.per_token_cast_to_fp8(x, True, gran_k=32)
    assert sf.shape == (6, 16)
    _, packed = deep_gemm.per_token_cast_to_fp8(x, True, gran_k=32, use_packed_ue8m0=True)
    assert packed.shape == (6, 4) and packed.dtype == np.int32
    assert (deep_gemm.unpack_ue8m0_from_int(packed) == sf).all()


@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_per_block_and_channel(device, use_ue8m0):
    x = normals(256, 200)
    codes, sf = deep_gemm.per_block_cast_to_fp8(x, use_ue8m0)
    assert sf.shape == (2, 2) and calc_diff(dequantized((codes, sf)), x) < 1e-3
    codes, sf = deep_gemm.per_channel_cast_to_fp8(x, use_ue8m0)
    assert sf.shape == (2, 200)
    assert calc_diff(codes.astype(np.float64) * np.repeat(sf, 128, 0), x) < 1e-3


@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_custom_dims(device, use_ue8m0):
    x = normals(6, 40)
    codes, sf = deep_gemm.per_custom_dims_cast_to_fp8(x, (0,), use_ue8m0)
    assert sf.shape == (6,)
    assert np.allclose(sf, scale_of(abs(x).max(1), use_ue8m0), rtol=1e-6)
    cube = normals(3, 4, 16)
    codes, sf = deep_gemm.per_custom_dims_cast_to_fp8(cube, (0, 1), use_ue8m0)
    assert codes.shape == cube.shape and sf.shape == (3, 4)
    assert calc_diff(codes.astype(np.float64) * sf[:, :, None], cube) < 1e-3


def test_custom_dims_that_are_all(device):
    x = normals(4, 4) + 3
    codes, sf = deep_gemm.per_custom_dims_cast_to_fp8(x, (0, 1), False)
    assert sf.shape == (4, 4) and (codes.astype(np.float32) == 448).all()


def test_layouts_of_packed_scales(device):
    x = np.exp2(np.arange(8, dtype=np.float32)).reshape(2, 4)
    packed = deep_gemm.pack_ue8m0_to_int(np.asfortranarray(x))
    assert (packed == deep_gemm.pack_ue8m0_to_int(x)).all()
    wide = np.concatenate([packed, packed], 1)[:, ::2]
    assert (deep_gemm.unpack_ue8m0_from_int(wide) == x).all()


@pytest.mark.parametrize("use_ue8m0, packed", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("gran_k", [128, 32])
def test_fp4(device, use_ue8m0, packed, gran_k):
    x = normals(6, 512)
    codes, sf = deep_gemm.per_token_cast_to_fp4(x, use_ue8m0, gran_k, packed)
    assert codes.shape == (6, 256) and codes.dtype == np.int8
    back = deep_gemm.cast_back_from_fp4(codes, sf, gran_k, packed)
    assert back.shape == x.shape and calc_diff(back, x) < 0.02
    transposed = deep_gemm.transpose_packed_fp4(codes)
    assert transposed.shape == (512, 3)
    assert (deep_gemm.transpose_packed_fp4(transposed) == codes).all()


def test_fp4_values():
    x = np.array([[0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0]], np.float32)
    codes, sf = deep_gemm.per_token_cast_to_fp4(x, False)
    assert sf[0, 0] == 1.0
    assert codes.view(np.uint8).tolist() == [[0x10, 0x3A, 0xD4, 0x76]]
    assert (deep_gemm.cast_back_from_fp4(codes, sf) == x).all()


def test_ue8m0():
    x = np.array([[1.0, 1.5, 2.0, 3e-39], [448.0, 0.1, 1e-30, 1e30]], np.float32)
    up = deep_gemm.ceil_to_ue8m0(x)
    assert (up >= x).all() and (up[:, :3] / 2 < x[:, :3]).all()
    assert (np.frexp(up)[0] == 0.5).all()
    packed = deep_gemm.pack_ue8m0_to_int(up)
    assert packed.shape == (2, 1) and (deep_gemm.unpack_ue8m0_from_int(packed) == up).all()


WRONG = [
    (lambda x: deep_gemm.per_token_cast_to_fp8(x, False, gran_k=64), "gran_k", "128 or 32"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(x, False, use_packed_ue8m0=True), "use_packed_ue8m0", "use_ue8m0"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(x[0], False), "x", "2 dimensions"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(x.astype(np.int32), False), "x", "f32"),
    (lambda x: deep_gemm.per_channel_cast_to_fp8(x, False), "x", "multiple of 128 rows"),
    (lambda x: deep_gemm.per_block_cast_to_fp8(x, False, gran_k=32), "gran_k", "128"),
    (lambda x: deep_gemm.pack_ue8m0_to_int(x[:, :3]), "x", "multiple of 4"),
    (lambda x: deep_gemm.pack_ue8m0_to_int(x.astype(np.float64)), "x", "expected float32, found float64"),
    (lambda x: deep_gemm.pack_ue8m0_to_int(x.astype(">f4")), "x", "big-endian"),
    (lambda x: deep_gemm.pack_ue8m0_to_int(np.float32(1)), "x", "multiple of 4"),
    (lambda x: deep_gemm.ceil_to_ue8m0(x.astype(np.float64)), "x", "expected float32"),
    (lambda x: deep_gemm.unpack_ue8m0_from_int(x.astype(np.int64)), "packed", "expected int32"),
    (lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x, (9,), False), "dims", "-2 to 1, found 9"),
    (lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x, (0, -3), False), "dims", "found -3"),
    (lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x, (0.0,), False), "dims", "an integer"),
    (lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x, 0, False), "dims", "a tuple"),
    (lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x[:, :0], (0,), False), "x", "elements for each scale"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(x, "yes"), "use_ue8m0", "True or False"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(x, True, 128.0), "gran_k", "an integer"),
    (lambda x: deep_gemm.per_token_cast_to_fp8(np.ma.masked_array(x), True), "x", "without a mask"),
    (lambda x: deep_gemm.per_token_cast_to_fp4(x, True, 0), "gran_k", "1 to 65536"),
    (lambda x: deep_gemm.transpose_packed_fp4(np.zeros((1, 4), np.int8)), "packed", "even number of rows"),
    (lambda x: deep_gemm.cast_back_from_fp4(np.zeros((6, 128), np.int8), x[:, :1]), "sf", "(6, 2)"),
    (lambda x: deep_gemm.calc_diff(x, x[:1]), "y", "(6, 256)"),
    (lambda x: deep_gemm.calc_diff(x.astype(np.complex64), x), "x", "complex64"),
    (lambda x: deep_gemm.ceil_div(4, 0), "y", "1 or more"),
    (lambda x: deep_gemm.align(4.5, 2), "x", "4.5 (float)"),
    (lambda x: deep_gemm.get_tma_aligned_size(4, 32), "element_size", "16 bytes"),
    (lambda x: deep_gemm.set_num_sms(1.5), "new_num_sms", "an integer"),
    (lambda x: deep_gemm.set_tc_util(None), "new_tc_util", "an integer"),
    (lambda x: deep_gemm.set_pdl("on"), "enable", "True or False"),
    (lambda x: oxigemm.set_device(None), "name", "a string"),
    (lambda x: oxigemm.config.set_cache_dir(5), "path", "a path"),
    (lambda x: oxigemm.config.load_tuned(5), "path", "a path"),
    (lambda x: oxigemm.config.set_cache_dir(""), "path", "a directory"),
    (lambda x: oxigemm.config.load_all(-1), "gpu", "0 to 63"),
    (lambda x: utils.dist.init_dist(2, 2), "local_rank", "0 to 1, found 2"),
]


@pytest.mark.parametrize("function, argument, words", WRONG)
def test_what_is_wrong_is_named(function, argument, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        function(normals(6, 256))
    assert caught.value.argument == argument and words in str(caught.value)


def test_shapes():
    assert utils.ceil_div(7, 4) == 2 and utils.align(7, 4) == 8 and utils.align(8, 4) == 8
    assert utils.get_tma_aligned_size(5, 4) == 8 and utils.layout.get_tma_aligned_size(5, 1) == 16


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_comparing():
    x = normals(4, 5)
    assert testing.calc_diff(x, x) == 0 and testing.calc_diff(x, -x) == 2
    assert testing.calc_diff(np.zeros(3), np.zeros(3)) == 0
    testing.assert_bitwise_equal(x, x.copy())
    testing.assert_bitwise_equal(x, x.copy(), "equal")
    for other in (x + 1, x[:2], x.astype(np.float64)):
        with pytest.raises(AssertionError):
            testing.assert_bitwise_equal(x, other)
        with pytest.raises(AssertionError, match="^second call: "):
            testing.assert_bitwise_equal(x, other, label="second call")
    square = abs(normals(3, 3))
    # Where `*` is the product of matrices.
    assert testing.calc_diff(np.asmatrix(square), square.T) == testing.calc_diff(square, square.T)
    assert testing.count_bytes(x, (x, None, [x])) == 3 * 80


def test_decorators(monkeypatch, capsys):
    assert testing.get_arch_major() == 9

    @testing.test_filter(lambda: False)
    def never():
        raise AssertionError

    never()
    assert "never" in capsys.readouterr().out
    assert testing.test_filter(lambda: True)(lambda: 5)() == 5
    monkeypatch.setenv("OXIGEMM_TEST", "1")
    look = lambda: os.environ.get("OXIGEMM_TEST")  # noqa: E731
    assert testing.ignore_env("OXIGEMM_TEST", lambda: True)(look)() is None
    assert testing.ignore_env("OXIGEMM_TEST", lambda: False)(look)() == "1" == look()


def test_suppressed_output(capfd):
    with testing.empty_suppress():
        print("heard")
    with testing.suppress_stdout_stderr():
        print("silence")
        os.write(1, b"silence")
        os.write(2, b"silence")
    print("heard again")
    with pytest.raises(KeyError), testing.suppress_stdout_stderr():
        raise KeyError
    found = capfd.readouterr()
    assert found.out == "heard\nheard again\n" and found.err == ""


def test_suppressed_output_of_a_stream_of_python(capsys):
    with testing.suppress_stdout_stderr():
        print("silence")
    assert capsys.readouterr().out == ""


TUNED = """{
  "version": 1,
  "configs": [
    {"arch":"sm_90a","sms":132,"operands":"fp8 operands with scales","grouping":"dense",
     "m":1,"n":576,"k":7168,"config":"sm90_fp8_split_k_8x64_k4_s6"}
  ]
}
"""


def test_files_of_tuned_configurations(tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(TUNED)
    assert oxigemm.config.load_tuned(path) == oxigemm.config.load_tuned(str(path)) == 1
    path.write_text(TUNED.replace("8x64", "9x64"))
    with pytest.raises(oxigemm.OxigemmError, match="entry 1 of 1: there is no configuration"):
        oxigemm.config.load_tuned(path)
    with pytest.raises(oxigemm.OxigemmError, match="nowhere.json"):
        oxigemm.config.load_tuned(tmp_path / "nowhere.json")
    path.write_text('{"version": 1, "configs": []}')
    assert oxigemm.config.load_tuned(path) == 0

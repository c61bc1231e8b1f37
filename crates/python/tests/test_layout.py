"""Layout transforms of scales."""

import numpy as np
import pytest

from oxigemm import deep_gemm

from arrays import scales


def strides(array):
    return [stride // array.itemsize for stride in array.strides]


@pytest.mark.parametrize("shape", [(5, 3), (8, 2), (2, 7, 5)])
@pytest.mark.parametrize("transposed", [False, True])
def test_mn_major(device, shape, transposed):
    sf = scales(*shape)
    if transposed:
        sf = np.ascontiguousarray(sf.swapaxes(-1, -2)).swapaxes(-1, -2)
    found = deep_gemm.get_mn_major_tma_aligned_tensor(sf)
    *slabs, mn, k = shape
    pitch = deep_gemm.get_tma_aligned_size(mn, 4)
    assert (found == sf).all()
    assert strides(found) == [pitch * k] * len(slabs) + [1, pitch]
    assert deep_gemm.get_mn_major_tma_aligned_tensor(found) is found


@pytest.mark.parametrize("shape", [(5, 3), (8, 8), (2, 7, 5)])
def test_packed(device, shape):
    exponents = np.random.default_rng(0).integers(-20, 20, shape)
    sf = np.exp2(exponents).astype(np.float32)
    found = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)
    *slabs, mn, k = shape
    columns = -(-k // 4)
    padded = np.zeros((*slabs, mn, 4 * columns), np.uint8)
    padded[..., :k] = exponents + 127
    assert found.dtype == np.int32 and found.shape == (*slabs, mn, columns)
    assert (found == padded.view(np.int32)).all()
    assert strides(found)[-2:] == [1, deep_gemm.get_tma_aligned_size(mn, 4)]


def test_packed_scales_lose_their_mantissa(device):
    sf = np.linspace(0.5, 7.5, 24, dtype=np.float32).reshape(6, 4)
    expected = (sf.view(np.int32) >> 23).astype(np.uint8).view(np.int32)
    assert (deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(sf) == expected).all()
    found = deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        np.ascontiguousarray(sf.T), np.array([512], np.int32), [512], 128, 128
    )
    assert (found == expected.T).all()


@pytest.mark.parametrize("mn", [8, 5])
def test_packed_k_grouped(device, mn):
    ks = [512, 0, 128, 640]
    rows = [k // 128 for k in ks]
    exponents = np.random.default_rng(0).integers(-20, 20, (sum(rows), mn))
    found = deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        np.exp2(exponents).astype(np.float32), np.array(ks, np.int32), ks, 128, 128
    )
    expected, first = [], 0
    for count in rows:
        padded = np.zeros((mn, -(-count // 4) * 4), np.uint8)
        padded[:, :count] = exponents[first : first + count].T + 127
        expected.append(padded.view(np.int32).T)
        first += count
    expected = np.concatenate(expected)
    assert found.dtype == np.int32 and found.shape == expected.shape
    assert (found == expected).all()
    assert strides(found) == [deep_gemm.get_tma_aligned_size(mn, 4), 1]


WRONG_GROUPS = [
    ({"use_psum_layout": True}, "use_psum_layout"),
    ({"sf": scales(2, 3, 8)}, "sf"),
    ({"sf": scales(4, 8)}, "sf"),
    ({"sf": scales(3, 8).astype(np.int32)}, "sf"),
    ({"ks_cpu": None}, "ks_cpu"),
    ({"ks_cpu": [100, 256]}, "ks_cpu"),
    ({"grouped_layout": np.zeros(3, np.int32)}, "grouped_layout"),
]


@pytest.mark.parametrize("changes, argument", WRONG_GROUPS)
def test_what_is_wrong_with_groups_is_named(changes, argument):
    right = {"sf": scales(3, 8), "grouped_layout": np.zeros(2, np.int32), "ks_cpu": [128, 256]}
    with pytest.raises((ValueError, TypeError)) as caught:
        deep_gemm.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
            **{**right, "gran_k": 128, "k_alignment": 128, **changes}
        )
    assert caught.value.argument == argument


def test_required_layout(device):
    sf = scales(6, 2)
    rows = deep_gemm.transform_sf_into_required_layout(sf, 6, 256, (1, 128, 128), is_sfa=True)
    assert (rows == sf).all() and strides(rows) == [1, 8]
    blocks = scales(3, 1, 2)
    kept = deep_gemm.transform_sf_into_required_layout(blocks, 100, 256, (128, 128), num_groups=3)
    assert kept is blocks


WRONG = [
    ({"recipe": (1, 128, 128)}, "recipe", "three with it"),
    ({"is_sfa": True}, "recipe", "two numbers without"),
    ({"recipe": (1, 32)}, "recipe", "(1, 128) or (128, 128)"),
    ({"mn": 7}, "sf", "(7, 2)"),
    ({"num_groups": 1}, "sf", "(1, 6, 2)"),
    ({"sf": scales(6, 2).astype(np.float16)}, "sf", "float32"),
    ({"sf": scales(6, 2).astype(np.int32)}, "sf", "(6, 1)"),
    ({"sf": scales(12)}, "sf", "2 or 3 dimensions"),
    ({"psum_layout": np.zeros(1)}, "psum_layout", "None"),
]


@pytest.mark.parametrize("changes, argument, words", WRONG)
def test_what_is_wrong_is_named(changes, argument, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        deep_gemm.transform_sf_into_required_layout(
            **{"sf": scales(6, 2), "mn": 6, "k": 256, "recipe": (1, 128), **changes}
        )
    assert caught.value.argument == argument and words in str(caught.value)

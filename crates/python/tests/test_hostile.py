"""Hostile use: whatever a function is given, it computes the right thing, or says which argument is wrong and why."""

import threading

import numpy as np
import pytest

import oxigemm
from oxigemm import config, deep_gemm, fused, moe, quantization

from arrays import BF16, E4M3, calc_diff, dequantized, normals, per_block, per_token, scales


def int32(*numbers):
    return np.array(numbers, np.int32)


def out(*shape):
    return np.zeros(shape, np.float32)


def calls():
    """A call of every public function that is right: function and arguments."""
    a, b = per_token(8, 256), per_block(128, 256, seed=1)
    half_a, half_b = normals(8, 256).astype(BF16), normals(128, 256, seed=1).astype(BF16)
    grouped_a, grouped_b = per_token(256, 256), per_block(2, 128, 256, seed=1)
    k_grouped = {"ks_cpu": [16, 32], "grouped_layout": int32(16, 32)}
    layout = np.repeat(int32(0, 1), 128)
    heads = per_token(4, 2, 128), per_block(2, 128, 128, seed=1)
    q, kv = normals(4, 32, 64).astype(E4M3), (normals(100, 64).astype(E4M3), scales(100))
    ranges = {"cu_seq_len_k_start": int32(0, 0, 0, 0), "cu_seq_len_k_end": int32(10, 100, 0, 64)}
    lengths = int32(100, 30).reshape(2, 1)
    pages = {"context_lens": lengths, "block_table": int32(0, 1, 2, 3).reshape(2, 2), "max_context_len": 128}
    cache = np.random.default_rng(0).integers(0, 64, (4, 64, 1, 68)).astype(np.uint8)
    x, ids = normals(6, 512), int32(0, 1, 1, 2, 2, 0).reshape(3, 2)
    fp4, fp4_scales = deep_gemm.per_token_cast_to_fp4(x, True)
    nvfp4 = quantization.quantize_nvfp4(x)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 4)
    return {
        "fp8_gemm_nt": (deep_gemm.fp8_gemm_nt, dict(a=a, b=b, d=out(8, 128), c=out(8, 128), recipe=(1, 128, 128))),
        "bf16_gemm_nt": (deep_gemm.bf16_gemm_nt, dict(a=half_a, b=half_b, d=out(8, 128), c=out(8, 128))),
        "skip_head_mid": (
            deep_gemm.fp8_gemm_nt_skip_head_mid,
            dict(a=a, b=b, d=out(8, 160), head_splits=(64, 32, 64)),
        ),
        "contiguous": (
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous,
            dict(a=grouped_a, b=grouped_b, d=out(256, 128), grouped_layout=layout, use_psum_layout=False),
        ),
        "psum": (
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous,
            dict(
                a=grouped_a,
                b=grouped_b,
                d=out(256, 128),
                grouped_layout=int32(100, 200),
                use_psum_layout=True,
                expected_m_for_psum_layout=64,
            ),
        ),
        "masked": (
            deep_gemm.m_grouped_fp8_gemm_nt_masked,
            dict(a=per_token(2, 8, 256), b=grouped_b, d=out(2, 8, 128), masked_m=int32(3, 8), expected_m=4),
        ),
        "k_grouped": (
            deep_gemm.k_grouped_bf16_gemm_tn_contiguous,
            dict(a=normals(48, 16).astype(BF16), b=normals(48, 32).astype(BF16), d=out(2, 16, 32), **k_grouped),
        ),
        "fused": (
            fused.fp8_gemm_nt_fused,
            dict(
                a=a,
                b=b,
                d=out(8, 128),
                alpha=1.0,
                beta=1.0,
                bias=np.ones(128, np.float32),
                activation="silu",
                gated=False,
                head_splits=None,
                power_of_two=False,
            ),
        ),
        "fused_quantized": (
            fused.bf16_gemm_nt_fused,
            dict(a=half_a, b=half_b, d=np.zeros((8, 128), E4M3), d_scales=out(8, 1), power_of_two=True),
        ),
        "einsum": (
            deep_gemm.einsum,
            dict(
                expr="bhr,hdr->bhd",
                a=normals(4, 2, 64).astype(BF16),
                b=normals(2, 32, 64).astype(BF16),
                d=out(4, 2, 32),
            ),
        ),
        "fp8_einsum": (
            deep_gemm.fp8_einsum,
            dict(expr="bhr,hdr->bhd", a=heads[0], b=heads[1], d=out(4, 2, 128), recipe=(1, 128, 128)),
        ),
        "prenorm": (
            deep_gemm.tf32_hc_prenorm_gemm,
            dict(a=normals(4, 128).astype(BF16), b=normals(8, 128), d=out(4, 8), sqr_sum=out(4), num_splits=None),
        ),
        "mqa": (deep_gemm.fp8_mqa_logits, dict(q=q, kv=kv, weights=normals(4, 32), **ranges, max_seqlen_k=0)),
        "metadata": (deep_gemm.get_paged_mqa_logits_metadata, dict(context_lens=lengths, block_kv=64, num_sms=4)),
        "paged": (
            deep_gemm.fp8_paged_mqa_logits,
            dict(
                q=normals(2, 1, 32, 64).astype(E4M3),
                kv_cache=cache,
                weights=normals(2, 32),
                schedule_meta=schedule,
                **pages,
            ),
        ),
        "mn_major": (deep_gemm.get_mn_major_tma_aligned_tensor, dict(sf=scales(6, 3))),
        "mn_major_packed": (deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor, dict(sf=scales(6, 3))),
        "required_layout": (
            deep_gemm.transform_sf_into_required_layout,
            dict(sf=scales(6, 3), mn=6, k=384, recipe=(1, 128), num_groups=None),
        ),
        "aligned_size": (deep_gemm.get_tma_aligned_size, dict(x=5, element_size=4)),
        "per_token": (
            deep_gemm.per_token_cast_to_fp8,
            dict(x=x, use_ue8m0=True, gran_k=128, use_packed_ue8m0=True),
        ),
        "per_channel": (deep_gemm.per_channel_cast_to_fp8, dict(x=normals(128, 6), use_ue8m0=True, gran_k=128)),
        "per_block": (deep_gemm.per_block_cast_to_fp8, dict(x=x, use_ue8m0=True, gran_k=128)),
        "custom_dims": (deep_gemm.per_custom_dims_cast_to_fp8, dict(x=normals(3, 4, 5), dims=(0, 1), use_ue8m0=True)),
        "per_token_fp4": (
            deep_gemm.per_token_cast_to_fp4,
            dict(x=x, use_ue8m0=True, gran_k=128, use_packed_ue8m0=False),
        ),
        "back_from_fp4": (deep_gemm.cast_back_from_fp4, dict(packed=fp4, sf=fp4_scales, gran_k=128)),
        "transposed_fp4": (deep_gemm.transpose_packed_fp4, dict(packed=fp4)),
        "ue8m0": (deep_gemm.ceil_to_ue8m0, dict(x=scales(4, 4))),
        "pack": (deep_gemm.pack_ue8m0_to_int, dict(x=scales(4, 4))),
        "unpack": (deep_gemm.unpack_ue8m0_from_int, dict(packed=int32(1, 2, 3, 4).reshape(2, 2))),
        "ceil_div": (deep_gemm.ceil_div, dict(x=7, y=4)),
        "calc_diff": (deep_gemm.calc_diff, dict(x=x, y=x.copy())),
        "set_num_sms": (deep_gemm.set_num_sms, dict(new_num_sms=0)),
        "set_tc_util": (deep_gemm.set_tc_util, dict(new_tc_util=100)),
        "set_alignment": (deep_gemm.set_mk_alignment_for_contiguous_layout, dict(new_value=128)),
        "set_device": (oxigemm.set_device, dict(name="cpu")),
        "set_batch_invariant": (config.set_batch_invariant, dict(enable=False)),
        "quantize": (
            quantization.quantize,
            dict(x=x, granularity="1x128", power_of_two=False, dtype="float8_e4m3fn"),
        ),
        "quantize_into": (
            quantization.quantize,
            dict(x=x, codes=np.zeros((6, 512), E4M3), scales=out(6, 4)),
        ),
        "by_scale": (quantization.quantize_by_scale, dict(x=x, scale=np.ones((1, 1), np.float32))),
        "dequantize": (
            quantization.dequantize,
            dict(codes=x.astype(E4M3), scales=scales(6, 4), granularity="1x128", dtype="bfloat16"),
        ),
        "with_transpose": (quantization.quantize_with_transpose, dict(x=x, granularity="1x128", dtype="float8_e5m2")),
        "nvfp4": (quantization.quantize_nvfp4, dict(x=x, tensor_scale=np.ones(1, np.float32))),
        "from_nvfp4": (
            quantization.dequantize_nvfp4,
            dict(codes=nvfp4[0], scales=nvfp4[1], tensor_scale=nvfp4[2], dtype="float32"),
        ),
        "swiglu": (quantization.swiglu_quantize, dict(x=x, power_of_two=False)),
        "gather": (quantization.gather_quantize, dict(x=x, rows=int32(0, 3, -1))),
        "rms_norm": (quantization.rms_norm_quantize, dict(x=x, weight=normals(512), epsilon=1e-6)),
        "rows_needed": (moe.rows_needed, dict(tokens=5, topk=2, experts=4, alignment=16)),
        "permute": (moe.permute, dict(ids=ids, experts=3, alignment=16, rows=None)),
        "unpermute": (
            moe.unpermute,
            dict(
                rows=normals(48, 24).astype(BF16),
                places=int32(0, 16, 17, 32, 33, 1).reshape(3, 2),
                weights=scales(3, 2),
            ),
        ),
        "moe_forward": (
            moe.forward,
            dict(
                x=normals(3, 256).astype(BF16),
                ids=ids,
                weights=scales(3, 2),
                gate_up=(normals(3, 256, 256).astype(E4M3), scales(3, 2, 2)),
                down=(normals(3, 256, 128).astype(E4M3), scales(3, 2, 1)),
                biases=(normals(3, 256), normals(3, 256)),
                activation="silu",
                gated=True,
                gate=(1.702, 7.0, 1.0),
                out=np.zeros((3, 256), BF16),
            ),
        ),
        "top_k": (
            moe.top_k,
            dict(
                logits=normals(6, 16),
                topk=3,
                scoring="sigmoid",
                bias=normals(16),
                groups=4,
                topk_groups=2,
                group_score="best",
                renormalize=True,
                scale=2.5,
                token_mask=np.ones(6, np.uint8),
                token_count=int32(5),
                expert_mask=np.ones(16, bool),
                map=np.arange(16, dtype=np.int32),
            ),
        ),
        "route": (moe.route, dict(x=x.astype(BF16), gate=normals(8, 512).astype(BF16), topk=2)),
        "zero_padding": (moe.zero_padding_rows, dict(ids=int32(0, -1, 1), num_groups=2, d=np.ones((3, 4), np.float32))),
    }


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def hostile_arrays(x):
    """What an array may be replaced with."""
    numbers = x.astype(np.float32)
    strided = np.lib.stride_tricks.as_strided
    yield from [None, "abc", 3.0, [], (), {}, b"abc", object(), numbers.tolist(), x.flat[0], np.array(x.flat[0])]
    for dtype in (
        np.int64,
        np.float64,
        np.complex64,
        object,
        np.uint16,
        bool,
        ">f4",
        ">i4",
        np.float32,
        np.int32,
        E4M3,
    ):
        yield numbers.astype(dtype)
    yield from [x[:0], x[..., :0], x.ravel(), x[None], x.reshape(1, 1, 1, 1, 1, 1, -1), x[::-1], x[..., ::-1], x.T]
    yield from [np.broadcast_to(x[:1], x.shape), strided(x, x.shape, [0] * x.ndim), np.repeat(x, 2, -1)[..., ::2]]
    yield from [x[: len(x) // 2], read_only(x), np.ma.masked_array(x), np.broadcast_to(x[:1], (1 << 33, *x.shape[1:]))]
    yield np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)


def hostile_values(x):
    """What an argument may be replaced with."""
    if isinstance(x, np.ndarray):
        yield from hostile_arrays(x)
    elif isinstance(x, tuple) and isinstance(x[0], np.ndarray):
        yield from [None, "ab", x[:1], (*x, x[0]), x[0], (None, None)]
        yield from ((y, x[1]) for y in hostile_arrays(x[0]))
        yield from ((x[0], y) for y in hostile_arrays(x[1]))
    else:
        yield from [
            None,
            "abc",
            "",
            4.0,
            float("nan"),
            -1,
            0,
            1,
            9,
            1 << 31,
            1 << 63,
            1 << 70,
            -(1 << 70),
            10**400,
            1e300,
        ]
        yield from [True, [], (), (1, 2), [1, 2, 3], {}, object(), b"x", np.float32(3), np.int64(5), 1j, slice(1)]
        yield from [np.array(3), np.arange(2), normals(2, 2)]


@pytest.fixture
def settings():
    yield
    deep_gemm.set_num_sms(0)
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)
    deep_gemm.set_tc_util(100)
    config.set_batch_invariant(False)
    oxigemm.set_device("cpu")


@pytest.mark.parametrize("name", calls())
def test_an_argument_that_is_anything(name, settings):
    """Every argument of every function, replaced: the call returns, or raises an error that names an argument."""
    function, arguments = calls()[name]
    function(**arguments)
    for argument, value in arguments.items():
        for hostile in hostile_values(value):
            try:
                function(**{**arguments, argument: hostile})
            except oxigemm.OxigemmError as error:
                assert error.argument is not None, f"{argument}: {error}"
                assert f"`{error.argument}" in str(error)


def test_integers_are_not_floats():
    _, arguments = calls()["masked"]
    for wrong in (4.0, "4", [4], None):
        with pytest.raises(TypeError, match="`expected_m` has the wrong type: expected an integer") as caught:
            deep_gemm.m_grouped_fp8_gemm_nt_masked(**{**arguments, "expected_m": wrong})
        assert caught.value.argument == "expected_m"
    with pytest.raises(ValueError, match="`expected_m` is out of range"):
        deep_gemm.m_grouped_fp8_gemm_nt_masked(**{**arguments, "expected_m": 1 << 70})


def test_recipes_are_tuples_or_lists():
    a, b, d = per_token(8, 256), per_block(128, 256), out(8, 128)
    expected = out(8, 128)
    deep_gemm.fp8_gemm_nt(a, b, expected)
    for recipe in ({"recipe": [1, 128, 128]}, {"recipe_a": [1, 128], "recipe_b": [128, 128]}):
        deep_gemm.fp8_gemm_nt(a, b, d, **recipe)
        assert (d == expected).all()
    for recipe in ([1, 128], (1, 128, 128.0), "128", 128, [1, 128, "128"]):
        with pytest.raises(TypeError, match="`recipe` has the wrong type: expected a tuple of 3") as caught:
            deep_gemm.fp8_gemm_nt(a, b, d, recipe=recipe)
        assert caught.value.argument == "recipe"
    with pytest.raises(TypeError) as caught:
        fused.fp8_gemm_nt_fused(a, b, d, head_splits=[64, 32])
    assert caught.value.argument == "head_splits"


@pytest.mark.parametrize("name", ["grouped_layout", "masked_m", "ids"])
def test_numbers_of_64_bits_are_told_the_type_that_they_should_have(name):
    function, arguments = calls()[{"grouped_layout": "contiguous", "masked_m": "masked", "ids": "zero_padding"}[name]]
    with pytest.raises(TypeError, match=f"`{name}` has the wrong element type: expected int32, found int64"):
        function(**{**arguments, name: arguments[name].astype(np.int64)})


def test_arrays_of_another_byte_order_are_called_so():
    a, b = per_token(8, 256), per_block(128, 256)
    with pytest.raises(TypeError, match="found big-endian float32") as caught:
        deep_gemm.fp8_gemm_nt((a[0], a[1].astype(">f4")), b, out(8, 128))
    assert caught.value.argument == "sfa"


def test_a_scalar_of_numpy_is_no_array():
    """Its memory is gone as soon as its address is known."""
    codes, factors, _ = quantization.quantize_nvfp4(normals(4, 32))
    with pytest.raises(TypeError, match="found numpy.float32") as caught:
        quantization.dequantize_nvfp4(codes, factors, np.float32(0.01))
    assert caught.value.argument == "tensor_scale"


def test_masks_are_refused():
    x = np.ma.masked_array(normals(8, 64), normals(8, 64) > 0).astype(np.float16)
    with pytest.raises(TypeError, match="`a` has the wrong type: expected an array without a mask"):
        deep_gemm.fp16_gemm_nt(x, x, out(8, 8))


def test_ks_of_the_host_that_contradict_the_device(device):
    function = deep_gemm.k_grouped_bf16_gemm_tn_contiguous
    a, b, d = normals(48, 16).astype(BF16), normals(48, 32).astype(BF16), out(2, 16, 32)
    function(a, b, d, [16, 32], int32(16, 32))
    for group, rows in enumerate([slice(0, 16), slice(16, 48)]):
        assert calc_diff(d[group], a[rows].astype(np.float64).T @ b[rows].astype(np.float64)) < 1e-5
    if device == "cuda":
        # The host cannot read the device's.
        return
    with pytest.raises(ValueError, match="`ks_cpu`") as caught:
        function(a, b, d, [32, 16], int32(16, 32))
    assert caught.value.argument == "ks_cpu"


def test_numbers_that_are_not_finite():
    a, b, d = per_token(8, 256), per_block(128, 256), out(8, 128)
    fused.fp8_gemm_nt_fused(a, b, d, alpha=float("nan"))
    assert np.isnan(d).all()
    for alpha in (1e300, 10**400):
        with pytest.raises(ValueError, match="`alpha` is out of range: expected a number that float32 has"):
            fused.fp8_gemm_nt_fused(a, b, d, alpha=alpha)


def test_subclasses_of_arrays_are_arrays():
    class Mine(np.ndarray):
        pass

    a, b = per_token(8, 256), per_block(128, 256)
    d = out(8, 128).view(Mine)
    deep_gemm.fp8_gemm_nt(tuple(x.view(Mine) for x in a), b, d)
    assert calc_diff(d, dequantized(a) @ dequantized(b).T) < 1e-3


def test_objects_with_half_of_an_interface():
    class Image:
        __array_interface__ = {"data": (1, False), "shape": (8, 64), "typestr": "<f2", "version": 3}

    class Broken:
        def __dlpack__(self):
            raise BufferError("not today")

    class NoCapsule:
        def __dlpack__(self):
            return 5

    x = normals(8, 64).astype(np.float16)
    for wrong, words in [(Image(), "Image"), (Broken(), "not today"), (NoCapsule(), "int")]:
        with pytest.raises((TypeError, ValueError), match=f"`a` .*{words}") as caught:
            deep_gemm.fp16_gemm_nt(wrong, x, out(8, 8))
        assert caught.value.argument == "a"


def test_outputs_in_inputs_are_refused():
    x = normals(6, 512)
    memory = np.zeros((6, 512), np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        quantization.quantize(memory, codes=memory.view(E4M3)[:, :512], scales=out(6, 4))
    with pytest.raises(ValueError, match="overlaps"):
        quantization.quantize(x, codes=memory.view(E4M3)[:, :512], scales=memory[:, :4])
    half = normals(8, 64).astype(np.float16)
    with pytest.raises(ValueError, match="overlaps"):
        deep_gemm.fp16_gemm_nt(half, normals(64, 64).astype(np.float16), half)


def test_threads_with_right_and_wrong_calls():
    a, b = per_token(8, 256), per_block(128, 256)
    expected, failures = out(8, 128), []
    deep_gemm.fp8_gemm_nt(a, b, expected)

    def work(number):
        try:
            for _ in range(20):
                d = out(8, 128)
                deep_gemm.fp8_gemm_nt(a, b, d)
                assert (d == expected).all()
                with pytest.raises(ValueError, match="`d` has the wrong shape"):
                    deep_gemm.fp8_gemm_nt(a, b, out(8, 64 + number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

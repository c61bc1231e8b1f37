"""Mixtures on GPUs that reach each other's memory: a group of one in the simulator, from numpy."""

import sys

import numpy as np
import pytest

import oxigemm
from oxigemm import moe

from arrays import BF16, E4M3, normals

TOKENS, TOPK, EXPERTS, INNER, COLUMNS = 5, 2, 3, 128, 256
SIZES = dict(tokens=8, topk=TOPK, experts=EXPERTS, columns=COLUMNS)


@pytest.fixture(params=["sim:sm_90a", "sim:sm_100a"], autouse=True)
def simulator(request):
    before = oxigemm.get_device()
    oxigemm.set_device(request.param)
    yield request.param
    oxigemm.set_device(before)


def weights_of(dtype):
    """Both weights, as calls take them."""
    shapes = (EXPERTS, 2 * INNER, COLUMNS), (EXPERTS, COLUMNS, INNER)
    exact = [normals(*shape, seed=seed) / 16 for seed, shape in enumerate(shapes)]
    if dtype == "bfloat16":
        return [one.astype(BF16) for one in exact]
    scales = [np.full((EXPERTS, n // 128, k // 128), 1 / 16, np.float32) for _, n, k in shapes]
    return [((one * 16).astype(E4M3), scale) for one, scale in zip(exact, scales)]


def routed():
    x = normals(TOKENS, COLUMNS).astype(BF16)
    ids = np.array([[0, 1], [2, 2], [-1, 0], [1, 99], [2, 0]], np.int32)
    return x, ids, np.abs(normals(TOKENS, TOPK, seed=4))


def group_of(dtype, **others):
    buffer = np.zeros(moe.PeerGroup.bytes(ranks=1, dtype=dtype, **SIZES), np.uint8)
    return moe.PeerGroup(buffer, [buffer.ctypes.data], rank=0, dtype=dtype, **SIZES, **others)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_one_rank_has_the_bits_of_a_call_without_a_group(dtype):
    (x, ids, factors), (w1, w2) = routed(), weights_of(dtype)
    expected = moe.forward(x, ids, factors, w1, w2)
    group = group_of(dtype)
    found = moe.forward(x, ids, factors, w1, w2, group=group)
    assert (found.view(np.uint16) == expected.view(np.uint16)).all() and found.any()
    group.check()
    assert (group.ids[:TOKENS] == ids).all() and (group.weights[:TOKENS] == factors).all()
    # Who writes tokens itself makes the second call alone.
    group.weights[:TOKENS] *= 2
    counts = np.array([10, 20, 30], np.int32)
    out = np.zeros((TOKENS, COLUMNS), BF16)
    assert group.forward(TOKENS, w1, w2, counts=counts, out=out) is out
    twice = expected.astype(np.float32) * 2
    assert np.abs(out.astype(np.float32) - twice).max() <= np.abs(twice).max() / 100
    assert list(counts) == [13, 22, 33]


def test_tokens_that_are_quantized_already_have_the_same_bits():
    (x, ids, factors), (w1, w2) = routed(), weights_of("float8_e4m3fn")
    group = group_of("float8_e4m3fn")
    group.publish(x, ids, factors)
    quantized = group.x[:TOKENS], group.scales[:TOKENS]
    found = moe.forward(quantized, ids, factors, w1, w2)
    assert (found == moe.forward(x, ids, factors, w1, w2)).all()
    with pytest.raises(TypeError) as caught:
        moe.forward((x, group.scales[:TOKENS]), ids, factors, w1, w2)
    assert caught.value.argument == "x"


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_group_takes_quantized_tokens(framework, simulator):
    (x, ids, factors), weights = routed(), weights_of("float8_e4m3fn")
    expected = moe.forward(x, ids, factors, *weights)
    quantized = oxigemm.quantization.quantize(x, "1x128", power_of_two=simulator == "sim:sm_100a")
    group, on_device = group_of("float8_e4m3fn"), lambda one: one
    if framework == "torch":
        torch = pytest.importorskip("torch")
        from on_torch import DTYPES

        on_device = lambda one: torch.from_numpy(one.view(np.uint8).copy()).view(DTYPES[one.dtype])  # noqa: E731
        buffer = torch.zeros(len(group.buffer), dtype=torch.uint8)
        group = moe.PeerGroup(buffer, [buffer.data_ptr()], rank=0, **SIZES)
    pair, ids, factors = tuple(map(on_device, quantized)), on_device(ids), on_device(factors)
    found = moe.forward(pair, ids, factors, *(tuple(map(on_device, weight)) for weight in weights), group=group)
    group.check()
    found = found if framework == "numpy" else found.view(torch.int16).numpy().view(BF16)
    assert (found.view(np.uint16) == expected.view(np.uint16)).all() and found.any()
    group.publish(pair, ids, factors, 2.0)
    assert (group.ids[:TOKENS] == ids).all() and (group.weights[:TOKENS] == 2 * factors).all()


def test_what_is_wrong_with_quantized_tokens_is_named():
    (x, ids, factors), (w1, w2) = routed(), weights_of("float8_e4m3fn")
    group, half = group_of("float8_e4m3fn"), group_of("bfloat16")
    codes, scales = oxigemm.quantization.quantize(x, "1x128")
    many = np.zeros((9, COLUMNS), E4M3), np.zeros((9, COLUMNS // 128), np.float32)
    for call, argument in [
        (lambda: moe.forward((codes, scales), ids, factors, w1, w2, group=half), "x"),
        (lambda: moe.forward((codes, scales, scales), ids, factors, w1, w2, group=group), "x"),
        (lambda: moe.forward((x, scales), ids, factors, w1, w2, group=group), "x"),
        (lambda: moe.forward((codes[:, :128], scales), ids, factors, w1, w2, group=group), "x"),
        (lambda: moe.forward(many, ids, factors, w1, w2, group=group), "x"),
        (lambda: moe.forward((codes, scales[:, :1]), ids, factors, w1, w2, group=group), "scales"),
        (lambda: moe.forward((codes, scales.astype(np.int32)), ids, factors, w1, w2, group=group), "scales"),
        (lambda: moe.forward((codes, None), ids, factors, w1, w2, group=group), "scales"),
        (lambda: moe.forward((codes, scales), ids[:4], factors, w1, w2, group=group), "ids"),
        (lambda: moe.forward((codes, scales), ids.astype(np.int64), factors, w1, w2, group=group), "ids"),
        (lambda: moe.forward((codes, scales), ids, factors[:, :1], w1, w2, group=group), "weights"),
        (lambda: moe.forward((codes, scales), ids, factors.tolist(), w1, w2, group=group), "weights"),
        (lambda: group.publish((codes,), ids, factors), "x"),
    ]:
        with pytest.raises(oxigemm.OxigemmError) as caught:
            call()
        assert caught.value.argument == argument, caught.value
    torch = sys.modules.get("torch")
    if torch is not None:
        with pytest.raises(ValueError, match="`ids` is on the wrong device: .* found a torch tensor on cpu"):
            group.publish((codes, scales), torch.from_numpy(ids), factors)
    # Nothing of a call that was refused is in the buffer.
    assert not group.weights.any() and not group.scales.any()


def test_no_tokens_and_a_factor_of_weights():
    (x, ids, factors), (w1, w2) = routed(), weights_of("bfloat16")
    group = group_of("bfloat16")
    assert moe.forward(x[:0], ids[:0], factors[:0], w1, w2, group=group).shape == (0, COLUMNS)
    group.publish(x, ids, factors, 4.0)
    assert (group.weights[:TOKENS] == 4 * factors).all()


def test_rows_behind_the_limit_are_told():
    (x, _, factors), (w1, w2) = routed(), weights_of("bfloat16")
    group = group_of("bfloat16")
    group.publish(np.concatenate([x, x[:3]]), np.zeros((8, TOPK), np.int32), np.ones((8, TOPK), np.float32))
    assert group.forward(8, w1, w2, most_rows=16).shape == (8, COLUMNS)
    ids = np.repeat(np.arange(TOKENS) % EXPERTS, TOPK).reshape(TOKENS, TOPK).astype(np.int32)
    group.publish(x, ids, factors)
    # Each of three experts has rows of its own 16.
    with pytest.raises(oxigemm.OxigemmError, match="most_rows"):
        group.forward(TOKENS, w1, w2, most_rows=16)


def test_scales_of_32_are_for_blackwell(simulator):
    if simulator == "sim:sm_90a":
        with pytest.raises(ValueError) as caught:
            group_of("float8_e4m3fn", packed=True)
        assert caught.value.argument == "packed_scales"
        return
    assert group_of("float8_e4m3fn", packed=True).scales.dtype == np.int32


BUFFER = np.zeros(1 << 20, np.uint8)
GOOD = dict(rank=0, dtype="bfloat16", **SIZES)
WRONG = [
    (dict(rank=1), "rank"),
    (dict(rank=0.0), "rank"),
    (dict(columns=24), "columns"),
    (dict(experts=0), "experts"),
    (dict(tokens=-1), "tokens"),
    (dict(tokens=1 << 30), "tokens"),
    (dict(dtype="float16"), "dtype"),
    (dict(packed=1), "packed"),
    (dict(packed=True), "packed_scales"),
    (dict(timeout=0), "timeout"),
    (dict(timeout="60"), "timeout"),
    (dict(buffers=[]), "ranks"),
    (dict(buffers=[0.5]), "buffers"),
    (dict(buffer=BUFFER[:1000]), "buffer"),
    (dict(buffer=BUFFER.view(np.int8)), "buffer"),
    (dict(buffer=BUFFER.reshape(2, -1)), "buffer"),
]


@pytest.mark.parametrize("others, argument", WRONG)
def test_what_is_wrong_is_named(others, argument):
    arguments = {"buffer": BUFFER, "buffers": [BUFFER.ctypes.data], **GOOD, **others}
    with pytest.raises(oxigemm.OxigemmError) as caught:
        moe.PeerGroup(arguments.pop("buffer"), arguments.pop("buffers"), **arguments)
    assert caught.value.argument == argument


def test_calls_that_do_not_fit_are_refused_by_name():
    (x, ids, factors), (w1, w2) = routed(), weights_of("bfloat16")
    group = group_of("bfloat16")
    for call, argument in [
        (lambda: group.forward(9, w1, w2), "tokens"),
        (lambda: group.forward(-1, w1, w2), "tokens"),
        (lambda: group.forward(5, w1, w2, most_rows=-1), "most_rows"),
        (lambda: group.forward(5, w1[:2], w2[:2]), "gate_up"),
        (lambda: group.forward(5, w1, w2, counts=np.zeros(2, np.int32)), "counts"),
        (lambda: group.forward(5, w1, w2, out=np.zeros((4, COLUMNS), BF16)), "out"),
        (lambda: group.publish(x[:, :128], ids, factors), "x"),
        (lambda: group.publish(x, ids[:, :1], factors), "ids"),
        (lambda: group.publish(x, ids, factors.astype(np.float64)), "weights"),
    ]:
        with pytest.raises(oxigemm.OxigemmError) as caught:
            call()
        assert caught.value.argument == argument, caught.value


def test_the_cpu_has_no_peers():
    oxigemm.set_device("cpu")
    with pytest.raises(ValueError, match="a GPU or the simulator") as caught:
        group_of("bfloat16")
    assert caught.value.argument == "device"

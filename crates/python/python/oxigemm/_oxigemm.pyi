"""The extension: functions with all of their arguments. Names, defaults and descriptions are those of ``oxigemm.deep_gemm``."""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

__version__: str

_Three = Optional[Tuple[int, int, int]]
_Two = Optional[Tuple[int, int]]
_Pair = Tuple[Any, Any]

def command_line(arguments: Sequence[str]) -> int: ...
def set_device(name: str) -> None: ...
def get_device() -> str: ...
def set_num_sms(num_sms: int) -> None: ...
def get_num_sms() -> int: ...
def set_pdl(enable: bool) -> None: ...
def get_pdl() -> bool: ...
def set_batch_invariant(enable: bool) -> None: ...
def get_batch_invariant() -> bool: ...
def set_alignment(rows: int) -> None: ...
def get_alignment() -> int: ...
def set_prebuilt(path: "str | os.PathLike[str]") -> None: ...
def missing_cubins() -> List[str]: ...
def sm_count(gpu_number: Optional[int] = None) -> int: ...
def gpu_stats(ordinal: int) -> Dict[str, int]: ...
def load_all(ordinal: int) -> None: ...
def fp8_gemm(
    layout_name: str, a: _Pair, b: _Pair, d: Any, c: Any, recipe: _Three, recipe_a: _Two, recipe_b: _Two
) -> None: ...
def half_gemm(dtype: str, layout_name: str, a: Any, b: Any, d: Any, c: Any) -> None: ...
def fp8_gemm_skip_head_mid(a: _Pair, b: _Pair, d: Any, head_splits: Tuple[int, int, int], recipe: _Three) -> None: ...
def fp8_gemm_nt_fused(
    a: _Pair,
    b: _Pair,
    d: Any,
    c: Any,
    alpha: float,
    beta: float,
    bias: Any,
    activation: str,
    gated: bool,
    head_splits: _Three,
    d_scales: Any,
    power_of_two: bool,
) -> None: ...
def half_gemm_nt_fused(
    dtype: str,
    a: Any,
    b: Any,
    d: Any,
    c: Any,
    alpha: float,
    beta: float,
    bias: Any,
    activation: str,
    gated: bool,
    head_splits: _Three,
    d_scales: Any,
    power_of_two: bool,
) -> None: ...
def m_grouped_fp8_gemm_nt_fused(
    a: _Pair,
    b: _Pair,
    d: Any,
    grouped_layout: Any,
    masked_m: Any,
    expected_m: Optional[int],
    use_psum_layout: bool,
    c: Any,
    alpha: float,
    beta: float,
    bias: Any,
    activation: str,
    gated: bool,
    head_splits: _Three,
    d_scales: Any,
    power_of_two: bool,
) -> None: ...
def m_grouped_half_gemm_nt_fused(
    dtype: str,
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    masked_m: Any,
    expected_m: Optional[int],
    use_psum_layout: bool,
    c: Any,
    alpha: float,
    beta: float,
    bias: Any,
    activation: str,
    gated: bool,
    head_splits: _Three,
    d_scales: Any,
    power_of_two: bool,
) -> None: ...
def einsum(expr: str, a: Any, b: Any, d: Any, c: Any) -> None: ...
def fp8_einsum(expr: str, a: _Pair, b: _Pair, d: Any, c: Any, recipe: _Three) -> None: ...
def m_grouped_fp8_gemm_contiguous(
    layout_name: str,
    a: _Pair,
    b: _Pair,
    d: Any,
    grouped_layout: Any,
    recipe: _Three,
    recipe_a: _Two,
    recipe_b: _Two,
    use_psum_layout: bool,
    expected_m: Optional[int],
) -> None: ...
def m_grouped_fp8_gemm_masked(
    layout_name: str,
    a: _Pair,
    b: _Pair,
    d: Any,
    masked_m: Any,
    expected_m: int,
    recipe: _Three,
    recipe_a: _Two,
    recipe_b: _Two,
) -> None: ...
def m_grouped_half_gemm_contiguous(
    dtype: str,
    layout_name: str,
    a: Any,
    b: Any,
    d: Any,
    grouped_layout: Any,
    use_psum_layout: bool,
    expected_m: Optional[int],
) -> None: ...
def m_grouped_half_gemm_masked(
    dtype: str, layout_name: str, a: Any, b: Any, d: Any, masked_m: Any, expected_m: int
) -> None: ...
def k_grouped_fp8_gemm(
    a: _Pair, b: _Pair, d: Any, ks_cpu: Optional[Sequence[int]], grouped_layout: Any, c: Any, recipe: _Three
) -> None: ...
def k_grouped_half_gemm(
    dtype: str,
    layout_name: str,
    a: Any,
    b: Any,
    d: Any,
    ks_cpu: Optional[Sequence[int]],
    grouped_layout: Any,
    c: Any,
) -> None: ...
def mqa_logits(
    q: Any, kv: Any, kv_scales: Any, weights: Any, starts: Any, ends: Any, logits: Any, form: str
) -> None: ...
def paged_mqa_logits(
    q: Any,
    kv_cache: Any,
    weights: Any,
    context_lens: Any,
    block_table: Any,
    schedule_meta: Any,
    logits: Any,
    clean: bool,
) -> None: ...
def paged_mqa_logits_metadata(context_lens: Any, schedule: Any) -> None: ...
def hc_prenorm_gemm(a: Any, b: Any, d: Any, sqr_sum: Any, num_splits: Optional[int]) -> None: ...
def quantize(x: Any, codes: Any, scales: Any, granularity: str, power_of_two: bool) -> None: ...
def quantize_by_scale(x: Any, scale: Any, codes: Any) -> None: ...
def swiglu_quantize(x: Any, codes: Any, scales: Any, power_of_two: bool) -> None: ...
def gather_quantize(x: Any, rows: Any, codes: Any, scales: Any, power_of_two: bool) -> None: ...
def rms_norm_quantize(x: Any, weight: Any, epsilon: float, codes: Any, scales: Any, power_of_two: bool) -> None: ...
def dequantize(codes: Any, scales: Any, x: Any, granularity: str) -> None: ...
def quantize_with_transpose(
    x: Any,
    codes: Any,
    scales: Any,
    transposed_codes: Any,
    transposed_scales: Any,
    granularity: str,
    power_of_two: bool,
) -> None: ...
def quantize_nvfp4(x: Any, codes: Any, scales: Any, tensor_scale: Any, computed: bool) -> None: ...
def dequantize_nvfp4(codes: Any, scales: Any, tensor_scale: Any, x: Any) -> None: ...
def moe_permute(ids: Any, alignment: int, tokens: Any, groups: Any, ends: Any, places: Any) -> None: ...
def moe_unpermute(rows: Any, places: Any, weights: Any, out: Any) -> None: ...
def zero_padding_rows(ids: Any, num_groups: int, d: Any) -> None: ...
def transform_scales(sf: Any, to: Any) -> None: ...
def cublaslt_gemm(layout_name: str, a: Any, b: Any, d: Any, c: Any) -> None: ...

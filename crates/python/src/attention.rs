//! MQA logits, contiguous and paged, and the prenorm GEMM of hyper-connections.

use oxigemm::DType;
use oxigemm::check::Logits;
use pyo3::prelude::*;

use crate::call::Call;
use crate::convert::convert;
use crate::error::argument_error;

/// The library's names for arguments, and Python's.
const NAMES: &[(&str, &str)] = &[
    ("q_scales", "q[1]"),
    ("kv_scales", "kv[1]"),
    ("starts", "cu_seq_len_k_start"),
    ("ends", "cu_seq_len_k_end"),
    ("schedule", "schedule_meta"),
];

/// Queries, and their scales, which FP4 has.
type Queries<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// MQA logits. `q` is `(queries, scales)` of FP4 or `(queries, None)`, `kv` is `(keys, scales)`, `k_ranges` is `(starts,
/// ends)`, `form` is "clean", "partial" or "compressed".
#[pyfunction]
fn mqa_logits<'py>(
    py: Python<'py>,
    q: Queries<'py>,
    kv: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    weights: &Bound<'py, PyAny>,
    k_ranges: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    logits: &Bound<'py, PyAny>,
    form: &str,
) -> PyResult<()> {
    let form = match form {
        "clean" => Logits::Clean,
        "partial" => Logits::Partial,
        "compressed" => Logits::Compressed,
        other => {
            return Err(argument_error(py, "form", "is unknown", "clean, partial or compressed", other));
        }
    };
    let mut call = Call::new(py, NAMES);
    let (q, q_scales) = (call.input("q", &q.0)?, q.1);
    let q_scales = q_scales.map(|scales| call.input("q[1]", &scales)).transpose()?;
    let (kv, kv_scales) = (call.input("kv", &kv.0)?, call.input("kv[1]", &kv.1)?);
    let weights = call.input("weights", weights)?;
    let starts = call.input("cu_seq_len_k_start", &k_ranges.0)?;
    let ends = call.input("cu_seq_len_k_end", &k_ranges.1)?;
    let logits = call.output("logits", logits)?;
    call.run(|x| {
        let (q, kv, ranges) = (x.get(q), (x.get(kv), x.get(kv_scales)), [x.get(starts), x.get(ends)]);
        let (weights, logits) = (x.get(weights), &mut x.output(logits));
        match q_scales {
            None => oxigemm::fp8_mqa_logits(q, kv, weights, ranges, logits, form, &x.options),
            Some(scales) => {
                oxigemm::fp4_mqa_logits((q, x.get(scales)), kv, weights, ranges, logits, form, &x.options)
            }
        }
    })
}

/// Paged MQA logits, with `q` as for [`mqa_logits`]. `paging` is `(context_lens, block_table, schedule_meta)`.
#[pyfunction]
fn paged_mqa_logits<'py>(
    py: Python<'py>,
    q: Queries<'py>,
    kv_cache: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    paging: (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>),
    logits: &Bound<'py, PyAny>,
    clean: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let clean: bool = convert("clean_logits", clean)?;
    let (context_lens, block_table, schedule_meta) = &paging;
    let mut call = Call::new(py, NAMES);
    let (q, q_scales) = (call.input("q", &q.0)?, q.1);
    let q_scales = q_scales.map(|scales| call.input("q[1]", &scales)).transpose()?;
    let kv_cache = call.input("kv_cache", kv_cache)?;
    if q_scales.is_none() {
        call.read_bytes_as(kv_cache, DType::E4m3);
    }
    let weights = call.input("weights", weights)?;
    let context_lens = call.input("context_lens", context_lens)?;
    let block_table = call.input("block_table", block_table)?;
    let schedule = call.input("schedule_meta", schedule_meta)?;
    let logits = call.output("logits", logits)?;
    call.run(|x| {
        let lists = [x.get(context_lens), x.get(block_table), x.get(schedule)];
        let (q, cache, weights) = (x.get(q), x.get(kv_cache), x.get(weights));
        let logits = &mut x.output(logits);
        match q_scales {
            None => oxigemm::fp8_paged_mqa_logits(q, cache, weights, lists, logits, clean, &x.options),
            Some(scales) => {
                let q = (q, x.get(scales));
                oxigemm::fp4_paged_mqa_logits(q, cache, weights, lists, logits, clean, &x.options)
            }
        }
    })
}

#[pyfunction]
fn paged_mqa_logits_metadata<'py>(
    py: Python<'py>,
    context_lens: &Bound<'py, PyAny>,
    schedule: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut call = Call::new(py, NAMES);
    let context_lens = call.input("context_lens", context_lens)?;
    let schedule = call.output("schedule_meta", schedule)?;
    call.run(|x| {
        oxigemm::get_paged_mqa_logits_metadata(x.get(context_lens), &mut x.output(schedule), &x.options)
    })
}

#[pyfunction]
fn hc_prenorm_gemm<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    sqr_sum: &Bound<'py, PyAny>,
    num_splits: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let num_splits: Option<i64> = convert("num_splits", num_splits)?;
    let mut call = Call::new(py, &[]);
    let (a, b) = (call.input("a", a)?, call.input("b", b)?);
    let (d, sqr_sum) = (call.output("d", d)?, call.output("sqr_sum", sqr_sum)?);
    let fits = match (num_splits, call.array(d).dims()) {
        (None, [_, _]) => true,
        (Some(splits), [found, _, _]) => *found as i64 == splits,
        _ => false,
    };
    if !fits {
        let expected = match num_splits {
            None => "[M, N], as `num_splits` is None".to_owned(),
            Some(splits) => format!("[{splits}, M, N] by `num_splits`"),
        };
        let found = format!("{:?}", call.array(d).dims());
        return Err(argument_error(py, "d", "has the wrong shape", &expected, &found));
    }
    call.run(|x| {
        let (mut d, mut sqr_sum) = (x.output(d), x.output(sqr_sum));
        oxigemm::tf32_hc_prenorm_gemm(x.get(a), x.get(b), &mut d, &mut sqr_sum, &x.options)
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(mqa_logits, module)?)?;
    module.add_function(wrap_pyfunction!(paged_mqa_logits, module)?)?;
    module.add_function(wrap_pyfunction!(paged_mqa_logits_metadata, module)?)?;
    module.add_function(wrap_pyfunction!(hc_prenorm_gemm, module)?)
}

//! GEMMs by cuBLASLt, the baseline.

use oxigemm::{DType, Error, Tensor};
use oxigemm_cuda::cublaslt::{Matrix, Number, Product};
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::{argument_error, other};
use crate::gemm::layout_of;

fn number(dtype: DType) -> Option<Number> {
    match dtype {
        DType::E4m3 => Some(Number::E4m3),
        DType::E5m2 => Some(Number::E5m2),
        DType::Bf16 => Some(Number::Bf16),
        DType::F16 => Some(Number::F16),
        DType::F32 => Some(Number::F32),
        _ => None,
    }
}

/// A matrix [rows, columns], or a batch of them [batch, rows, columns].
fn matrix(name: &'static str, tensor: &Tensor) -> oxigemm::Result<Matrix> {
    let number = number(tensor.dtype()).ok_or_else(|| Error::DType {
        argument: name,
        expected: "e4m3, e5m2, bf16, f16 or f32".to_owned(),
        found: tensor.dtype().to_string(),
    })?;
    let (dims, strides) = (tensor.dims(), tensor.strides());
    let batched = dims.len() - 2;
    let ([rows, columns], [row, column]) =
        ([dims[batched], dims[batched + 1]], [strides[batched], strides[batched + 1]]);
    let (row_major, pitch, least) = match (row, column) {
        (_, 1) => (true, if rows > 1 { row } else { columns }, columns),
        _ if columns <= 1 && row >= 1 => (true, row, 1),
        (1, _) => (false, if columns > 1 { column } else { rows }, rows),
        _ => (true, 0, 1),
    };
    if pitch < least {
        return Err(Error::Stride {
            argument: name,
            expected: "a stride of 1 along one dimension, and rows that do not overlap".to_owned(),
            found: format!("strides {strides:?} for {dims:?}"),
        });
    }
    let batch_stride = if batched == 1 { strides[0] } else { 0 };
    Ok(Matrix { address: tensor.address(), number, row_major, pitch, batch_stride })
}

/// A view with the last two dimensions transposed, or not.
fn transposed(tensor: &Tensor, transpose: bool) -> oxigemm::Result<Tensor> {
    let last = tensor.dims().len() - 1;
    if transpose { tensor.transpose(last - 1, last) } else { Ok(tensor.clone()) }
}

fn wrong_shape(argument: &'static str, expected: &[usize], tensor: &Tensor) -> Error {
    Error::Shape { argument, expected: format!("{expected:?}"), found: format!("{:?}", tensor.dims()) }
}

#[pyfunction]
fn cublaslt_gemm<'py>(
    py: Python<'py>,
    layout_name: &str,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
) -> PyResult<()> {
    let layout = layout_of(py, layout_name)?;
    let mut call = Call::new(py, &[]);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    let first = a;
    let c = match c {
        Some(c) => Some(call.input("c", c)?),
        None => None,
    };
    for index in [a, b, d].into_iter().chain(c) {
        let array = call.array(index);
        if !matches!(array.dims().len(), 2 | 3) || array.dims().len() != call.array(a).dims().len() {
            let found = format!("{:?}", array.dims());
            return Err(argument_error(
                py,
                array.name,
                "has the wrong rank",
                "2 dimensions, or 3 of all",
                &found,
            ));
        }
    }
    if !call.is_on_gpu() {
        return Err(other(
            py,
            "cuBLASLt multiplies on a GPU: expected CUDA tensors, found arrays of the CPU".to_owned(),
        ));
    }
    call.run(|x| {
        let (a, b, d) = (
            transposed(x.get(a), layout.a_begins_with_k())?,
            transposed(x.get(b), layout.b_begins_with_k())?,
            x.get(d),
        );
        let batched = a.dims().len() - 2;
        let batch = if batched == 1 { a.dims()[0] } else { 1 };
        let ([m, k], n) = ([a.dims()[batched], a.dims()[batched + 1]], b.dims()[batched]);
        let shape =
            |rows, columns| if batched == 1 { vec![batch, rows, columns] } else { vec![rows, columns] };
        for (name, tensor, expected) in [("b", &b, shape(n, k)), ("d", d, shape(m, n))] {
            if tensor.dims() != expected {
                return Err(wrong_shape(name, &expected, tensor));
            }
        }
        let added = match c {
            Some(c) if x.get(c).dims() != d.dims() => return Err(wrong_shape("c", d.dims(), x.get(c))),
            Some(c) => Some(matrix("c", x.get(c))?),
            None => None,
        };
        let (a, b, result) = (matrix("a", &a)?, matrix("b", &b)?, matrix("d", d)?);
        if !result.row_major || added.is_some_and(|added| !added.row_major) {
            return Err(Error::Stride {
                argument: "d",
                expected: "a stride of 1 along the last dimension".to_owned(),
                found: format!("strides {:?} for {:?}", d.strides(), d.dims()),
            });
        }
        if m == 0 || n == 0 || batch == 0 {
            return Ok(());
        }
        if k == 0 {
            let expected = "something to sum: K of 1 or more".to_owned();
            return Err(Error::Shape {
                argument: "a",
                expected,
                found: format!("{:?}", x.get(first).dims()),
            });
        }
        let sms = x.options.num_sms.unwrap_or(0);
        let product = Product { m, n, k, batch, a, b, c: added, d: result, sms };
        let cuda = d.device().as_cuda().expect("it is a GPU");
        let Some(oxigemm::Stream::Cuda(stream)) = &x.options.stream else {
            unreachable!("a GPU has streams")
        };
        // SAFETY: the shapes were compared; the caller keeps the tensors alive, as for every GEMM.
        unsafe { product.launch(cuda.gpu(), stream)? };
        Ok(())
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cublaslt_gemm, module)?)
}

//! GEMMs of NVFP4 operands.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::Call;
use crate::gemm::{MGroups, NAMES};

/// `D = C + s·A·Bᵀ`, dense or for groups of rows, where s is the product of both scales.
#[pyfunction]
fn nvfp4_gemm<'py>(
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    tensor_scales: (f32, f32),
    groups: Option<&Bound<'py, PyTuple>>,
) -> PyResult<()> {
    let mut call = Call::new(d.py(), NAMES);
    let ([a, sfa], [b, sfb]) = (call.pair(["a", "sfa"], a)?, call.pair(["b", "sfb"], b)?);
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    let groups = groups.map(|groups| MGroups::either(&mut call, groups, a)).transpose()?;
    let scales = tensor_scales.into();
    call.run(|x| {
        let (a, b, d) = ((x.get(a), x.get(sfa)), (x.get(b), x.get(sfb)), &mut x.output(d));
        match &groups {
            None => oxigemm::nvfp4_gemm_nt(a, b, x.addend(c), d, scales, &x.options),
            Some(groups) => oxigemm::m_grouped_nvfp4_gemm_nt(a, b, d, groups.get(x), scales, &x.options),
        }
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(nvfp4_gemm, module)?)
}

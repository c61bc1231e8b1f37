//! Einsums: batched GEMMs, written as expressions.

use std::borrow::Cow;

use oxigemm::{Addend, Epilogue, FusedOutput, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::{AddendArgument, Arguments, Call, Index};
use crate::convert::convert;
use crate::error::argument_error;
use crate::fields::{self, fields};
use crate::gemm::ScaledOperands;
use crate::quantize::format_of;
use crate::recipe::Recipe;

/// The library's names for arguments, and Python's.
const NAMES: &[(&str, &str)] = &[("expression", "expr"), ("d_scales", "sfd")];

/// The gradients of weights.
const GRADIENTS: &str = "bhd,bhr->hdr";

#[pyfunction]
fn einsum<'py>(
    expr: &Bound<'py, PyAny>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    fused: Option<(f32, Option<Bound<'py, PyAny>>)>,
) -> PyResult<()> {
    let expr: Cow<'_, str> = convert("expr", expr)?;
    let mut call = Call::new(d.py(), NAMES);
    let (a, b, d) = (call.input("a", a)?, call.input("b", b)?, call.output("d", d)?);
    let c = call.addend(c, d)?;
    if let Some(fused) = fused {
        let heads = Heads::new(&mut call, &expr, [(a, None), (b, None)], (d, c), Some(fused))?;
        return call.run(|x| heads.run(x));
    }
    call.run(|x| oxigemm::einsum(&expr, x.get(a), x.get(b), x.addend(c), &mut x.output(d), &x.options))
}

#[pyfunction]
fn fp8_einsum<'py>(
    expr: &Bound<'py, PyAny>,
    operands: &Bound<'py, PyTuple>,
    d: &Bound<'py, PyAny>,
    c: Option<&Bound<'py, PyAny>>,
    fused: Option<(f32, Option<Bound<'py, PyAny>>)>,
) -> PyResult<()> {
    let py = d.py();
    let expr: &str = &convert::<Cow<'_, str>>("expr", expr)?;
    let [a, b, recipe, recipe_a, recipe_b] = fields(&fields::SCALED_OPERANDS, operands)?;
    let recipe = Recipe::new(py, (recipe.get()?, recipe_a.get()?, recipe_b.get()?))?;
    let recipe = match expr {
        // Its scales are of 128 of the batch, for either recipe of 128. The library compares their shapes.
        GRADIENTS => Recipe::default(),
        _ => {
            recipe.expect_1d2d(py)?;
            recipe
        }
    };
    let mut call = Call::new(py, NAMES);
    let k_first = [false, expr == "bhd,hdr->bhr"];
    let operands = ScaledOperands::read(&mut call, [a.object(), b.object()], recipe, k_first)?;
    let d = call.output("d", d)?;
    let c = call.addend(c, d)?;
    if matches!(c, AddendArgument::None) && fused.is_none() {
        return call.run(|x| {
            let [a, b] = operands.get(x);
            oxigemm::fp8_einsum(expr, a, b, &mut x.output(d), &x.options)
        });
    }
    let ScaledOperands { a: [a, sfa], b: [b, sfb], .. } = operands;
    let heads = Heads::new(&mut call, expr, [(a, Some(sfa)), (b, Some(sfb))], (d, c), fused)?;
    call.run(|x| heads.run(x))
}

/// `bhr,hdr->bhd` with an addend or a fused epilogue: a GEMM for each head, on views of the operands.
struct Heads {
    count: usize,
    /// A and B, each with its scales where they are FP8.
    operands: [(Index, Option<Index>); 2],
    d: Index,
    c: AddendArgument,
    alpha: f32,
    sfd: Option<Index>,
    /// Whether there is a fused epilogue.
    fused: bool,
}

impl Heads {
    fn new<'py>(
        call: &mut Call<'py>,
        expr: &str,
        operands: [(Index, Option<Index>); 2],
        (d, c): (Index, AddendArgument),
        fused: Option<(f32, Option<Bound<'py, PyAny>>)>,
    ) -> PyResult<Heads> {
        let py = call.py();
        if expr != "bhr,hdr->bhd" {
            let problem = "has no kernels with `c` or an epilogue";
            return Err(argument_error(py, "expr", problem, "bhr,hdr->bhd", expr));
        }
        let is_fused = fused.is_some();
        let (alpha, sfd) = fused.unwrap_or((1.0, None));
        let sfd = sfd.map(|sfd| call.output("sfd", &sfd)).transpose()?;
        let other = match c {
            AddendArgument::From(c) => Some(c),
            AddendArgument::None | AddendArgument::InPlace => None,
        };
        let [(a, sfa), (b, sfb)] = operands;
        call.array(b).expect_rank(py, 3)?;
        let count = call.array(b).dims()[0];
        let along = [(Some(a), 1), (sfa, 1), (sfb, 0), (Some(d), 1), (other, 1), (sfd, 1)];
        for (index, head) in along.into_iter().filter_map(|(index, head)| Some((index?, head))) {
            let array = call.array(index);
            array.expect_rank(py, 3)?;
            if array.dims()[head] != count {
                let (expected, found) = (format!("{count} heads, as `b` has"), format!("{:?}", array.dims()));
                return Err(argument_error(py, array.name, "has the wrong shape", &expected, &found));
            }
        }
        Ok(Heads { count, operands, d, c, alpha, sfd, fused: is_fused })
    }

    fn run(&self, x: &Arguments) -> oxigemm::Result<()> {
        (0..self.count).try_for_each(|head| self.run_head(x, head))
    }

    fn run_head(&self, x: &Arguments, head: usize) -> oxigemm::Result<()> {
        let of_head = |i: Index| x.get(i).transpose(0, 1).and_then(|tensor| tensor.select(head));
        let [(a, sfa), (b, sfb)] = self.operands;
        let (a, b, mut d) = (of_head(a)?, x.get(b).select(head)?, of_head(self.d)?);
        let sfa = sfa.map(of_head).transpose()?;
        let sfb = sfb.map(|sfb| x.get(sfb).select(head)).transpose()?;
        let other = match self.c {
            AddendArgument::From(c) => Some(of_head(c)?),
            AddendArgument::None | AddendArgument::InPlace => None,
        };
        let c = match (&other, self.c) {
            (Some(c), _) => Addend::From(c),
            (None, AddendArgument::None) => Addend::None,
            (None, _) => Addend::InPlace,
        };
        let scales: Option<(&Tensor, &Tensor)> = sfa.as_ref().zip(sfb.as_ref());
        if !self.fused {
            let (sfa, sfb) = scales.expect("without an epilogue heads are FP8");
            return oxigemm::fp8_gemm_nt((&a, sfa), (&b, sfb), c, &mut d, &x.options);
        }
        let epilogue = Epilogue { alpha: self.alpha, ..Default::default() };
        let mut sfd = self.sfd.map(of_head).transpose()?;
        let output = match &mut sfd {
            None => FusedOutput::Matrix(&mut d),
            Some(scales) => FusedOutput::Fp8 { d: &mut d, scales, format: format_of(false) },
        };
        match scales {
            Some((sfa, sfb)) => {
                oxigemm::fp8_gemm_nt_fused((&a, sfa), (&b, sfb), c, output, &epilogue, &x.options)
            }
            None => oxigemm::half_gemm_nt_fused(&a, &b, c, output, &epilogue, &x.options),
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(einsum, module)?)?;
    module.add_function(wrap_pyfunction!(fp8_einsum, module)?)
}

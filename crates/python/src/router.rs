//! The router of a mixture of experts.

use oxigemm::{GroupScore, Router, Scoring};
use pyo3::prelude::*;

use crate::call::{Arguments, Call, Index};
use crate::convert::convert;

/// Ids and weights.
type Outputs<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);
/// Bias, mask and number of tokens, mask of experts, map of ids.
type Lists<'py> = [Option<Bound<'py, PyAny>>; 5];
/// Scoring, groups, groups that are chosen from, score of a group, renormalization, scale.
type Choice<'py> = (String, usize, usize, String, bool, Bound<'py, PyAny>);

/// A router of arguments of a call, and the index of each list.
struct RouterArguments {
    lists: [Option<Index>; 5],
    plain: Router<()>,
}

impl RouterArguments {
    fn read<'py>(call: &mut Call<'py>, lists: &Lists<'py>, choice: &Choice<'py>) -> PyResult<Self> {
        const NAMES: [&str; 5] = ["bias", "token_mask", "token_count", "expert_mask", "map"];
        let mut indices = [None; 5];
        for ((index, name), list) in indices.iter_mut().zip(NAMES).zip(lists) {
            *index = list.as_ref().map(|list| call.input(name, list)).transpose()?;
        }
        let (scoring, groups, topk_groups, group_score, renormalize, scale) = choice;
        let plain = Router {
            // The facade has checked both names.
            scoring: match scoring.as_str() {
                "sigmoid" => Scoring::Sigmoid,
                "sqrtsoftplus" => Scoring::SqrtSoftplus,
                _ => Scoring::Softmax,
            },
            groups: *groups,
            topk_groups: *topk_groups,
            group_score: match group_score.as_str() {
                "best" => GroupScore::Best,
                _ => GroupScore::SumOfTwo,
            },
            renormalize: *renormalize,
            scale: convert("scale", scale)?,
            ..Router::default()
        };
        Ok(RouterArguments { lists: indices, plain })
    }

    fn get<'a>(&self, x: &'a Arguments) -> Router<&'a oxigemm::Tensor> {
        let [bias, token_mask, token_count, expert_mask, map] =
            self.lists.map(|index| index.map(|index| x.get(index)));
        let Router { scoring, groups, topk_groups, group_score, renormalize, scale, .. } = self.plain;
        Router {
            scoring,
            bias,
            groups,
            topk_groups,
            group_score,
            renormalize,
            scale,
            token_mask,
            token_count,
            expert_mask,
            map,
        }
    }
}

#[pyfunction]
fn moe_top_k<'py>(
    py: Python<'py>,
    logits: &Bound<'py, PyAny>,
    outputs: Outputs<'py>,
    lists: Lists<'py>,
    choice: Choice<'py>,
) -> PyResult<()> {
    let mut call = Call::new(py, &[]);
    let logits = call.input("logits", logits)?;
    let (ids, weights) = (call.output("ids", &outputs.0)?, call.output("weights", &outputs.1)?);
    let router = RouterArguments::read(&mut call, &lists, &choice)?;
    call.run(|x| {
        let (router, options) = (router.get(x), x.launch_options());
        oxigemm::moe_top_k(x.get(logits), &router, &mut x.output(ids), &mut x.output(weights), &options)
    })
}

#[pyfunction]
fn moe_route<'py>(
    x: &Bound<'py, PyAny>,
    gate: &Bound<'py, PyAny>,
    outputs: Outputs<'py>,
    lists: Lists<'py>,
    choice: Choice<'py>,
) -> PyResult<()> {
    let mut call = Call::new(x.py(), &[]);
    let (x, gate) = (call.input("x", x)?, call.input("gate", gate)?);
    let (ids, weights) = (call.output("ids", &outputs.0)?, call.output("weights", &outputs.1)?);
    let router = RouterArguments::read(&mut call, &lists, &choice)?;
    call.run(|of| {
        let (mut ids, mut weights) = (of.output(ids), of.output(weights));
        oxigemm::moe_route(of.get(x), of.get(gate), &router.get(of), &mut ids, &mut weights, &of.options)
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(moe_route, module)?)?;
    module.add_function(wrap_pyfunction!(moe_top_k, module)?)
}

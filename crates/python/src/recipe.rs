//! Recipes: the scale granularity of A and B as DeepGEMM's callers say it.

use oxigemm::{DType, ScaleBlock};
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::argument_error;

const NO_KERNELS: &str = "is one that there are no kernels for";

/// The scale granularity that a call claims: the rows and columns that share a scale, for A and for B.
#[derive(Clone, Copy, Default)]
pub struct Recipe {
    given: Option<[[i64; 2]; 2]>,
    rule: Rule,
}

/// Which recipes a function has kernels for, of FP8 operands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Rule {
    /// All.
    #[default]
    Any,
    /// 1D2D, or scales of 32.
    MGrouped,
    /// 1D1D: 1x128 or 1x32 for both.
    KGrouped,
}

/// Recipes of FP8 operands, in words.
const OF_FP8: &str = "(1, 128, 128), (1, 1, 128), (1, 32, 32) or (1, 1, 32)";

/// Scales of NVFP4, for A and for B, which are FP4.
const NVFP4: [[i64; 2]; 2] = [[1, 16]; 2];

/// The three arguments of a recipe: `recipe`, or `recipe_a` and `recipe_b`.
pub type RecipeArguments = (Option<(i64, i64, i64)>, Option<(i64, i64)>, Option<(i64, i64)>);

impl Recipe {
    pub fn new(py: Python<'_>, arguments: RecipeArguments) -> PyResult<Recipe> {
        let given = match arguments {
            (None, None, None) => return Ok(Recipe::default()),
            (Some((m, n, k)), None, None) => [[m, k], [n, k]],
            (None, Some(a), Some(b)) => [a.into(), b.into()],
            _ => {
                let expected = "either `recipe`, or both `recipe_a` and `recipe_b`";
                let found = "another choice of them";
                return Err(argument_error(py, "recipe", "contradicts others", expected, found));
            }
        };
        if !matches!(given, [[1, 128 | 32], [1 | 128, 128] | [1 | 32, 32]] | NVFP4) {
            let found = format!("A {:?}, B {:?}", given[0], given[1]);
            return Err(argument_error(py, "recipe", NO_KERNELS, OF_FP8, &found));
        }
        Ok(Recipe { given: Some(given), rule: Rule::Any })
    }

    /// The same in a function with kernels for some recipes of FP8 operands.
    pub fn with_rule(self, rule: Rule) -> Recipe {
        Recipe { rule, ..self }
    }

    /// Accepts recipes of operands that are both FP8: A and B have as many of K, 128 or 32. FP4 goes with either.
    pub fn expect_fp8(&self, py: Python<'_>) -> PyResult<()> {
        match self.given {
            Some([a @ [_, of_a], b @ [_, of_b]]) if of_a != of_b || of_a == 16 => {
                let found = format!("A {a:?}, B {b:?}");
                Err(argument_error(py, "recipe", NO_KERNELS, OF_FP8, &found))
            }
            _ => match self.rule {
                Rule::Any | Rule::KGrouped => Ok(()),
                Rule::MGrouped => self.expect_m_grouped(py),
            },
        }
    }

    /// Elements of K that share a scale of A, and of B, where the recipe says.
    pub fn scale_blocks(&self) -> [Option<ScaleBlock>; 2] {
        let block = |[_, k]: [i64; 2]| match k {
            16 => ScaleBlock::Of16,
            32 => ScaleBlock::Of32,
            _ => ScaleBlock::Of128,
        };
        self.given.map_or([None; 2], |given| given.map(|of| Some(block(of))))
    }

    /// The recipe of a k-grouped GEMM: rows of A and B have scales of their own. The library compares their shapes.
    pub fn k_grouped(py: Python<'_>, recipe: Option<(i64, i64, i64)>) -> PyResult<Recipe> {
        match recipe {
            None => Ok(Recipe { given: None, rule: Rule::KGrouped }),
            Some((1, 1, k @ (128 | 32))) => Ok(Recipe { given: Some([[1, k]; 2]), rule: Rule::KGrouped }),
            Some(recipe) => {
                let (expected, found) = ("(1, 1, 128) or (1, 1, 32)", format!("{recipe:?}"));
                Err(argument_error(py, "recipe", NO_KERNELS, expected, &found))
            }
        }
    }

    /// Accepts 1D2D scales only: 1x128 for A, 128x128 for B.
    pub fn expect_1d2d(&self, py: Python<'_>) -> PyResult<()> {
        self.expect(py, "(1, 128, 128)", |b| b == [128, 128])
    }

    /// Accepts scales of m-grouped GEMMs: 1D2D, or scales of 32.
    fn expect_m_grouped(&self, py: Python<'_>) -> PyResult<()> {
        self.expect(py, "(1, 128, 128), (1, 32, 32) or (1, 1, 32)", |b| b != [1, 128])
    }

    /// Accepts recipes whose scales of B are such.
    fn expect(&self, py: Python<'_>, expected: &str, accepts: impl Fn([i64; 2]) -> bool) -> PyResult<()> {
        match self.given {
            Some([[m, _], [n, k]]) if !accepts([n, k]) => {
                let problem = "is one that this function has no kernels for";
                Err(argument_error(py, "recipe", problem, expected, &format!("{:?}", (m, n, k))))
            }
            _ => Ok(()),
        }
    }

    /// Compares the last two dimensions of scales with the recipe. `k_first`: K is the first dimension of the operand.
    pub fn expect_scales(
        &self,
        py: Python<'_>,
        operand: usize,
        values: &Array,
        scales: &Array,
        k_first: bool,
    ) -> PyResult<()> {
        let Some(given) = self.given.filter(|_| self.rule != Rule::KGrouped) else { return Ok(()) };
        let [mn, k] = match values.dims() {
            [.., first, second] if k_first => [*second, *first],
            [.., first, second] => [*first, *second],
            _ => [0, 0],
        };
        // Bytes are FP4, two along K in each.
        let k = if values.dtype == DType::U8 { 2 * k } else { k };
        let [rows, columns] = given[operand].map(|count| count as usize);
        let along_k = k.div_ceil(columns);
        // Packed UE8M0 scales: four along K in each.
        let along_k = if scales.dtype == DType::I32 { along_k.div_ceil(4) } else { along_k };
        let mut expected = [mn.div_ceil(rows), along_k];
        if k_first {
            expected.reverse();
        }
        if scales.dims().ends_with(&expected) {
            return Ok(());
        }
        let expected = format!("{expected:?} by `recipe`");
        let found = format!("{:?}", scales.dims());
        Err(argument_error(py, scales.name, "has the wrong number of scales", &expected, &found))
    }
}

//! Activation stage, on accumulators in registers.

use oxigemm_ptx::{F32, Kernel, U32, Var};

/// Activation function. The numbers are what kernels are passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Activation {
    /// Itself.
    #[default]
    None = 0,
    /// Itself where it is positive, else 0; NaN stays.
    Relu = 1,
    /// The square of [`Relu`](Self::Relu).
    ReluSquared = 2,
    /// `x * Φ(x)`, with the distribution function of the normal distribution.
    Gelu = 3,
    /// The usual approximation of [`Gelu`](Self::Gelu), by a hyperbolic tangent.
    GeluTanh = 4,
    /// `x / (1 + exp(-x))`.
    Silu = 5,
}

/// What a gated epilogue computes: `act(min(gate, limit)) * (clamp(up, -limit, limit) + up_offset)`. NaN stays.
///
/// The default is `act(gate) * up`.
///
/// ```
/// use oxigemm_kernels::gemm::epilogue::Gate;
///
/// let gpt_oss = Gate { slope: 1.702, limit: 7.0, up_offset: 1.0 };
/// assert_ne!(gpt_oss, Gate::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// Factor in the sigmoid of [`Silu`](Activation::Silu): `x / (1 + exp(-slope * x))`. Others take 1 only.
    pub slope: f32,
    /// The largest gate, and the largest magnitude of an up.
    pub limit: f32,
    /// Added to an up.
    pub up_offset: f32,
}

impl Gate {
    /// `act(gate) * up`.
    pub const PLAIN: Gate = Gate { slope: 1.0, limit: f32::INFINITY, up_offset: 0.0 };
}

impl Default for Gate {
    fn default() -> Self {
        Gate::PLAIN
    }
}

/// All but ReLU are `x / (1 + 2^(x * P(|x|)))` with these coefficients of P, from the constant one on.
const DEGREE: usize = 8;
type Coefficients = [f32; DEGREE + 1];

const SILU: Coefficients = constant(-std::f32::consts::LOG2_E);
/// As `(1 + tanh(u)) / 2` is `1 / (1 + exp(-2u))`, for `u = sqrt(2 / pi) * (x + 0.044715 x^3)`.
const GELU_TANH: Coefficients = {
    const LINEAR: f32 = -2.0 * 0.797_884_6 * std::f32::consts::LOG2_E;
    let mut coefficients = constant(LINEAR);
    coefficients[2] = LINEAR * 0.044_715;
    coefficients
};
/// `log2((1 - Φ(x)) / Φ(x)) / x`, approximated between 0 and 5.5; beyond, the tail only vanishes faster. The error is
/// below 3e-5 of the result for x above -4, and nowhere above 3e-6.
const GELU: Coefficients = [
    -2.302_073_7,
    1.737_750_3e-4,
    -0.108_408_35,
    8.372_093e-3,
    -8.336_953e-3,
    4.320_500_4e-3,
    -9.423_82e-4,
    9.711_646e-5,
    -3.930_67e-6,
];

const fn constant(value: f32) -> Coefficients {
    let mut coefficients = [0.0; DEGREE + 1];
    coefficients[0] = value;
    coefficients
}

/// Parameters of a [`Gate`] inside a kernel.
#[derive(Clone, Copy)]
pub(crate) struct GateParams<'k> {
    pub slope: F32<'k>,
    pub limit: F32<'k>,
    pub up_offset: F32<'k>,
}

/// Applies an activation to all values, and multiplies these gates with their `ups`, if there are some.
pub(crate) fn activate<'k>(
    k: &'k Kernel,
    activation: U32<'k>,
    gate: &GateParams<'k>,
    values: &[Var<'k, f32>],
    ups: &[Var<'k, f32>],
) {
    if !ups.is_empty() {
        let least = gate.limit * -1.0;
        k.if_(gate.limit.lt(f32::INFINITY), || {
            values.iter().for_each(|x| x.set(x.live().min_nan(gate.limit)));
            ups.iter().for_each(|up| up.set(up.live().min_nan(gate.limit).max_nan(least)));
        });
    }
    activate_all(k, activation, gate.slope, values);
    values.iter().zip(ups).for_each(|(x, up)| x.set(x.live() * (up.live() + gate.up_offset)));
}

/// Applies an activation to all values. `slope` is that of a [`Gate`].
fn activate_all<'k>(k: &'k Kernel, activation: U32<'k>, slope: F32<'k>, values: &[Var<'k, f32>]) {
    let is = |which: Activation| activation.eq(which as u32);
    k.if_(is(Activation::Relu), || {
        values.iter().for_each(|x| x.set(x.live().max_nan(0.0)));
    });
    k.if_(is(Activation::ReluSquared), || {
        for x in values {
            let positive = x.live().max_nan(0.0);
            x.set(positive * positive);
        }
    });
    k.if_(activation.gt(Activation::ReluSquared as u32), || {
        let (tanh, silu) = (is(Activation::GeluTanh), is(Activation::Silu));
        let coefficients: [F32<'k>; DEGREE + 1] = std::array::from_fn(|i| {
            let gelu = tanh.select::<f32>(GELU_TANH[i], GELU[i]);
            // Of SiLU there is the constant one only.
            let of_silu = k.constant(SILU[i]);
            silu.select(if i == 0 { slope * of_silu } else { of_silu }, gelu)
        });
        // The exponential and the reciprocal take longer than so many multiplications: one form serves all.
        for value in values {
            let x = value.live();
            let [lower @ .., last] = coefficients;
            let polynomial = lower.iter().rev().fold(last, |sum, &c| sum.fma(x.abs(), c));
            let exponential = (x * polynomial).exp2_approx();
            value.set(x * (exponential + 1.0).reciprocal_approx());
        }
    });
}

//! Experts of a mixture, as calls from Python have them.

use std::borrow::Cow;

use oxigemm::{Activation, Gate, MoeExperts, MoeProjection};
use pyo3::prelude::*;

use crate::call::{Arguments, Call, Index};
use crate::convert::convert;
use crate::gemm::activation_of;

/// A weight of all experts: itself, its scales and its bias.
struct Projection {
    weight: Index,
    scales: Option<Index>,
    bias: Option<Index>,
}

/// The names of those.
const PROJECTIONS: [[&str; 3]; 2] =
    [["gate_up", "gate_up_scales", "gate_up_bias"], ["down", "down_scales", "down_bias"]];

/// A weight with its scales and its bias.
pub type Parts<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, Option<Bound<'py, PyAny>>);

impl Projection {
    fn read<'py>(call: &mut Call<'py>, names: [&'static str; 3], parts: &Parts<'py>) -> PyResult<Self> {
        let (weight, scales, bias) = parts;
        let weight = call.input(names[0], weight)?;
        let mut optional = |name, part: &Option<Bound<'py, PyAny>>| {
            part.as_ref().map(|part| call.input(name, part)).transpose()
        };
        Ok(Projection { weight, scales: optional(names[1], scales)?, bias: optional(names[2], bias)? })
    }

    fn get<'a>(&self, x: &'a Arguments) -> MoeProjection<'a> {
        let optional = |index: Option<Index>| index.map(|index| x.get(index));
        MoeProjection { weight: x.get(self.weight), scales: optional(self.scales), bias: optional(self.bias) }
    }
}

/// What is between the products: the activation, whether there are gates, and what is done with them.
pub type Between<'py> = (Bound<'py, PyAny>, bool, Bound<'py, PyAny>);

/// Both weights, and what is between them.
pub struct Experts {
    gate_up: Projection,
    down: Projection,
    activation: Activation,
    gated: bool,
    gate: Gate,
}

impl Experts {
    pub fn read<'py>(
        call: &mut Call<'py>,
        (gate_up, down): &(Parts<'py>, Parts<'py>),
        (activation, gated, gate): &Between<'py>,
    ) -> PyResult<Self> {
        let py = call.py();
        let gate = convert::<Option<(f32, f32, f32)>>("gate", gate)?;
        Ok(Experts {
            gate_up: Projection::read(call, PROJECTIONS[0], gate_up)?,
            down: Projection::read(call, PROJECTIONS[1], down)?,
            activation: activation_of(py, &convert::<Cow<'_, str>>("activation", activation)?)?,
            gated: *gated,
            gate: gate.map_or(Gate::PLAIN, |(slope, limit, up_offset)| Gate { slope, limit, up_offset }),
        })
    }

    pub fn get<'a>(&self, at: &'a Arguments) -> MoeExperts<'a> {
        let (gate_up, down) = (self.gate_up.get(at), self.down.get(at));
        MoeExperts { gate_up, down, activation: self.activation, gated: self.gated, gate: self.gate }
    }
}

//! A kernel with operands: launched, and what it leaves compared.

use std::collections::BTreeMap;

use oxigemm_sim::{Element, Fault, Launch, Machine, Module, Options, Param as Argument, Report, Swizzle, TensorMapSpec};

use crate::format::Format;
use crate::kernel::{Kernel, Param};
use crate::reference::{Expected, Problem, problem};

/// CTAs that run at the same time where a kernel takes over those that have not begun.
const FEW_RESIDENT: u32 = 6;

/// What operands are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Integers from -4 to 4 and scales that are small powers of two: sums are exact in any order.
    Integers,
    /// Normal numbers.
    Normals,
}

/// Contents of the outputs after a run, one after another.
pub type Outputs = Vec<Vec<u8>>;

/// A kernel with operands.
#[derive(Clone, Debug)]
pub struct Case<'a> {
    kernel: &'a Kernel,
    problem: Problem,
}

impl<'a> Case<'a> {
    /// Draws operands and computes what is expected.
    pub fn new(kernel: &'a Kernel, operands: Operands) -> Result<Case<'a>, String> {
        Ok(Case { kernel, problem: problem(kernel, operands)? })
    }

    /// Whether every output is compared bit for bit.
    pub fn exact(&self) -> bool {
        self.problem.outputs.iter().all(|(_, _, expected)| matches!(expected, Expected::Bits(_)))
    }

    /// Whether a schedule decides in which order numbers are added that are no integers.
    pub(crate) fn reorders(&self) -> bool {
        !self.exact() && !self.kernel.about.zeroed.is_empty()
    }

    /// Runs the kernel, or a variant of it, on fresh memory.
    pub fn run(&self, module: &Module, options: &Options) -> Result<(Report, Outputs), Fault> {
        let mut machine = Machine::new();
        let mut buffers = BTreeMap::new();
        let mut params = Vec::new();
        for param in &self.kernel.params {
            params.push(match param {
                Param::Pointer { arg, element, shape } => {
                    Argument::U64(self.buffer(&mut machine, &mut buffers, arg, element.0, shape))
                }
                Param::Map { arg, element, shape, r#box, swizzle, padded_fp4 } => {
                    let address = self.buffer(&mut machine, &mut buffers, arg, element.0, shape);
                    let map = map(address, element.0, shape, r#box, *swizzle, *padded_fp4);
                    machine.memory.tensor_map(&map)?.into()
                }
                Param::I32 { value, .. } => Argument::U32(*value as u32),
                Param::I64 { value, .. } => Argument::U64(*value as u64),
                Param::Scratch { bytes: 0, .. } => Argument::U64(0),
                Param::Scratch { bytes, .. } => Argument::U64(machine.memory.allocate(*bytes)),
            });
        }
        let launch = Launch {
            entry: self.kernel.entry.clone(),
            grid: self.kernel.grid,
            cluster: Some(self.kernel.cluster).filter(|cluster| *cluster != [1; 3]),
            block: self.kernel.block,
            shared_bytes: self.kernel.shared_bytes,
            params,
        };
        let mut options = options.clone();
        if self.kernel.ptx.contains("clusterlaunchcontrol") {
            options.resident_ctas = FEW_RESIDENT;
        }
        let report = machine.run(module, &launch, &options)?;
        let mut outputs = Vec::new();
        for (arg, _, _) in &self.problem.outputs {
            let (address, bytes) = buffers[arg.as_str()];
            outputs.push(machine.memory.read(address, bytes)?.to_vec());
        }
        Ok((report, outputs))
    }

    /// The address of a tensor: allocated once, with its contents if it has any.
    fn buffer(
        &self,
        machine: &mut Machine,
        buffers: &mut BTreeMap<String, (u64, usize)>,
        arg: &str,
        format: Format,
        shape: &[usize],
    ) -> u64 {
        let bytes = shape.iter().product::<usize>() * format.bytes();
        let given = self.problem.inputs.iter().find(|(input, _)| input == arg);
        let address = match given {
            Some((_, contents)) => machine.memory.allocate_with(contents),
            None => machine.memory.allocate(bytes),
        };
        buffers.insert(arg.to_owned(), (address, bytes));
        address
    }

    /// What is wrong with the outputs of a run, if anything: one sentence.
    pub fn judge(&self, outputs: &Outputs) -> Result<(), String> {
        for ((arg, format, expected), found) in self.problem.outputs.iter().zip(outputs) {
            let wrong: Vec<usize> = match expected {
                Expected::Bits(bits) => {
                    let size = format.bytes();
                    let same = |at: &usize| bits[at * size..][..size] == found[at * size..][..size];
                    (0..bits.len() / size).filter(|at| !same(at) && !zeros(*format, bits, found, *at)).collect()
                }
                Expected::Near { values, sizes, part } => {
                    let found = format.decode(found);
                    let near = |at: &usize| (found[*at] - values[*at]).abs() <= sizes[*at] * part;
                    (0..values.len()).filter(|at| !near(at)).collect()
                }
            };
            let Some(first) = wrong.first() else { continue };
            let (want, all) = match expected {
                Expected::Bits(bits) => (format.decode(bits)[*first], bits.len() / format.bytes()),
                Expected::Near { values, .. } => (values[*first], values.len()),
            };
            let got = format.decode(found)[*first];
            return Err(format!(
                "{} of {all} elements of {arg} differ, the first at {first}: {got} and not {want}",
                wrong.len()
            ));
        }
        Ok(())
    }
}

/// Zeros of either sign are one: the models do not follow signs of zero.
fn zeros(format: Format, a: &[u8], b: &[u8], at: usize) -> bool {
    let size = format.bytes();
    let zero = |bytes: &[u8]| format.decode(&bytes[at * size..][..size])[0] == 0.0;
    format.float().is_some() && zero(a) && zero(b)
}

/// A tensor map as Triton's launcher makes it.
fn map(address: u64, format: Format, shape: &[usize], box_dims: &[u32], swizzle: u32, padded_fp4: bool) -> TensorMapSpec {
    let element = match format {
        _ if padded_fp4 => Element::U4Padded,
        Format::F32 => Element::F32,
        Format::I32 => Element::S32,
        Format::F16 => Element::F16,
        Format::Bf16 => Element::Bf16,
        Format::E4m3 | Format::E5m2 | Format::I8 | Format::U8 => Element::U8,
    };
    let mut dims: Vec<u64> = shape.iter().rev().map(|extent| *extent as u64).collect();
    let strides = dims
        .iter()
        .scan(format.bytes() as u64, |stride, extent| {
            *stride *= extent;
            Some(*stride)
        })
        .take(dims.len() - 1)
        .collect();
    if padded_fp4 {
        dims[0] *= 2;
    }
    TensorMapSpec {
        address,
        element,
        dims,
        strides,
        box_dims: box_dims.iter().rev().copied().collect(),
        swizzle: match swizzle {
            32 => Swizzle::B32,
            64 => Swizzle::B64,
            128 => Swizzle::B128,
            _ => Swizzle::None,
        },
    }
}

//! Problems with data: drawn from a seed, on the host and on a device.

use std::sync::Arc;

use oxigemm::Granularity;
use oxigemm::cast::{Quantized, ScaleFormat, cast_to_fp8};
use oxigemm::plan::Family;
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_gemm, half_bgemm_nt_summed, half_gemm, random,
};
use oxigemm_kernels::fp8::E5m2;

use crate::{Failure, Op};

/// What is added to the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AddendKind {
    /// Nothing.
    #[default]
    None,
    /// The old content of D.
    Inplace,
    /// Another matrix.
    Other,
}

/// How a matrix of scales lies in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ScaleOrder {
    /// Along K, without gaps.
    #[default]
    Row,
    /// Along K, rows padded to 16 bytes.
    RowPadded,
    /// Along M (or N), columns padded to 16 bytes.
    Mn,
    /// Along M (or N), with an odd pitch and an odd address.
    Odd,
}

/// Which elements of FP8 operands share a scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ScaleMode {
    /// 128 of a row of A, 128 by 128 of B.
    #[default]
    Fine,
    /// A row of A, all of B.
    Row,
    /// All of A, all of B.
    Tensor,
}

impl ScaleMode {
    /// That of A and that of B.
    fn granularities(self, op: Op) -> [Granularity; 2] {
        match self {
            ScaleMode::Fine if op == Op::Fp81d1d => [Granularity::PerToken, Granularity::PerToken],
            ScaleMode::Fine => [Granularity::PerToken, Granularity::PerBlock],
            ScaleMode::Row => [Granularity::PerRow, Granularity::PerTensor],
            ScaleMode::Tensor => [Granularity::PerTensor, Granularity::PerTensor],
        }
    }
}

/// A problem and its layout. The default is what `bench` runs: BF16 out, nothing added, no gaps.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub op: Op,
    /// How A and B lie in memory.
    pub layout: GemmLayout,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub d_type: DType,
    pub addend: AddendKind,
    pub scales: ScaleMode,
    /// Which operands of FP8 are e5m2, if any is.
    pub e5m2: Option<E5m2>,
    /// How many products of 16-bit operands are added up, where some are: each has an equal part of K.
    pub slabs: Option<usize>,
    pub sfa: ScaleOrder,
    pub sfb: ScaleOrder,
    /// 16-byte units behind each row of A and of B beyond what alignment needs.
    pub ab_padding: usize,
    /// Elements behind each row of D and C.
    pub d_padding: usize,
    /// Elements before D, by which its address is off.
    pub d_offset: usize,
    /// Whether A and B end where their allocation ends.
    pub at_end: bool,
    pub seed: u64,
}

impl Spec {
    /// A problem without gaps.
    pub fn new(m: usize, n: usize, k: usize) -> Spec {
        Spec::of(Op::Fp8, GemmLayout::Nt, [m, n, k])
    }

    /// The kernels that serve it.
    pub fn family(&self) -> Family {
        self.e5m2.map_or_else(|| self.op.family(self.layout), Family::Fp8E5m2)
    }

    /// The type of A and that of B.
    pub fn ab_types(&self) -> [DType; 2] {
        match self.e5m2 {
            None => [self.op.ab_type(); 2],
            Some(e5m2) => e5m2.operands().map(|e5m2| if e5m2 { DType::E5m2 } else { DType::E4m3 }),
        }
    }

    /// A problem that kernels of a family serve, without gaps.
    pub fn of_family(family: Family, dims: [usize; 3]) -> Spec {
        let (op, layout) = Op::of(family);
        let e5m2 = match family {
            Family::Fp8E5m2(e5m2) => Some(e5m2),
            _ => None,
        };
        Spec { e5m2, ..Spec::of(op, layout, dims) }
    }

    /// A problem of some function and layout, without gaps.
    pub fn of(op: Op, layout: GemmLayout, [m, n, k]: [usize; 3]) -> Spec {
        Spec {
            op,
            layout,
            m,
            n,
            k,
            d_type: op.d_types()[0],
            addend: AddendKind::None,
            scales: ScaleMode::Fine,
            e5m2: None,
            slabs: None,
            sfa: ScaleOrder::Row,
            sfb: ScaleOrder::Row,
            ab_padding: 0,
            d_padding: 0,
            d_offset: 0,
            at_end: false,
            seed: 0,
        }
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Spec { op, layout, m, n, k, d_type, addend, sfa, sfb, .. } = self;
        write!(f, "{op} {layout} {m}x{n}x{k} {d_type}, c {addend:?}")?;
        if let Some(e5m2) = self.e5m2 {
            write!(f, ", {}", e5m2.name())?;
        }
        if let Some(slabs) = self.slabs {
            write!(f, ", the sum of {slabs} products")?;
        }
        if !matches!(op, Op::Bf16 | Op::Fp16) {
            write!(f, ", scales {:?} {sfa:?}/{sfb:?}", self.scales)?;
        }
        if self.ab_padding + self.d_padding + self.d_offset > 0 {
            write!(f, ", gaps {}/{}, d off by {}", self.ab_padding, self.d_padding, self.d_offset)?;
        }
        if self.at_end {
            write!(f, ", at the end of memory")?;
        }
        write!(f, ", seed {}", self.seed)
    }
}

/// The data of a problem on the host.
pub struct Host {
    pub spec: Spec,
    /// A, `[M, K]`: normals, rounded to its type; those of FP8 to BF16, and not yet quantized.
    pub a_values: Vec<f32>,
    /// B, `[N, K]`, like A.
    pub b_values: Arc<Vec<f32>>,
    /// A and B quantized, where the function takes FP8.
    pub fp8: Option<Fp8Pair>,
    /// What is added, if anything is, already of D's type.
    pub c: Option<Vec<f32>>,
}

impl Host {
    /// Draws the data.
    pub fn draw(spec: Spec) -> Result<Host, Failure> {
        let Spec { m, n, k, .. } = spec;
        let values = |salt: u64, len: usize| values(spec.op.rounding(), spec.seed, salt, len);
        let (a_values, b_values) = (values(0, m * k), values(1, n * k));
        let cast = |values: &[f32], rows: usize, operand: usize| {
            let (dtype, granularity) =
                (spec.ab_types()[operand], spec.scales.granularities(spec.op)[operand]);
            cast_to_fp8(values, rows, k, dtype, granularity, ScaleFormat::F32)
        };
        let fp8 = match spec.op {
            Op::Bf16 | Op::Fp16 => None,
            _ => Some(Fp8Pair { a: cast(&a_values, m, 0)?, b: Arc::new(cast(&b_values, n, 1)?) }),
        };
        let c = (spec.addend != AddendKind::None).then(|| {
            let mut c = values(2, m * n);
            c.iter_mut().for_each(|x| *x *= 8.0);
            c
        });
        Ok(Host { spec, a_values, b_values: Arc::new(b_values), fp8, c })
    }

    /// A and B quantized, of a function that takes FP8.
    pub fn quantized(&self) -> Result<&Fp8Pair, Failure> {
        self.fp8.as_ref().ok_or_else(|| "the operands are not of FP8".into())
    }

    /// Puts the data on a device, with poison wherever the layout has gaps.
    pub fn upload(&self, device: &Device) -> Result<Operands, Failure> {
        let spec = &self.spec;
        let Spec { m, n, k, layout, .. } = *spec;
        let ab_type = spec.op.ab_type();
        let (a, b, scales) = match &self.fp8 {
            Some(Fp8Pair { a, b }) => {
                let codes = |x: &Quantized, k_first: bool| match k_first {
                    true => {
                        matrix(x.dtype, &transposed(&x.codes, [x.rows, x.k]), [x.k, x.rows], spec, device)
                    }
                    false => matrix(x.dtype, &x.codes, [x.rows, x.k], spec, device),
                };
                let scales = |x: &Quantized, order: ScaleOrder, k_first: bool| -> Result<Tensor, Failure> {
                    let scales = scales(x, order, device)?;
                    Ok(if k_first { scales.transpose(0, 1)? } else { scales })
                };
                let (a_first, b_first) = (layout.a_begins_with_k(), layout.b_begins_with_k());
                let both = [scales(a, spec.sfa, a_first)?, scales(b, spec.sfb, b_first)?];
                (codes(a, a_first)?, codes(b, b_first)?, Some(both))
            }
            None if spec.slabs.is_some() => {
                (slabs(&self.a_values, m, spec, device)?, slabs(&self.b_values, n, spec, device)?, None)
            }
            None => {
                let lay_out = |values: &[f32], dims: [usize; 2], k_first: bool| match k_first {
                    true => matrix(
                        ab_type,
                        &ab_type.encode(&transposed(values, dims)),
                        [dims[1], dims[0]],
                        spec,
                        device,
                    ),
                    false => matrix(ab_type, &ab_type.encode(values), dims, spec, device),
                };
                let a = lay_out(&self.a_values, [m, k], layout.a_begins_with_k())?;
                (a, lay_out(&self.b_values, [n, k], layout.b_begins_with_k())?, None)
            }
        };
        let (d, d_memory) =
            self.output(device, self.c.as_deref().filter(|_| spec.addend == AddendKind::Inplace))?;
        let c = match spec.addend {
            AddendKind::Other => Some(self.output(device, self.c.as_deref())?.0),
            _ => None,
        };
        Ok(Operands { a, b, scales, c, d, d_memory, addend: spec.addend, layout })
    }

    /// A matrix like D inside poisoned memory, holding `values` or poison.
    fn output(&self, device: &Device, values: Option<&[f32]>) -> Result<(Tensor, Tensor), Failure> {
        let Spec { m, n, d_type, d_padding, d_offset, .. } = self.spec;
        let pitch = n + d_padding;
        let len = GUARD + d_offset + m * pitch + GUARD;
        let memory = Tensor::from_bytes(d_type, &vec![POISON; len * d_type.size()], &[len], device)?;
        let mut d = memory.narrow(0, GUARD + d_offset, m * pitch)?.view(&[m, pitch])?.narrow(1, 0, n)?;
        if let Some(values) = values {
            d.write_f32(values)?;
        }
        Ok((d, memory))
    }
}

/// Normals of a seed, rounded to a type.
pub fn values(dtype: DType, seed: u64, salt: u64, len: usize) -> Vec<f32> {
    dtype.decode(&dtype.encode(&random::normals(seed.wrapping_mul(4).wrapping_add(salt), len)))
}

impl Op {
    /// What operands are rounded to, before they are quantized if they are.
    pub fn rounding(self) -> DType {
        if self == Op::Fp16 { DType::F16 } else { DType::Bf16 }
    }
}

/// Quantized operands; those of groups may share B.
pub struct Fp8Pair {
    pub a: Quantized,
    pub b: Arc<Quantized>,
}

/// Elements of poison before and behind D. A multiple of 16 bytes for every type, so that D stays aligned.
const GUARD: usize = 1024;
/// As bytes this is NaN in every type.
pub const POISON: u8 = 0xff;
/// Memory is mapped in pages of this size.
pub const PAGE: usize = 2 << 20;

/// A matrix of these elements, in rows that begin at multiples of 16 bytes, with poison between them.
fn matrix(
    dtype: DType,
    elements: &[u8],
    [rows, columns]: [usize; 2],
    spec: &Spec,
    device: &Device,
) -> Result<Tensor, Failure> {
    let size = dtype.size();
    let pitch = ((columns * size).div_ceil(16) + spec.ab_padding) * 16;
    let mut bytes = vec![POISON; rows * pitch];
    for (row, elements) in elements.chunks((columns * size).max(1)).enumerate() {
        bytes[row * pitch..][..elements.len()].copy_from_slice(elements);
    }
    Ok(dense(dtype, &bytes, &[rows, pitch / size], spec.at_end, device)?.narrow(1, 0, columns)?)
}

/// A tensor without gaps. At the end, there is poison before it, and behind it no memory at all.
pub fn dense(
    dtype: DType,
    bytes: &[u8],
    dims: &[usize],
    at_end: bool,
    device: &Device,
) -> Result<Tensor, Failure> {
    if !at_end {
        return Ok(Tensor::from_bytes(dtype, bytes, dims, device)?);
    }
    let (len, size) = (bytes.len().next_multiple_of(PAGE), dtype.size());
    let first = len - bytes.len();
    let mut all = vec![POISON; len];
    all[first..].copy_from_slice(bytes);
    let memory = Tensor::from_bytes(dtype, &all, &[len / size], device)?;
    Ok(memory.narrow(0, first / size, bytes.len() / size)?.view(dims)?)
}

/// An operand `[rows, K]` of products that are added up, as `[slabs, rows, K of each]`, with poison behind every row.
fn slabs(values: &[f32], rows: usize, spec: &Spec, device: &Device) -> Result<Tensor, Failure> {
    let (dtype, slabs) = (spec.op.ab_type(), spec.slabs.unwrap_or(1));
    let k = spec.k / slabs.max(1);
    let pitch = (k + 1).next_multiple_of(16 / dtype.size());
    let poison = vec![POISON; slabs * rows * pitch * dtype.size()];
    let memory = Tensor::from_bytes(dtype, &poison, &[slabs, rows, pitch], device)?;
    let operand = memory.narrow(2, 0, k)?;
    if !operand.is_empty() {
        // Rows first, as they are on the host.
        operand.transpose(0, 1)?.write_f32(values)?;
    }
    Ok(operand)
}

pub fn transposed<T: Copy>(values: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

fn scales(x: &Quantized, order: ScaleOrder, device: &Device) -> Result<Tensor, Failure> {
    scale_matrix(&x.scales, x.scale_dims(), order, device)
}

/// A matrix of scales, given row by row, with poison between what lies along its order.
pub fn scale_matrix(
    scales: &[f32],
    [rows, blocks]: [usize; 2],
    order: ScaleOrder,
    device: &Device,
) -> Result<Tensor, Failure> {
    let (transposed, first) = match order {
        ScaleOrder::Row | ScaleOrder::RowPadded => (false, 0),
        ScaleOrder::Mn => (true, 0),
        ScaleOrder::Odd => (true, 1),
    };
    let (lines, line) = if transposed { (blocks, rows) } else { (rows, blocks) };
    let pitch = match order {
        ScaleOrder::Row => line,
        ScaleOrder::RowPadded | ScaleOrder::Mn => line.next_multiple_of(4),
        ScaleOrder::Odd => line | 1,
    };
    let mut values = vec![f32::NAN; first + lines * pitch];
    for (i, scale) in scales.iter().enumerate() {
        let (row, block) = (i / blocks.max(1), i % blocks.max(1));
        let (y, x) = if transposed { (block, row) } else { (row, block) };
        values[first + y * pitch + x] = *scale;
    }
    let memory = Tensor::from_slice(&values, &[values.len()], device)?;
    let matrix = memory.narrow(0, first, lines * pitch)?.view(&[lines, pitch])?.narrow(1, 0, line)?;
    Ok(if transposed { matrix.transpose(0, 1)? } else { matrix })
}

/// The operands of a problem on a device. A clone shares their memory.
#[derive(Clone)]
pub struct Operands {
    pub a: Tensor,
    pub b: Tensor,
    /// Those of A and B, where they have some.
    pub scales: Option<[Tensor; 2]>,
    pub c: Option<Tensor>,
    pub d: Tensor,
    /// All of the memory that D is a part of.
    pub d_memory: Tensor,
    addend: AddendKind,
    layout: GemmLayout,
}

impl Operands {
    /// Moves A and B to other memory: where they lie decides about some percent of short times.
    pub fn relocate(&mut self) -> Result<(), Failure> {
        for operand in [&mut self.a, &mut self.b] {
            let mut other = Tensor::empty(operand.dtype(), operand.dims(), operand.device())?;
            other.copy_from(operand)?;
            *operand = other;
        }
        Ok(())
    }

    /// Runs the product.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let addend = match (&self.c, self.addend) {
            (Some(c), _) => Addend::From(c),
            (None, AddendKind::Inplace) => Addend::InPlace,
            (None, _) => Addend::None,
        };
        match &self.scales {
            Some([sfa, sfb]) => {
                fp8_gemm(self.layout, (&self.a, sfa), (&self.b, sfb), addend, &mut self.d, options)
            }
            None if self.a.dims().len() == 3 => {
                half_bgemm_nt_summed(&self.a, &self.b, addend, &mut self.d, options)
            }
            None => half_gemm(self.layout, &self.a, &self.b, addend, &mut self.d, options),
        }
    }

    /// The same for some rows, of an A that begins with M.
    pub fn rows(&self, first: usize, count: usize) -> oxigemm::Result<Operands> {
        let part = |x: &Tensor| x.narrow(0, first, count);
        Ok(Operands {
            a: part(&self.a)?,
            scales: match &self.scales {
                None => None,
                Some([sfa, sfb]) => Some([part(sfa)?, sfb.clone()]),
            },
            c: self.c.as_ref().map(part).transpose()?,
            d: part(&self.d)?,
            ..self.clone()
        })
    }

    /// Whether the memory around D, and between its rows, still holds poison.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        let size = self.d.dtype().size();
        let bytes = self.d_memory.to_bytes()?;
        let first = (self.d.address() - self.d_memory.address()) as usize;
        let (rows, width) = (self.d.dims()[0], self.d.dims()[1] * size);
        let pitch = if rows > 1 { self.d.strides()[0] * size } else { width };
        let mut gap_starts = 0;
        for row in 0..rows {
            let start = first + row * pitch;
            if bytes[gap_starts..start].iter().any(|byte| *byte != POISON) {
                return Ok(false);
            }
            gap_starts = start + width;
        }
        Ok(bytes[gap_starts..].iter().all(|byte| *byte == POISON))
    }

    /// Overwrites D, and everything around it, with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        let bytes = vec![POISON; self.d_memory.len() * self.d_memory.dtype().size()];
        Ok(self.d_memory.write_bytes(&bytes)?)
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self, host: &Host) -> Result<(), Failure> {
        match &host.c {
            Some(c) if self.addend == AddendKind::Inplace => Ok(self.d.write_f32(c)?),
            _ => Ok(()),
        }
    }

    /// The elements of D.
    pub fn result(&self) -> Result<Vec<f32>, Failure> {
        Ok(self.d.to_vec_f32()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_does_not_change_the_data() {
        let cpu = Device::cpu();
        let plain = Host::draw(Spec::new(5, 130, 200)).unwrap();
        let expected = plain.upload(&cpu).unwrap();
        for order in [ScaleOrder::Row, ScaleOrder::RowPadded, ScaleOrder::Mn, ScaleOrder::Odd] {
            let spec = Spec { sfa: order, sfb: order, ab_padding: 2, at_end: true, ..plain.spec };
            let found = Host::draw(spec).unwrap().upload(&cpu).unwrap();
            let (Some(found_scales), Some(scales)) = (&found.scales, &expected.scales) else {
                panic!("FP8 has scales")
            };
            for (x, y) in [
                (&found.a, &expected.a),
                (&found.b, &expected.b),
                (&found_scales[0], &scales[0]),
                (&found_scales[1], &scales[1]),
            ] {
                assert_eq!(x.to_bytes().unwrap(), y.to_bytes().unwrap(), "{order:?}");
            }
            assert_eq!(found.a.strides()[0], 208 + 32);
        }
    }

    #[test]
    fn every_layout_of_16_bit_operands_is_the_same_product() {
        for op in [Op::Bf16, Op::Fp16] {
            let results = GemmLayout::ALL.map(|layout| {
                let spec = Spec { ab_padding: 1, at_end: true, ..Spec::of(op, layout, [5, 33, 70]) };
                let mut operands = Host::draw(spec).unwrap().upload(&Device::cpu()).unwrap();
                operands.run(&GemmOptions::default()).unwrap();
                operands.result().unwrap()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{op}");
            assert!(results[0].iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn a_write_outside_of_d_is_seen() {
        let spec = Spec { d_padding: 3, d_offset: 1, ..Spec::new(4, 9, 16) };
        let mut operands = Host::draw(spec).unwrap().upload(&Device::cpu()).unwrap();
        assert!(operands.surroundings_untouched().unwrap());
        operands.run(&GemmOptions::default()).unwrap();
        assert!(operands.surroundings_untouched().unwrap());
        for place in [0, GUARD, GUARD + 1 + 9, GUARD + 1 + 4 * 12] {
            let mut one = operands.d_memory.narrow(0, place, 1).unwrap();
            let before = one.to_bytes().unwrap();
            one.write_f32(&[1.0]).unwrap();
            assert!(!operands.surroundings_untouched().unwrap(), "element {place}");
            one.write_bytes(&before).unwrap();
        }
    }
}

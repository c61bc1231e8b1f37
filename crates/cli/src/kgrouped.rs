//! Problems with groups along K, with data: drawn from a seed, on the host and on a device.

use oxigemm::cast::Quantized;
use oxigemm::plan::{Family, KGroupedShape};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Tensor, k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous, k_grouped_half_gemm,
};
use oxigemm_kernels::kgroups::PITCH_UNIT;
use oxigemm_kernels::transpose_groups::result_extent;

use crate::problem::{AddendKind, Fp8Pair, Host, POISON, ScaleOrder, Spec, scale_matrix};
use crate::verdict::{self, Effort, Verdict};
use crate::{Failure, Op};

/// A function with groups along K, and how its operands are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KGroupedForm {
    pub op: Op,
    pub layout: GemmLayout,
}

impl KGroupedForm {
    pub const FP8_NT: KGroupedForm = KGroupedForm { op: Op::Fp8Kgrouped, layout: GemmLayout::Nt };

    /// Every form that there is.
    pub const ALL: [KGroupedForm; 6] = [
        KGroupedForm::FP8_NT,
        KGroupedForm { op: Op::Fp8Kgrouped, layout: GemmLayout::Tn },
        KGroupedForm { op: Op::Bf16Kgrouped, layout: GemmLayout::Tn },
        KGroupedForm { op: Op::Bf16Kgrouped, layout: GemmLayout::Nt },
        KGroupedForm { op: Op::Fp16Kgrouped, layout: GemmLayout::Tn },
        KGroupedForm { op: Op::Fp16Kgrouped, layout: GemmLayout::Nt },
    ];

    /// The form of a function, the usual one where no layout is given; `None` where it has none in this layout.
    pub fn of(op: Op, layout: Option<GemmLayout>) -> Option<KGroupedForm> {
        let is = |form: &KGroupedForm| form.op == op && layout.is_none_or(|layout| form.layout == layout);
        KGroupedForm::ALL.into_iter().find(is)
    }

    /// The form that kernels of a family serve.
    pub fn of_family(family: Family) -> Option<KGroupedForm> {
        KGroupedForm::ALL.into_iter().find(|form| form.family() == family)
    }

    /// The kernels that serve it.
    pub fn family(self) -> Family {
        self.op.family(self.layout)
    }

    /// Whether operands have scales.
    fn has_scales(self) -> bool {
        self.op == Op::Fp8Kgrouped
    }

    /// What the K of each group is rounded up to in memory.
    pub fn unit(self) -> usize {
        match self.family() {
            Family::Half(operands) => operands.k_unit() as usize,
            _ if self.layout == GemmLayout::Tn => 1,
            _ => PITCH_UNIT as usize,
        }
    }

    /// The function of one product.
    fn product(self) -> Op {
        if self.has_scales() { Op::Fp81d1d } else { self.op.dense() }
    }
}

impl std::fmt::Display for KGroupedForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.op, self.layout)
    }
}

/// A problem with groups along K, and its layout.
#[derive(Clone, Debug)]
pub struct KGroupedSpec {
    pub form: KGroupedForm,
    /// The K of each group.
    pub ks: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub d_type: DType,
    pub addend: AddendKind,
    /// How the scales of A and of B lie in memory, where there are some.
    pub scales: [ScaleOrder; 2],
    /// Rows behind each group of D and C, and elements behind each row.
    pub d_gaps: [usize; 2],
    pub seed: u64,
}

impl KGroupedSpec {
    /// A problem without gaps.
    pub fn new(form: KGroupedForm, ks: Vec<usize>, m: usize, n: usize) -> KGroupedSpec {
        KGroupedSpec {
            form,
            ks,
            m,
            n,
            d_type: form.op.d_types()[0],
            addend: AddendKind::None,
            scales: [ScaleOrder::Row; 2],
            d_gaps: [0, 0],
            seed: 0,
        }
    }

    /// The kernels that serve it.
    pub fn family(&self) -> Family {
        self.form.family()
    }

    /// The K of a group with what lies behind it.
    fn room(&self, k: usize) -> usize {
        k.next_multiple_of(self.form.unit())
    }

    /// The K of all groups together.
    fn extent(&self) -> usize {
        self.ks.iter().map(|k| self.room(*k)).sum()
    }

    /// What planning is told.
    pub fn shape(&self) -> KGroupedShape {
        let [groups, m, n, k] = [self.ks.len(), self.m, self.n, self.extent()].map(|x| x as u32);
        // Those that are transposed first are then rounded up.
        let transposed = self.form.has_scales() && self.form.layout == GemmLayout::Tn;
        let k = if transposed { result_extent(k.into(), groups) as u32 } else { k };
        KGroupedShape { groups, m, n, k }
    }

    /// Blocks of scales of all groups.
    fn blocks(&self) -> usize {
        self.ks.iter().map(|k| k.div_ceil(128)).sum()
    }

    /// Whether there is nothing to multiply, and so nothing to plan.
    pub fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.blocks() == 0
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.ks.iter().sum::<usize>() as f64
    }

    /// Bytes that cross the memory bus at least once: A, B, their scales, D, and C where there is one.
    pub fn bytes(&self) -> f64 {
        let [m, n, groups] = [self.m, self.n, self.ks.len()].map(|x| x as f64);
        let (depth, blocks) = (self.ks.iter().sum::<usize>() as f64, self.blocks() as f64);
        let outputs = if self.addend == AddendKind::None { 1.0 } else { 2.0 };
        let scales = if self.form.has_scales() { 4.0 * blocks } else { 0.0 };
        let element = self.form.op.ab_type().size() as f64;
        (m + n) * (element * depth + scales) + outputs * groups * m * n * self.d_type.size() as f64
    }
}

impl std::fmt::Display for KGroupedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let KGroupedSpec { form, ks, m, n, d_type, addend, scales: [sfa, sfb], d_gaps, seed } = self;
        write!(f, "{form}, {} groups along K, ", ks.len())?;
        match ks.len() {
            0..=8 => write!(f, "{ks:?}")?,
            _ => write!(f, "{} in all", ks.iter().sum::<usize>())?,
        }
        write!(f, ", {m}x{n} {d_type}, c {addend:?}, ")?;
        if form.has_scales() {
            write!(f, "scales {sfa:?}/{sfb:?}, ")?;
        }
        write!(f, "gaps {d_gaps:?}, seed {seed}")
    }
}

/// The data of a problem on the host: that of a product for each group.
pub struct KGroupedHost {
    pub spec: KGroupedSpec,
    pub groups: Vec<Host>,
}

impl KGroupedHost {
    /// Draws the data.
    pub fn draw(spec: KGroupedSpec) -> Result<KGroupedHost, Failure> {
        let KGroupedSpec { form, m, n, d_type, addend, seed, .. } = spec;
        let of_group = |(group, k): (usize, &usize)| {
            let seed = seed.wrapping_mul(1000).wrapping_add(group as u64);
            let product = Spec::of(form.product(), GemmLayout::Nt, [m, n, *k]);
            Host::draw(Spec { d_type, addend, seed, ..product })
        };
        let groups = spec.ks.iter().enumerate().map(of_group).collect::<Result<_, _>>()?;
        Ok(KGroupedHost { spec, groups })
    }

    /// Puts the data on a device, with poison wherever the layout has gaps.
    pub fn upload(&self, device: &Device) -> Result<KGroupedOperands, Failure> {
        let spec = &self.spec;
        let (a, b, scales) = match spec.form.has_scales() {
            true => {
                let ([a, b], scales) = self.quantized(device)?;
                (a, b, Some(scales))
            }
            false => {
                let dtype = spec.form.op.ab_type();
                let of = |values: fn(&Host) -> &[f32], rows| {
                    let groups: Vec<_> = self.groups.iter().map(|host| dtype.encode(values(host))).collect();
                    self.ranges(&groups, rows, device)
                };
                (of(|host| &host.a_values, spec.m)?, of(|host| &host.b_values, spec.n)?, None)
            }
        };
        let ks: Vec<i32> = spec.ks.iter().map(|k| *k as i32).collect();
        let (d, d_memory) = self.output(device, spec.addend == AddendKind::Inplace)?;
        Ok(KGroupedOperands {
            form: spec.form,
            a,
            b,
            scales,
            c: (spec.addend == AddendKind::Other)
                .then(|| self.output(device, true))
                .transpose()?
                .map(|c| c.0),
            d,
            d_memory,
            ks: Tensor::from_slice(&ks, &[ks.len()], device)?,
            addend: spec.addend,
        })
    }

    /// An operand as one matrix that groups have ranges of; the elements of each group are `[rows, K]`.
    fn ranges(&self, groups: &[Vec<u8>], rows: usize, device: &Device) -> Result<Tensor, Failure> {
        let (spec, dtype) = (&self.spec, self.spec.form.op.ab_type());
        let (extent, size) = (spec.extent(), dtype.size());
        let k_first = spec.form.layout == GemmLayout::Tn;
        let [lines, length] = if k_first { [extent, rows] } else { [rows, extent] };
        // Something behind every row, and it begins at 16 bytes.
        let pitch = (length + 1).next_multiple_of(16 / size);
        let mut memory = vec![POISON; lines * pitch * size];
        let mut start = 0;
        for (elements, &k) in groups.iter().zip(&spec.ks) {
            for (i, element) in elements.chunks(size).enumerate() {
                let (row, depth) = (i / k, start + i % k);
                let at = if k_first { depth * pitch + row } else { row * pitch + depth };
                memory[at * size..][..size].copy_from_slice(element);
            }
            start += spec.room(k);
        }
        Ok(Tensor::from_bytes(dtype, &memory, &[lines, pitch], device)?.narrow(1, 0, length)?)
    }

    /// FP8 operands, and their scales side by side.
    fn quantized(&self, device: &Device) -> Result<([Tensor; 2], [Tensor; 2]), Failure> {
        let spec = &self.spec;
        let (blocks, k_first) = (spec.blocks(), spec.form.layout == GemmLayout::Tn);
        let pairs = self.groups.iter().map(Host::quantized).collect::<Result<Vec<_>, _>>()?;
        let operand = |of: fn(&Fp8Pair) -> &Quantized, rows: usize, order: ScaleOrder| {
            let groups: Vec<&Quantized> = pairs.iter().map(|pair| of(pair)).collect();
            let codes: Vec<Vec<u8>> = groups.iter().map(|x| x.codes.clone()).collect();
            let codes =
                if k_first { self.ranges(&codes, rows, device)? } else { self.slabs(&codes, device)? };
            let mut scales = vec![0.0; rows * blocks];
            let mut first = 0;
            for (x, k) in groups.iter().zip(&spec.ks) {
                let of_group = k.div_ceil(128).max(1);
                for (i, scale) in x.scales.iter().enumerate() {
                    scales[i / of_group * blocks + first + i % of_group] = *scale;
                }
                first += k.div_ceil(128);
            }
            let scales = scale_matrix(&scales, [rows, blocks], order, device)?;
            Ok::<_, Failure>((codes, if k_first { scales.transpose(0, 1)? } else { scales }))
        };
        let (a, sfa) = operand(|pair| &pair.a, spec.m, spec.scales[0])?;
        let (b, sfb) = operand(|pair| &pair.b, spec.n, spec.scales[1])?;
        Ok(([a, b], [sfa, sfb]))
    }

    /// FP8 operands of all groups, one matrix `[rows, K]` after the other.
    fn slabs(&self, groups: &[Vec<u8>], device: &Device) -> Result<Tensor, Failure> {
        let mut all = Vec::new();
        for (codes, &k) in groups.iter().zip(&self.spec.ks) {
            for row in codes.chunks(k.max(1)) {
                all.extend_from_slice(row);
                all.resize(all.len() + self.spec.room(k) - k, POISON);
            }
        }
        Ok(Tensor::from_bytes(DType::E4m3, &all, &[all.len()], device)?)
    }

    /// A tensor like D inside poisoned memory, holding what is added or poison.
    fn output(&self, device: &Device, holds_addend: bool) -> Result<(Tensor, Tensor), Failure> {
        let KGroupedSpec { ref ks, m, n, d_type, d_gaps: [rows, columns], .. } = self.spec;
        let dims = [ks.len(), m + rows, n + columns];
        let bytes = vec![POISON; dims.iter().product::<usize>() * d_type.size()];
        let memory = Tensor::from_bytes(d_type, &bytes, &dims, device)?;
        let d = memory.narrow(1, 0, m)?.narrow(2, 0, n)?;
        if holds_addend {
            self.write_addend(&d)?;
        }
        Ok((d, memory))
    }

    fn write_addend(&self, d: &Tensor) -> Result<(), Failure> {
        for (group, host) in self.groups.iter().enumerate() {
            if let Some(c) = host.c.as_ref().filter(|c| !c.is_empty()) {
                d.select(group)?.write_f32(c)?;
            }
        }
        Ok(())
    }

    /// Compares every group with the references; the worst of what is found.
    pub fn judge(&self, operands: &KGroupedOperands, effort: Effort) -> Result<Verdict, Failure> {
        let multiplications = effort.multiplications / self.groups.len().max(1) as f64;
        let effort = Effort { multiplications, ..effort };
        let none = Verdict { diff: 0.0, diff_unquantized: 0.0, worst_element: 0.0, rows: 0, right: true };
        let judge = |(group, host): (usize, &Host)| -> Result<Verdict, Failure> {
            verdict::judge(host, &operands.d.select(group)?.to_vec_f32()?, effort)
        };
        let verdicts = self.groups.iter().enumerate().filter(|(_, host)| host.spec.m * host.spec.n > 0);
        let verdicts = verdicts.map(judge).collect::<Result<Vec<_>, _>>()?;
        Ok(verdicts.iter().fold(none, |worst, next| worst.worse(next)))
    }
}

/// The operands of a problem on a device.
pub struct KGroupedOperands {
    form: KGroupedForm,
    pub a: Tensor,
    pub b: Tensor,
    /// Those of A and of B, where operands have scales.
    pub scales: Option<[Tensor; 2]>,
    pub c: Option<Tensor>,
    pub d: Tensor,
    /// All of the memory that D is a part of.
    pub d_memory: Tensor,
    /// The K of each group.
    pub ks: Tensor,
    addend: AddendKind,
}

impl KGroupedOperands {
    /// Runs the product.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let addend = match (&self.c, self.addend) {
            (Some(c), _) => Addend::From(c),
            (None, AddendKind::Inplace) => Addend::InPlace,
            (None, _) => Addend::None,
        };
        let (a, b, ks, d) = (&self.a, &self.b, &self.ks, &mut self.d);
        match &self.scales {
            Some([sfa, sfb]) => {
                let function = match self.form.layout {
                    GemmLayout::Tn => k_grouped_fp8_gemm_tn_contiguous,
                    _ => k_grouped_fp8_gemm_nt_contiguous,
                };
                function((a, sfa), (b, sfb), addend, d, ks, None, options)
            }
            None => k_grouped_half_gemm(self.form.layout, a, b, addend, d, ks, None, options),
        }
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self, host: &KGroupedHost) -> Result<(), Failure> {
        if self.addend == AddendKind::Inplace { host.write_addend(&self.d) } else { Ok(()) }
    }

    /// Whether the memory between the groups and the rows of D still holds poison.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        let (bytes, size) = (self.d_memory.to_bytes()?, self.d.dtype().size());
        let (&[_, rows, columns], &[_, m, n]) = (self.d_memory.dims(), self.d.dims()) else {
            return Err("D has three dimensions".into());
        };
        let line = |(i, line): (usize, &[u8])| {
            let outside = if i % rows.max(1) < m { &line[n * size..] } else { line };
            outside.iter().all(|byte| *byte == POISON)
        };
        Ok(bytes.chunks((columns * size).max(1)).enumerate().all(line))
    }

    /// Overwrites D, and everything around it, with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        let bytes = vec![POISON; self.d_memory.len() * self.d_memory.dtype().size()];
        Ok(self.d_memory.write_bytes(&bytes)?)
    }

    /// Has the device told of other groups, of which the data is `host`'s: as much of it, in the same memory.
    pub fn change_groups(&mut self, host: &KGroupedHost) -> Result<(), Failure> {
        let fresh = host.upload(self.a.device())?;
        for (to, from) in [(&mut self.a, &fresh.a), (&mut self.b, &fresh.b), (&mut self.ks, &fresh.ks)] {
            to.copy_from(from)?;
        }
        for (to, from) in self.scales.iter_mut().flatten().zip(fresh.scales.iter().flatten()) {
            to.copy_from(from)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_computed_and_nothing_beside_it() {
        for (form, (addend, order)) in KGroupedForm::ALL.into_iter().flat_map(|form| {
            [
                (AddendKind::None, ScaleOrder::Row),
                (AddendKind::Inplace, ScaleOrder::Mn),
                (AddendKind::Other, ScaleOrder::Odd),
            ]
            .map(|layout| (form, layout))
        }) {
            let spec = KGroupedSpec::new(form, vec![100, 0, 1, 256], 5, 9);
            let spec = KGroupedSpec { addend, scales: [order; 2], d_gaps: [2, 3], ..spec };
            let host = KGroupedHost::draw(spec).unwrap();
            let mut operands = host.upload(&Device::cpu()).unwrap();
            operands.run(&GemmOptions::default()).unwrap();
            let verdict = host.judge(&operands, Effort::THOROUGH).unwrap();
            assert!(verdict.right, "{}: {verdict:?}", host.spec);
            assert!(operands.surroundings_untouched().unwrap());
            let mut one = operands.d_memory.narrow(1, 5, 1).unwrap();
            one.write_f32(&[1.0; 4 * 12]).unwrap();
            assert!(!operands.surroundings_untouched().unwrap());
        }
    }
}

//! Problems whose rows are grouped, with data: drawn from a seed, on the host and on a device.

use std::sync::Arc;

use oxigemm::cast::{Quantized, ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::plan::{Family, GroupedShape};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, fp8_bgemm_nt, half_bgemm,
    m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_masked, m_grouped_half_gemm, random,
};
use oxigemm_kernels::grouping::GroupLayout;

use crate::kgrouped::{KGroupedForm, KGroupedSpec};
use crate::problem::{AddendKind, Fp8Pair, Host, POISON, ScaleOrder, Spec, transposed, values};
use crate::verdict::{self, Effort, Verdict};
use crate::{Failure, Op};

/// How the device is told where groups are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum RowLayout {
    /// The group of each row.
    #[default]
    Ids,
    /// The end of each group.
    Ends,
}

/// The groups of a problem, of the functions that have some.
#[derive(Clone, Debug, clap::Args)]
pub struct GroupOptions {
    /// How many groups there are.
    #[arg(long, default_value_t = 4)]
    pub groups: usize,
    /// The rows of each group; without them, drawn from 0.7 to 1.3 times m.
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "groups")]
    pub rows: Option<Vec<usize>>,
    /// The K of each group, where groups are along K; without them, drawn from 0.7 to 1.3 times k, in blocks of 128.
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with_all = ["groups", "rows"])]
    pub ks: Option<Vec<usize>>,
    /// Rows that a group has room for, where rows are masked; without it, the most that a group has.
    #[arg(long)]
    pub max_m: Option<usize>,
    /// What the first row of a group is a multiple of, where groups are one behind another.
    #[arg(long, default_value_t = 128)]
    pub alignment: usize,
}

impl GroupOptions {
    /// The problem of these options where groups are along K.
    pub fn k_spec(&self, form: KGroupedForm, [m, n, k]: [usize; 3], seed: u64) -> KGroupedSpec {
        let drawn = || spread(self.groups, k, seed).into_iter().map(|k| k.next_multiple_of(128)).collect();
        KGroupedSpec { seed, ..KGroupedSpec::new(form, self.ks.clone().unwrap_or_else(drawn), m, n) }
    }

    /// The problem of these options, for groups that are expected to have `m` rows.
    pub fn spec(&self, layout: GroupLayout, [m, n, k]: [usize; 3], seed: u64) -> GroupedSpec {
        if layout == GroupLayout::All {
            let rows = vec![m; self.rows.as_ref().map_or(self.groups, Vec::len)];
            return GroupedSpec { seed, ..GroupedSpec::new(layout, rows, n, k) };
        }
        let rows = self.rows.clone().unwrap_or_else(|| spread(self.groups, m, seed));
        let most = rows.iter().copied().max().unwrap_or(0);
        GroupedSpec {
            layout,
            room: self.max_m.unwrap_or(most),
            alignment: if layout.has_slabs() { 1 } else { self.alignment },
            expected: m,
            seed,
            ..GroupedSpec::new(layout, rows, n, k)
        }
    }
}

/// Rows of each group, evenly from 0.7 to 1.3 times `m`.
fn spread(groups: usize, m: usize, seed: u64) -> Vec<usize> {
    let part = |i: usize| random::bits(seed ^ 0x6d, i as u64) as f64 / 2f64.powi(64);
    (0..groups).map(|i| (m as f64 * (0.7 + 0.6 * part(i))) as usize).collect()
}

/// A problem whose rows are grouped, and its layout.
#[derive(Clone, Debug)]
pub struct GroupedSpec {
    /// The function of one product with the same operands.
    pub op: Op,
    /// How A and B lie in memory: nt, or nn where they are not of FP8.
    pub operands: GemmLayout,
    /// What is added; nothing to products of FP8.
    pub addend: AddendKind,
    pub layout: GroupLayout,
    /// The rows of each group.
    pub rows: Vec<usize>,
    /// Rows that a group has room for, where rows are masked; of a batch those that each product has.
    pub room: usize,
    /// Whether the rows of a batch's A, C and D lie side by side, and not the products one behind another.
    pub beside: bool,
    /// Rows of no group behind the last, where groups are one behind another.
    pub behind: usize,
    pub alignment: usize,
    /// Rows that a group is expected to have.
    pub expected: usize,
    pub n: usize,
    pub k: usize,
    pub d_type: DType,
    pub sfa: ScaleOrder,
    /// Elements behind each row of D.
    pub d_padding: usize,
    /// How many groups have a B of their own; the others have that of an earlier one. Drawing is slow.
    pub different: usize,
    /// Whether everything that nothing may be read from or written to is poisoned; else it is zero.
    pub poison: bool,
    pub seed: u64,
}

impl GroupedSpec {
    /// A problem without gaps.
    pub fn new(layout: GroupLayout, rows: Vec<usize>, n: usize, k: usize) -> GroupedSpec {
        let most = rows.iter().copied().max().unwrap_or(0);
        GroupedSpec {
            op: Op::Fp8,
            operands: GemmLayout::Nt,
            addend: AddendKind::None,
            layout,
            room: most,
            beside: false,
            behind: 0,
            alignment: if layout.has_slabs() { 1 } else { 128 },
            expected: rows.iter().sum::<usize>() / rows.len().max(1),
            different: rows.len(),
            rows,
            n,
            k,
            d_type: DType::Bf16,
            sfa: ScaleOrder::Row,
            d_padding: 0,
            poison: true,
            seed: 0,
        }
    }

    /// The same with operands of another function, in some layout.
    pub fn of(self, op: Op, operands: GemmLayout) -> GroupedSpec {
        let wide = self.d_type == DType::F32;
        GroupedSpec { op, operands, d_type: op.d_types()[usize::from(wide)], ..self }
    }

    /// The kernels that serve it.
    pub fn family(&self) -> Family {
        self.op.family(self.operands)
    }

    pub fn is_masked(&self) -> bool {
        self.layout.has_slabs()
    }

    /// The first row of each group in its slab.
    fn firsts(&self) -> Vec<usize> {
        if self.is_masked() {
            return vec![0; self.rows.len()];
        }
        let mut next = 0usize;
        let place = |rows: &usize| {
            let first = next.next_multiple_of(self.alignment);
            if *rows > 0 {
                next = first + rows;
            }
            first
        };
        self.rows.iter().map(place).collect()
    }

    /// Slabs of A and D, and rows of each.
    pub fn slabs(&self) -> (usize, usize) {
        if self.is_masked() {
            return (self.rows.len(), self.room);
        }
        let ends = self.firsts().into_iter().zip(&self.rows).filter(|(_, rows)| **rows > 0);
        let end = ends.map(|(first, rows)| first + rows).max().unwrap_or(0);
        (1, end.next_multiple_of(self.alignment) + self.behind)
    }

    /// Of the rows of all slabs, whether each belongs to a group.
    pub fn belongs(&self) -> Vec<bool> {
        let (slabs, rows) = self.slabs();
        let mut belongs = vec![false; slabs * rows];
        for (group, first) in self.firsts().into_iter().enumerate() {
            let first = if self.is_masked() { group * rows } else { first };
            belongs[first..first + self.rows[group]].fill(true);
        }
        belongs
    }

    /// What the device is told.
    fn numbers(&self) -> Vec<i32> {
        let firsts = self.firsts();
        match self.layout {
            GroupLayout::Counts => self.rows.iter().map(|rows| *rows as i32).collect(),
            GroupLayout::All => Vec::new(),
            GroupLayout::Ends => {
                let mut reached = 0;
                let end = |(first, rows): (&usize, &usize)| {
                    reached = if *rows > 0 { first + rows } else { reached };
                    reached as i32
                };
                firsts.iter().zip(&self.rows).map(end).collect()
            }
            GroupLayout::Ids => {
                let mut ids = vec![-1; self.slabs().1];
                for (group, (first, rows)) in firsts.iter().zip(&self.rows).enumerate() {
                    ids[*first..first + rows].fill(group as i32);
                }
                ids
            }
        }
    }

    /// What planning is told.
    pub fn shape(&self) -> GroupedShape {
        let (slabs, rows) = self.slabs();
        let expected = if self.is_masked() { self.expected } else { rows / self.rows.len().max(1) };
        GroupedShape {
            groups: self.rows.len() as u32,
            slabs: slabs as u32,
            rows: rows as u32,
            expected: expected.clamp(1, rows.max(1)) as u32,
            n: self.n as u32,
            k: self.k as u32,
        }
    }

    /// Whether it is a batch of FP8 products, which have kernels of their own.
    pub fn is_fp8_batch(&self) -> bool {
        self.op == Op::Fp8 && self.layout == GroupLayout::All
    }

    /// Whether there is anything to multiply, or to plan.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.slabs().1 == 0 || self.n == 0
    }

    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        2.0 * self.rows.iter().sum::<usize>() as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes that cross the memory bus at least once: A, D and scales of rows that exist, and B of groups with some.
    pub fn bytes(&self) -> f64 {
        let [n, k] = [self.n, self.k].map(|x| x as f64);
        let (blocks, n_blocks) = match self.op {
            Op::Fp8 => ((k / 128.0).ceil(), (n / 128.0).ceil()),
            _ => (0.0, 0.0),
        };
        let rows = self.rows.iter().sum::<usize>() as f64;
        let groups = self.rows.iter().filter(|rows| **rows > 0).count() as f64;
        let outputs = if self.addend == AddendKind::None { 1.0 } else { 2.0 };
        let k_bytes = k * self.op.ab_type().size() as f64;
        rows * (k_bytes + 4.0 * blocks + outputs * n * self.d_type.size() as f64)
            + groups * (n * k_bytes + 4.0 * blocks * n_blocks)
    }
}

impl std::fmt::Display for GroupedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GroupedSpec { layout, rows, n, k, d_type, sfa, alignment, d_padding, seed, .. } = self;
        if self.op != Op::Fp8 {
            write!(f, "{} {}, c {:?}, ", self.op, self.operands, self.addend)?;
        }
        write!(f, "{} groups by {layout:?}, rows ", rows.len())?;
        match rows.len() {
            0..=8 => write!(f, "{rows:?}")?,
            _ => write!(f, "{}", rows.iter().sum::<usize>())?,
        }
        write!(f, " at {alignment}, n {n}, k {k}, {d_type}, scales {sfa:?}, gaps {d_padding}, seed {seed}")
    }
}

/// The data of a problem on the host: that of a product for each group.
pub struct GroupedHost {
    pub spec: GroupedSpec,
    pub groups: Vec<Host>,
}

impl GroupedHost {
    /// Draws the data.
    pub fn draw(spec: GroupedSpec) -> Result<GroupedHost, Failure> {
        let GroupedSpec { op, operands, addend, n, k, d_type, sfa, seed, .. } = spec;
        let mut groups: Vec<Host> = Vec::new();
        for (group, &m) in spec.rows.iter().enumerate() {
            let own = |salt: u64, len| values(op.rounding(), seed.wrapping_add(1 + group as u64), salt, len);
            let a_values = own(0, m * k);
            let earlier = (group >= spec.different.max(1)).then(|| &groups[group % spec.different.max(1)]);
            let b_values = match earlier {
                Some(earlier) => Arc::clone(&earlier.b_values),
                None => Arc::new(own(1, n * k)),
            };
            let fp8 = match (op, earlier) {
                (Op::Bf16 | Op::Fp16, _) => None,
                (_, earlier) => Some(Fp8Pair {
                    a: per_token_cast_to_fp8(&a_values, m, k, ScaleFormat::F32)?,
                    b: match earlier {
                        Some(earlier) => Arc::clone(&earlier.quantized()?.b),
                        None => Arc::new(per_block_cast_to_fp8(&b_values, n, k, ScaleFormat::F32)?),
                    },
                }),
            };
            let c = (addend != AddendKind::None).then(|| own(2, m * n).iter().map(|x| x * 8.0).collect());
            let of_group = Spec { d_type, sfa, addend, seed, ..Spec::of(op, operands, [m, n, k]) };
            groups.push(Host { spec: of_group, a_values, b_values, fp8, c });
        }
        Ok(GroupedHost { spec, groups })
    }

    /// Puts the data on a device.
    pub fn upload(&self, device: &Device) -> Result<GroupedOperands, Failure> {
        let spec = &self.spec;
        let (n, k, groups) = (spec.n, spec.k, spec.rows.len());
        let ((slabs, rows), blocks) = (spec.slabs(), k.div_ceil(128));
        let ab_type = spec.op.ab_type();
        let matrices = |dims: [usize; 3]| -> Result<Tensor, Failure> {
            let pitch = dims[2].next_multiple_of(16 / ab_type.size());
            let all = self.filled(ab_type, POISON, &[dims[0], dims[1], pitch], device)?;
            Ok(all.narrow(2, 0, dims[2])?)
        };
        // Dimensions as they lie in memory, and back.
        let lie = |[slabs, rows, columns]: [usize; 3]| match spec.beside {
            true => [rows, slabs, columns],
            false => [slabs, rows, columns],
        };
        let stand = |x: Tensor| if spec.beside { x.transpose(0, 1) } else { Ok(x) };
        let k_first = spec.operands.b_begins_with_k();
        let b_dims = if k_first { [groups, k, n] } else { [groups, n, k] };
        let scales = match spec.op {
            Op::Fp8 => Some([
                self.scales([slabs, rows, blocks], spec.sfa, device)?,
                self.scales([groups, n.div_ceil(128), blocks], ScaleOrder::Row, device)?,
            ]),
            _ => None,
        };
        let d_dims = lie([slabs, rows, n + spec.d_padding]);
        let d_memory = self.filled(spec.d_type, POISON, &d_dims, device)?;
        let c = match spec.addend {
            AddendKind::Other => {
                Some(stand(self.filled(spec.d_type, POISON, &d_dims, device)?.narrow(2, 0, n)?)?)
            }
            _ => None,
        };
        let numbers = spec.numbers();
        let mut operands = GroupedOperands {
            spec: spec.clone(),
            a: stand(matrices(lie([slabs, rows, k]))?)?,
            b: matrices(b_dims)?,
            scales,
            c,
            d: stand(d_memory.narrow(2, 0, n)?)?,
            d_memory,
            numbers: Tensor::from_slice(&numbers, &[numbers.len()], device)?,
        };
        for (group, host) in self.groups.iter().enumerate() {
            let (mut of_a, mut of_b) = (operands.rows_of(&operands.a, group)?, operands.b.select(group)?);
            match (&host.fp8, &operands.scales) {
                (Some(Fp8Pair { a, b }), Some([sfa, sfb])) => {
                    write(&mut of_a, &a.codes)?;
                    write(&mut operands.rows_of(sfa, group)?, &le_bytes(a))?;
                    write(&mut of_b, &b.codes)?;
                    write(&mut sfb.select(group)?, &le_bytes(b))?;
                }
                _ => {
                    write(&mut of_a, &ab_type.encode(&host.a_values))?;
                    let b = match k_first {
                        true => ab_type.encode(&transposed(&host.b_values, [n, k])),
                        false => ab_type.encode(&host.b_values),
                    };
                    write(&mut of_b, &b)?;
                }
            }
            if let Some(c) = &host.c {
                let mut to = operands.rows_of(operands.c.as_ref().unwrap_or(&operands.d), group)?;
                write(&mut to, &spec.d_type.encode(c))?;
            }
        }
        if !spec.is_masked() {
            let sfa = operands.scales.as_mut().map(|[sfa, _]| sfa);
            let all = [Some(&mut operands.a), sfa, operands.c.as_mut(), Some(&mut operands.d)];
            for tensor in all.into_iter().flatten() {
                *tensor = tensor.select(0)?;
            }
        }
        Ok(operands)
    }

    /// Memory of poison or of zeros.
    pub fn filled(
        &self,
        dtype: DType,
        poison: u8,
        dims: &[usize],
        device: &Device,
    ) -> Result<Tensor, Failure> {
        let bytes = dims.iter().product::<usize>() * dtype.size();
        Ok(match self.spec.poison {
            true => Tensor::from_bytes(dtype, &vec![poison; bytes], dims, device)?,
            false => Tensor::zeros(dtype, dims, device)?,
        })
    }

    /// Memory for matrices of scales.
    pub fn scales(
        &self,
        [slabs, rows, blocks]: [usize; 3],
        order: ScaleOrder,
        device: &Device,
    ) -> Result<Tensor, Failure> {
        let transposed = matches!(order, ScaleOrder::Mn | ScaleOrder::Odd);
        let (lines, line) = if transposed { (blocks, rows) } else { (rows, blocks) };
        let pitch = match order {
            ScaleOrder::Row => line,
            ScaleOrder::RowPadded | ScaleOrder::Mn => line.next_multiple_of(4),
            ScaleOrder::Odd => line | 1,
        };
        let matrices = self.filled(DType::F32, POISON, &[slabs, lines, pitch], device)?.narrow(2, 0, line)?;
        Ok(if transposed { matrices.transpose(1, 2)? } else { matrices })
    }

    /// Compares the rows of every group with the references; the worst of what is found.
    pub fn judge(&self, operands: &GroupedOperands, effort: Effort) -> Result<Verdict, Failure> {
        let with_rows = self.groups.iter().filter(|host| host.spec.m > 0).count().max(1);
        let effort = Effort { multiplications: effort.multiplications / with_rows as f64, ..effort };
        let none = Verdict { diff: 0.0, diff_unquantized: 0.0, worst_element: 0.0, rows: 0, right: true };
        let judge = |(group, host): (usize, &Host)| -> Result<Verdict, Failure> {
            verdict::judge(host, &operands.result(group)?, effort)
        };
        let verdicts = self.groups.iter().enumerate().filter(|(_, host)| host.spec.m > 0).map(judge);
        verdicts
            .collect::<Result<Vec<_>, _>>()
            .map(|all| all.iter().fold(none, |worst, next| worst.worse(next)))
    }
}

fn le_bytes(x: &Quantized) -> Vec<u8> {
    x.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
}

/// Nothing is written to a part that has no elements.
fn write(part: &mut Tensor, bytes: &[u8]) -> Result<(), Failure> {
    if !bytes.is_empty() {
        part.write_bytes(bytes)?;
    }
    Ok(())
}

/// The operands of a problem on a device.
pub struct GroupedOperands {
    spec: GroupedSpec,
    pub a: Tensor,
    pub b: Tensor,
    /// Those of A and B, where they have some.
    pub scales: Option<[Tensor; 2]>,
    pub c: Option<Tensor>,
    pub d: Tensor,
    /// All of the memory that D is a part of.
    pub d_memory: Tensor,
    /// Where the groups are.
    pub numbers: Tensor,
}

impl GroupedOperands {
    /// Runs the product.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let GroupedSpec { operands, .. } = self.spec;
        let addend = match (&self.c, self.spec.addend) {
            (Some(c), _) => Addend::From(c),
            (None, AddendKind::Inplace) => Addend::InPlace,
            (None, _) => Addend::None,
        };
        let (a, b, mut d) = (&self.a, &self.b, self.d.clone());
        let Some(groups) = self.row_groups() else {
            return match &self.scales {
                Some([sfa, sfb]) => fp8_bgemm_nt((a, sfa), (b, sfb), &mut d, options),
                None => half_bgemm(operands, a, b, addend, &mut d, options),
            };
        };
        let Some([sfa, sfb]) = &self.scales else {
            return m_grouped_half_gemm(operands, a, b, addend, &mut d, groups, options);
        };
        let (a, b) = ((a, sfa), (b, sfb));
        match groups {
            RowGroups::Masked { masked_m, expected_m } => {
                m_grouped_fp8_gemm_nt_masked(a, b, &mut d, masked_m, expected_m, options)
            }
            RowGroups::Contiguous { rows, alignment, expected_m } => {
                m_grouped_fp8_gemm_nt_contiguous(a, b, &mut d, rows, alignment, expected_m, options)
            }
        }
    }

    /// Where the groups are; none of a batch.
    pub fn row_groups(&self) -> Option<RowGroups<'_>> {
        let GroupedSpec { alignment, expected, .. } = self.spec;
        let contiguous = |rows| RowGroups::Contiguous { rows, alignment, expected_m: None };
        match self.spec.layout {
            GroupLayout::All => None,
            GroupLayout::Counts => Some(RowGroups::Masked { masked_m: &self.numbers, expected_m: expected }),
            GroupLayout::Ids => Some(contiguous(GroupedRows::Ids(&self.numbers))),
            GroupLayout::Ends => Some(contiguous(GroupedRows::Ends(&self.numbers))),
        }
    }

    /// The rows of a group, of a tensor that has slabs.
    pub fn rows_of(&self, tensor: &Tensor, group: usize) -> oxigemm::Result<Tensor> {
        let slab = if self.spec.is_masked() { group } else { 0 };
        let slab = if tensor.dims().len() == 3 { tensor.select(slab)? } else { tensor.clone() };
        slab.narrow(0, self.spec.firsts()[group], self.spec.rows[group])
    }

    /// The elements of a group's rows of D.
    pub fn result(&self, group: usize) -> Result<Vec<f32>, Failure> {
        Ok(self.rows_of(&self.d, group)?.to_vec_f32()?)
    }

    /// Whether the memory of D that belongs to no group, and that between its rows, still holds poison. Without
    /// poison nothing is known of it.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        if !self.spec.poison || self.d_memory.is_empty() {
            return Ok(true);
        }
        let (bytes, size) = (self.d_memory.to_bytes()?, self.spec.d_type.size());
        let pitch = (self.spec.n + self.spec.d_padding) * size;
        let belongs = self.spec.belongs();
        let line = |(line, belongs): (&[u8], &bool)| {
            let outside = if *belongs { &line[self.spec.n * size..] } else { line };
            outside.iter().all(|byte| *byte == POISON)
        };
        Ok(bytes.chunks(pitch.max(1)).zip(&belongs).all(line))
    }

    /// Overwrites D, and everything around it, with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        let bytes = vec![POISON; self.d_memory.len() * self.d_memory.dtype().size()];
        Ok(self.d_memory.write_bytes(&bytes)?)
    }

    /// Has the device told of other groups, of which the data is `host`'s: of the same number, in the same memory.
    pub fn change_groups(&mut self, host: &GroupedHost) -> Result<(), Failure> {
        let fresh = host.upload(self.a.device())?;
        let scales = self.scales.iter_mut().flatten().zip(fresh.scales.iter().flatten());
        let others = [(&mut self.a, &fresh.a), (&mut self.b, &fresh.b), (&mut self.numbers, &fresh.numbers)];
        for (to, from) in scales.chain(others) {
            to.copy_from(from)?;
        }
        self.spec = host.spec.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs() -> Vec<GroupedSpec> {
        let rows = vec![5, 0, 33, 1];
        let fp8 = [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends].map(|layout| {
            let spec = GroupedSpec::new(layout, rows.clone(), 72, 200);
            let alignment = if spec.is_masked() { 1 } else { 16 };
            GroupedSpec { alignment, behind: 3, room: 40, d_padding: 3, ..spec }
        });
        let half = fp8
            .clone()
            .map(|spec| GroupedSpec { addend: AddendKind::Other, ..spec.of(Op::Fp16, GemmLayout::Nn) });
        fp8.into_iter().chain(half).collect()
    }

    #[test]
    fn the_reference_is_right_and_writes_nothing_else() {
        for spec in specs() {
            let host = GroupedHost::draw(spec).unwrap();
            let mut operands = host.upload(&Device::cpu()).unwrap();
            operands.run(&GemmOptions::default()).unwrap();
            let verdict = host.judge(&operands, Effort::THOROUGH).unwrap();
            assert!(verdict.right && verdict.rows == 39, "{}: {verdict:?}", host.spec);
            assert!(operands.surroundings_untouched().unwrap(), "{}", host.spec);
        }
    }

    #[test]
    fn the_b_of_another_group_is_wrong() {
        for spec in specs() {
            let host = GroupedHost::draw(spec).unwrap();
            let mut operands = host.upload(&Device::cpu()).unwrap();
            let second = operands.b.select(3).unwrap();
            operands.b.select(2).unwrap().copy_from(&second).unwrap();
            operands.run(&GemmOptions::default()).unwrap();
            assert!(!host.judge(&operands, Effort::QUICK).unwrap().right, "{}", host.spec);
        }
    }

    #[test]
    fn a_write_to_a_row_of_no_group_is_seen() {
        for spec in specs() {
            let host = GroupedHost::draw(spec).unwrap();
            let mut operands = host.upload(&Device::cpu()).unwrap();
            let (slabs, rows) = host.spec.slabs();
            let mut last = operands.d_memory.select(slabs - 1).unwrap().select(rows - 1).unwrap();
            let one = last.narrow(0, 0, 1).unwrap().write_f32(&[1.0]);
            one.unwrap();
            assert!(!operands.surroundings_untouched().unwrap(), "{}", host.spec);
            operands.poison().unwrap();
            assert!(operands.surroundings_untouched().unwrap(), "{}", host.spec);
            last = operands.d_memory.select(0).unwrap().select(0).unwrap();
            last.narrow(0, 72, 1).unwrap().write_f32(&[1.0]).unwrap();
            assert!(!operands.surroundings_untouched().unwrap(), "{}", host.spec);
        }
    }

    #[test]
    fn rows_are_spread_around_what_is_expected() {
        let rows = spread(1000, 200, 1);
        assert!(rows.iter().all(|rows| (140..=260).contains(rows)));
        let mean = rows.iter().sum::<usize>() as f64 / 1000.0;
        assert!((195.0..205.0).contains(&mean), "{mean}");
    }
}

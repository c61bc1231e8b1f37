//! A case with its operands on a device: run, judged, and inspected for writes outside of D.

use std::ops::Range;
use std::sync::Arc;

use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, fp8_bgemm_nt,
    fp8_fp4_gemm, fp8_fp4_gemm_nt_fused, fp8_gemm, fp8_gemm_nt_fused, half_bgemm, half_bgemm_nt_summed,
    half_gemm, half_gemm_nt_fused, k_grouped_fp4_gemm_nt_contiguous, k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_fp8_gemm_tn_contiguous, k_grouped_half_gemm, m_grouped_fp8_fp4_gemm_nt_contiguous,
    m_grouped_fp8_fp4_gemm_nt_fused, m_grouped_fp8_fp4_gemm_nt_masked, m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_masked, m_grouped_half_gemm,
    m_grouped_half_gemm_nt_fused, m_grouped_nvfp4_gemm_nt, nvfp4_gemm_nt, tf32_gemm,
};

use oxigemm::cast::ScaleFormat;

use crate::Failure;
use crate::GroupLayout;
use crate::case::{AddendKind, GemmCase, Grouping};
use crate::data::{GemmData, TENSOR_SCALES};
use crate::judge::{Effort, Verdict, judge_gemm};
use crate::memory::{Fill, POISON, poison};
use crate::plan;
use crate::upload::{Output, output, write};

impl GemmCase {
    /// Draws the operands and puts them on a device. Scales are powers of two where its tensor core applies them: others
    /// would lose their mantissa.
    pub fn on(&self, device: &Device) -> Result<Gemm, Failure> {
        self.drawn_for(device)?.upload(device)
    }

    /// The operands that [`on`](Self::on) puts on a device.
    pub fn drawn_for(&self, device: &Device) -> Result<GemmData, Failure> {
        let mut case = self.clone();
        let kind = device.limits().map(|limits| plan::operand_kind_on(self, limits.arch));
        if kind.is_some_and(|kind| kind.is_block_scaled()) {
            case.types.scale_format = ScaleFormat::PowerOfTwo;
        }
        GemmData::draw(case)
    }
}

/// A case with its operands on a device. A clone shares their memory.
#[derive(Clone)]
pub struct Gemm {
    /// The same on the host.
    pub data: GemmData,
    /// A.
    pub a: Tensor,
    /// B.
    pub b: Tensor,
    /// The scales of A and B, where they have some.
    pub scales: Option<[Tensor; 2]>,
    /// Counts, ends or ids of m-grouped rows, or the K of every k-grouped range.
    pub numbers: Option<Tensor>,
    /// The bias of the epilogue.
    pub bias: Option<Tensor>,
    /// C, where it is not D.
    pub c: Option<Tensor>,
    /// D.
    pub d: Tensor,
    /// All of the memory that D is a part of.
    pub d_memory: Tensor,
    /// The scales of a quantized D.
    pub d_scales: Option<Tensor>,
    /// All of the memory that those are a part of.
    d_scales_memory: Option<Tensor>,
    /// The same GEMM without its epilogue.
    pub accumulators: Option<Box<Gemm>>,
    /// How it was run last.
    last: GemmOptions,
    /// What the GEMM without its epilogue gives for each group, where that was computed ahead.
    known: Option<Arc<Vec<Vec<f32>>>>,
}

type Extras = (Option<[Tensor; 2]>, Option<Tensor>, Option<Tensor>);

impl Gemm {
    pub(crate) fn new(
        data: GemmData,
        (a, b): (Tensor, Tensor),
        (scales, numbers, bias): Extras,
        output: Output,
        c: Option<Tensor>,
        accumulators: Option<Box<Gemm>>,
    ) -> Gemm {
        Gemm {
            data,
            a,
            b,
            scales,
            numbers,
            bias,
            c,
            d: output.d,
            d_memory: output.memory,
            d_scales: output.scales,
            d_scales_memory: output.scales_memory,
            accumulators,
            last: GemmOptions::default(),
            known: None,
        }
    }

    /// What is computed.
    pub fn case(&self) -> &GemmCase {
        &self.data.case
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.a.device()
    }

    /// The same operands with a D of its own, as before the first run.
    pub fn fresh(&self) -> Result<Gemm, Failure> {
        let Output { d, memory, scales, scales_memory } = output(self.case(), 0, self.device())?;
        let mut fresh =
            Gemm { d, d_memory: memory, d_scales: scales, d_scales_memory: scales_memory, ..self.clone() };
        if let Some(accumulators) = &mut fresh.accumulators {
            **accumulators = accumulators.fresh()?;
        }
        fresh.restore()?;
        Ok(fresh)
    }

    /// Runs it.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        if self.accumulators.is_some() {
            self.last.clone_from(options);
        }
        let case = &self.data.case;
        let told;
        let options = match plan::told_scale_blocks(case) {
            Some(scale_blocks) if options.scale_blocks == [None; 2] => {
                told = GemmOptions { scale_blocks, ..options.clone() };
                &told
            }
            _ => options,
        };
        let addend = match (&self.c, case.addend) {
            (Some(c), _) => Addend::From(c),
            (None, AddendKind::Inplace) => Addend::InPlace,
            (None, _) => Addend::None,
        };
        let (a, b, layout) = (&self.a, &self.b, case.layout);
        if let Some(spec) = &case.epilogue {
            let epilogue = spec.with(self.bias.as_ref());
            let fp4 = case.types.has_fp4();
            let d = spec.output(&mut self.d, self.d_scales.as_mut());
            let groups = case.m_groups().map(|_| row_groups(case, self.numbers.as_ref()));
            return match (&self.scales, groups.flatten()) {
                (Some([sfa, sfb]), None) => {
                    let function = if fp4 { fp8_fp4_gemm_nt_fused } else { fp8_gemm_nt_fused };
                    function((a, sfa), (b, sfb), addend, d, &epilogue, options)
                }
                (None, None) => half_gemm_nt_fused(a, b, addend, d, &epilogue, options),
                (Some([sfa, sfb]), Some(groups)) => {
                    let function =
                        if fp4 { m_grouped_fp8_fp4_gemm_nt_fused } else { m_grouped_fp8_gemm_nt_fused };
                    function((a, sfa), (b, sfb), addend, d, groups, &epilogue, options)
                }
                (None, Some(groups)) => {
                    m_grouped_half_gemm_nt_fused(a, b, addend, d, groups, &epilogue, options)
                }
            };
        }
        let d = &mut self.d;
        if let (true, Some([sfa, sfb])) = (case.types.is_nvfp4(), &self.scales) {
            let (a, b) = ((a, sfa), (b, sfb));
            return match row_groups(case, self.numbers.as_ref()) {
                Some(groups) => m_grouped_nvfp4_gemm_nt(a, b, d, groups, TENSOR_SCALES, options),
                None => nvfp4_gemm_nt(a, b, addend, d, TENSOR_SCALES, options),
            };
        }
        let fp4 = case.types.has_fp4();
        match (&case.grouping, &self.scales) {
            (Grouping::Dense, Some([sfa, sfb])) if fp4 => {
                fp8_fp4_gemm(layout, (a, sfa), (b, sfb), addend, d, options)
            }
            (Grouping::Dense, Some([sfa, sfb])) => fp8_gemm(layout, (a, sfa), (b, sfb), addend, d, options),
            (Grouping::Dense, None) if case.types.ab == DType::F32 => {
                tf32_gemm(layout, a, b, addend, d, options)
            }
            (Grouping::Dense, None) => half_gemm(layout, a, b, addend, d, options),
            (Grouping::Summed(_), _) => half_bgemm_nt_summed(a, b, addend, d, options),
            (Grouping::K(_), scales) => {
                let ks = self.numbers.as_ref().expect("ranges of K have numbers");
                match scales {
                    Some([sfa, sfb]) => {
                        let function = match layout {
                            _ if fp4 => k_grouped_fp4_gemm_nt_contiguous,
                            GemmLayout::Tn => k_grouped_fp8_gemm_tn_contiguous,
                            _ => k_grouped_fp8_gemm_nt_contiguous,
                        };
                        function((a, sfa), (b, sfb), addend, d, ks, None, options)
                    }
                    None => k_grouped_half_gemm(layout, a, b, addend, d, ks, None, options),
                }
            }
            (Grouping::M(_), scales) => match (row_groups(case, self.numbers.as_ref()), scales) {
                (None, Some([sfa, sfb])) => fp8_bgemm_nt((a, sfa), (b, sfb), d, options),
                (None, None) => half_bgemm(layout, a, b, addend, d, options),
                (Some(groups), None) => m_grouped_half_gemm(layout, a, b, addend, d, groups, options),
                (Some(RowGroups::Masked { masked_m, expected_m }), Some([sfa, sfb])) => {
                    let function =
                        if fp4 { m_grouped_fp8_fp4_gemm_nt_masked } else { m_grouped_fp8_gemm_nt_masked };
                    function((a, sfa), (b, sfb), d, masked_m, expected_m, options)
                }
                (Some(RowGroups::Contiguous { rows, alignment, expected_m }), Some([sfa, sfb])) => {
                    let (a, b) = ((a, sfa), (b, sfb));
                    let function = match fp4 {
                        true => m_grouped_fp8_fp4_gemm_nt_contiguous,
                        false => m_grouped_fp8_gemm_nt_contiguous,
                    };
                    function(a, b, d, rows, alignment, expected_m, options)
                }
            },
        }
    }

    /// Where groups of rows are; none for a batch.
    pub fn row_groups(&self) -> Option<RowGroups<'_>> {
        row_groups(self.case(), self.numbers.as_ref())
    }

    /// Moves A and B to other memory: where they lie decides about some percent of short times.
    pub fn relocate(&mut self) -> Result<(), Failure> {
        for operand in [&mut self.a, &mut self.b] {
            let mut other = Tensor::empty(operand.dtype(), operand.dims(), operand.device())?;
            other.copy_from(operand)?;
            *operand = other;
        }
        Ok(())
    }

    /// The same for some rows, of a dense GEMM whose A begins with M.
    pub fn rows(&self, first: usize, count: usize) -> oxigemm::Result<Gemm> {
        let part = |x: &Tensor| x.narrow(0, first, count);
        Ok(Gemm {
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

    /// The slab and the rows of every group.
    fn ranges(&self) -> Vec<(usize, Range<usize>)> {
        match &self.case().grouping {
            Grouping::Dense | Grouping::Summed(_) => vec![(0, 0..self.case().m)],
            Grouping::M(groups) => {
                let slab = |group| if groups.has_slabs() { group } else { 0 };
                groups.ranges().into_iter().enumerate().map(|(group, rows)| (slab(group), rows)).collect()
            }
            Grouping::K(ks) => (0..ks.len()).map(|group| (group, 0..self.case().m)).collect(),
        }
    }

    /// The rows of a group, of a tensor like D.
    pub fn rows_of(&self, tensor: &Tensor, group: usize) -> oxigemm::Result<Tensor> {
        let (slab, rows) = self.ranges()[group].clone();
        let slab = if tensor.dims().len() == 3 { tensor.select(slab)? } else { tensor.clone() };
        slab.narrow(0, rows.start, rows.len())
    }

    /// The columns that are computed of a group's rows of D.
    pub fn result(&self, group: usize) -> Result<Vec<f32>, Failure> {
        let columns = self.case().fused().columns(self.case().n);
        let (places, width) = self.case().fused().places(columns);
        let (all, rows) = (self.rows_of(&self.d, group)?, self.ranges()[group].1.len());
        if rows * columns == 0 {
            return Ok(Vec::new());
        }
        let all = all.to_vec_f32()?;
        Ok((0..rows * columns).map(|i| all[i / columns * width + places[i % columns]]).collect())
    }

    /// Computes ahead what the GEMM without its epilogue gives, where runs with the same options are judged more than
    /// once.
    pub fn accumulate(&mut self, options: &GemmOptions) -> Result<(), Failure> {
        self.known = self.accumulated(options)?;
        Ok(())
    }

    /// What the GEMM without its epilogue gives for each group: the very accumulators of a run with these options.
    fn accumulated(&mut self, options: &GemmOptions) -> Result<Option<Arc<Vec<Vec<f32>>>>, Failure> {
        let Some(accumulators) = self.accumulators.as_mut().filter(|_| self.known.is_none()) else {
            return Ok(self.known.clone());
        };
        accumulators.run(&plan::accumulator_options(&self.data.case, options, self.a.device()))?;
        let groups = 0..self.data.groups.len();
        let results = groups.map(|group| accumulators.result(group)).collect::<Result<_, _>>()?;
        Ok(Some(Arc::new(results)))
    }

    /// Compares the rows of every group with the references: the worst of what is found.
    ///
    /// What an epilogue gives is compared with its single steps, for the accumulators that the GEMM alone gives on the
    /// same device.
    pub fn judge(&mut self, effort: Effort) -> Result<Verdict, Failure> {
        if let Some(accumulators) = self.accumulated(&self.last.clone())? {
            return self.judge_fused(&accumulators, effort);
        }
        let gemms = self.data.groups.iter().filter(|group| group.dims[0] * group.dims[1] > 0).count();
        let effort = Effort { multiplications: effort.multiplications / gemms.max(1) as f64, ..effort };
        let mut worst = Verdict::NOTHING;
        for (group, data) in self.data.groups.iter().enumerate() {
            if data.dims[0] * data.dims[1] > 0 {
                worst = worst.worse(&judge_gemm(self.case(), data, &self.result(group)?, effort)?);
            }
        }
        Ok(worst)
    }

    /// Whether nothing was written to that is not part of the result. Nothing is known of memory without poison.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        if self.case().fill != Fill::Poison || self.d_memory.is_empty() {
            return Ok(true);
        }
        let columns = self.case().fused().columns(self.case().n);
        let (places, _) = self.case().fused().places(columns);
        let (size, strides) = (self.d.dtype().size(), self.d.strides());
        let [slab_stride, pitch] = match strides {
            [slab, row, _] => [*slab, *row],
            _ => [0, strides[0]],
        };
        let mut bytes = self.d_memory.to_bytes()?;
        let ranges: Vec<_> = self.ranges().into_iter().filter(|(_, rows)| !rows.is_empty()).collect();
        if !self.d.is_empty() {
            let first = (self.d.address() - self.d_memory.address()) as usize;
            for (slab, row) in
                ranges.iter().flat_map(|(slab, rows)| rows.clone().map(move |row| (*slab, row)))
            {
                let start = first + (slab * slab_stride + row * pitch) * size;
                for place in &places {
                    bytes[start + place * size..][..size].fill(POISON);
                }
            }
        }
        let mut scales = self.d_scales.as_ref().map_or(Ok(Vec::new()), Tensor::to_bytes)?;
        let ([slabs, rows], len) = (self.case().slabs(), scales.len());
        for (slab, range) in ranges {
            let pitch = len / (slabs * rows).max(1);
            scales[(slab * rows + range.start) * pitch..(slab * rows + range.end) * pitch].fill(POISON);
        }
        Ok(bytes.iter().chain(&scales).all(|byte| *byte == POISON))
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self) -> Result<(), Failure> {
        match self.case().addend {
            AddendKind::Inplace => self.write_addend(&self.d),
            _ => Ok(()),
        }
    }

    pub(crate) fn write_addend(&self, to: &Tensor) -> Result<(), Failure> {
        let epilogue = self.case().fused();
        let columns = epilogue.columns(self.case().n);
        for (group, data) in self.data.groups.iter().enumerate() {
            if let Some(c) = data.c.as_ref().filter(|c| !c.is_empty()) {
                let bytes = epilogue.laid_out(c, columns, to.dtype());
                write(self.rows_of(to, group)?, &bytes)?;
            }
        }
        Ok(())
    }

    /// Overwrites D, its scales and everything around it with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        poison(&mut self.d_memory)?;
        self.d_scales_memory.as_mut().map_or(Ok(()), poison)?;
        Ok(())
    }

    /// The bytes of the result and of its scales, each with the memory around it where that was initialized.
    pub fn bits(&self) -> Result<Vec<u8>, Failure> {
        let (d, scales) = match self.case().fill {
            Fill::Uninitialized => (&self.d, &self.d_scales),
            Fill::Poison | Fill::Zeros | Fill::Rows => (&self.d_memory, &self.d_scales_memory),
        };
        let mut bytes = d.to_bytes()?;
        if let Some(scales) = scales {
            bytes.extend(scales.to_bytes()?);
        }
        Ok(bytes)
    }

    /// Gives the device other operands in the same memory, and other groups of the same number. Nothing is added.
    pub fn replace(&mut self, data: &GemmData) -> Result<(), Failure> {
        let fresh = data.upload(self.a.device())?;
        let tensors = |gemm: &Gemm| {
            let scales = gemm.scales.iter().flatten().cloned();
            [gemm.a.clone(), gemm.b.clone()]
                .into_iter()
                .chain(scales)
                .chain(gemm.numbers.clone())
                .collect::<Vec<_>>()
        };
        for (mut to, from) in tensors(self).into_iter().zip(tensors(&fresh)) {
            to.copy_from(&from)?;
        }
        if let Some(accumulators) = &mut self.accumulators {
            accumulators.data = data.accumulators();
            self.known = None;
        }
        self.data = data.clone();
        Ok(())
    }

    /// The bits of a run into a D of its own, once they were found right and nothing else was written to.
    ///
    /// # Panics
    ///
    /// Where something is wrong.
    pub fn checked(&self, options: &GemmOptions, about: &str) -> Vec<u8> {
        let mut fresh = self.fresh().unwrap_or_else(|error| panic!("{about}: {error}"));
        fresh.run(options).unwrap_or_else(|error| panic!("{about}: {error}"));
        fresh.assert_right(about);
        fresh.bits().unwrap_or_else(|error| panic!("{about}: {error}"))
    }

    /// Holds what is in D against the references, strictly.
    ///
    /// # Panics
    ///
    /// Where it is wrong, or something else was written to.
    pub fn assert_right(&mut self, about: &str) {
        let verdict = self.judge(Effort::STRICT).unwrap_or_else(|error| panic!("{about}: {error}"));
        assert!(verdict.right, "{about}: {verdict:?}");
        let untouched = self.surroundings_untouched().unwrap_or_else(|error| panic!("{about}: {error}"));
        assert!(untouched, "{about}: memory that is no part of D was written to");
    }
}

/// Where groups of rows are; none for a batch.
fn row_groups<'a>(case: &GemmCase, numbers: Option<&'a Tensor>) -> Option<RowGroups<'a>> {
    let (groups, numbers) = (case.m_groups()?, numbers?);
    let contiguous = |rows| RowGroups::Contiguous { rows, alignment: groups.alignment, expected_m: None };
    match groups.layout {
        GroupLayout::All => None,
        GroupLayout::Counts => Some(RowGroups::Masked { masked_m: numbers, expected_m: case.m }),
        GroupLayout::Ids => Some(contiguous(GroupedRows::Ids(numbers))),
        GroupLayout::Ends => Some(contiguous(GroupedRows::Ends(numbers))),
    }
}

//! Products whose rows are grouped and whose sums are finished: data, and whether the result is what the single steps
//! give.

use oxigemm::plan::{Family, GroupedShape};
use oxigemm::{
    DType, Device, GemmOptions, Tensor, m_grouped_fp8_gemm_nt_fused, m_grouped_half_gemm_nt_fused,
};

use crate::fused::{EpilogueSpec, Finished, addend};
use crate::grouped::{GroupedHost, GroupedOperands, GroupedSpec};
use crate::problem::{AddendKind, POISON, values};
use crate::verdict::Verdict;
use crate::{Failure, Op};
use oxigemm::reference::Finish;

/// A product and what is done with its sums.
#[derive(Clone, Debug)]
pub struct FusedGroupedSpec {
    /// The product: its N is that of B's rows, its addend and gaps are those of D.
    pub product: GroupedSpec,
    pub epilogue: EpilogueSpec,
}

impl FusedGroupedSpec {
    /// The kernels that serve it.
    pub fn family(&self) -> Family {
        self.product.family()
    }

    /// As planning sees it.
    pub fn shape(&self) -> GroupedShape {
        GroupedShape { n: self.epilogue.columns(self.product.n) as u32, ..self.product.shape() }
    }

    /// Bytes that cross the memory bus at least once.
    pub fn bytes(&self) -> f64 {
        let (product, columns) = (&self.product, self.epilogue.columns(self.product.n));
        let rows = product.rows.iter().sum::<usize>() as f64;
        let outputs = if product.addend == AddendKind::None { 1.0 } else { 2.0 };
        let stored = rows * outputs * product.n as f64 * product.d_type.size() as f64;
        let element = match self.epilogue.quantized {
            Some(_) => 1.0 + 4.0 / 128.0,
            None => outputs * product.d_type.size() as f64,
        };
        product.bytes() - stored + rows * columns as f64 * element
    }

    /// The type of D.
    pub fn d_type(&self) -> DType {
        if self.epilogue.quantized.is_some() { DType::E4m3 } else { self.product.d_type }
    }
}

impl std::fmt::Display for FusedGroupedSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, c {:?}, finished by {:?}", self.product, self.product.addend, self.epilogue)
    }
}

/// Such a product with its data on a device.
pub struct FusedGroupedTask {
    pub spec: FusedGroupedSpec,
    /// The product alone, whose D is the sums.
    pub sums: GroupedOperands,
    /// One for each group and row of its B.
    bias: Option<Tensor>,
    c: Option<Tensor>,
    /// What is added to the rows of each group, without what heads skip.
    c_values: Vec<Option<Vec<f32>>>,
    d: Tensor,
    pub d_memory: Tensor,
    scales: Option<Tensor>,
}

impl FusedGroupedTask {
    /// Draws the data and puts it on a device, with poison wherever nothing belongs to a group.
    pub fn new(spec: FusedGroupedSpec, device: &Device) -> Result<FusedGroupedTask, Failure> {
        let FusedGroupedSpec { product, epilogue } = &spec;
        let host = FusedGroupedTask::product(product)?;
        let sums = host.upload(device)?;
        let GroupedSpec { n, seed, addend, .. } = *product;
        let groups = product.rows.len();
        let bias = epilogue.bias.map(|dtype| {
            let values: Vec<f32> = values(dtype, seed, 2, groups * n).iter().map(|x| x * 4.0).collect();
            Tensor::from_f32(dtype, &values, &[groups, n], device)
        });
        let (columns, d_type) = (epilogue.columns(n), spec.d_type());
        let width = epilogue.places(columns).1;
        // Rows of codes begin at multiples of 16 bytes, as another product reads them.
        let padding = match epilogue.quantized {
            Some(_) => width.next_multiple_of(16) - width + product.d_padding * 16,
            None => product.d_padding,
        };
        let rows = |padding: usize| -> Result<(Tensor, Tensor), Failure> {
            let (slabs, rows) = product.slabs();
            let memory = host.filled(d_type, POISON, &[slabs, rows, width + padding], device)?;
            let d = memory.narrow(2, 0, width)?;
            Ok((if product.is_masked() { d } else { d.select(0)? }, memory))
        };
        let (d, d_memory) = rows(padding)?;
        // Groups of C are as many rows apart as those of D, of 16-bit operands as many elements.
        let padding_of_c = if product.op == Op::Fp8 { padding + 8 } else { padding };
        let c = if addend == AddendKind::Other { Some(rows(padding_of_c)?.0) } else { None };
        let added = |(group, rows): (usize, &usize)| {
            (addend != AddendKind::None).then(|| {
                let c = values(d_type, seed.wrapping_add(group as u64), 3, rows * columns);
                c.iter().map(|x| x * 8.0).collect::<Vec<_>>()
            })
        };
        let c_values = product.rows.iter().enumerate().map(added).collect();
        let scales = match epilogue.quantized {
            None => None,
            Some((order, _)) => {
                let (slabs, rows) = product.slabs();
                let all = host.scales([slabs, rows, columns.div_ceil(128)], order, device)?;
                Some(if product.is_masked() { all } else { all.select(0)? })
            }
        };
        let mut task =
            FusedGroupedTask { bias: bias.transpose()?, c, c_values, d, d_memory, scales, sums, spec };
        if let Some(c) = task.c.clone() {
            task.write_addend(&c)?;
        }
        task.restore()?;
        Ok(task)
    }

    /// The data of the product alone.
    pub fn product(product: &GroupedSpec) -> Result<GroupedHost, Failure> {
        let alone =
            GroupedSpec { d_type: DType::F32, addend: AddendKind::None, d_padding: 0, ..product.clone() };
        GroupedHost::draw(alone)
    }

    /// Runs it.
    pub fn run(&mut self, options: &GemmOptions) -> oxigemm::Result<()> {
        let spec = &self.spec.epilogue;
        let (epilogue, addend) =
            (spec.with(self.bias.as_ref()), addend(self.c.as_ref(), self.spec.product.addend));
        let d = spec.output(&mut self.d, self.scales.as_mut());
        let Some(groups) = self.sums.row_groups() else { unreachable!("a batch has no epilogue") };
        let (a, b) = (&self.sums.a, &self.sums.b);
        match &self.sums.scales {
            Some([sfa, sfb]) => {
                m_grouped_fp8_gemm_nt_fused((a, sfa), (b, sfb), addend, d, groups, &epilogue, options)
            }
            None => m_grouped_half_gemm_nt_fused(a, b, addend, d, groups, &epilogue, options),
        }
    }

    /// The bytes of the result, and of its scales.
    pub fn bits(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = self.d_memory.to_bytes()?;
        if let Some(scales) = &self.scales {
            bytes.extend(scales.to_bytes()?);
        }
        Ok(bytes)
    }

    /// Compares with the single steps, for the sums that the product alone gives on the same device.
    pub fn judge(&mut self) -> Result<Verdict, Failure> {
        self.sums.run(&GemmOptions::default())?;
        let FusedGroupedSpec { product, epilogue } = &self.spec;
        let EpilogueSpec { activation, gated, alpha, beta, .. } = *epilogue;
        let columns = epilogue.columns(product.n);
        let (places, width) = epilogue.places(columns);
        let bias = self.bias.as_ref().map(Tensor::to_vec_f32).transpose()?;
        let (mut expected, mut found, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        for (group, &rows) in product.rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            let sums: Vec<f64> = self.sums.result(group)?.into_iter().map(f64::from).collect();
            let bias = bias.as_ref().map(|bias| &bias[group * product.n..][..product.n]);
            let finish = Finish { alpha, beta, bias, activation, gated };
            expected.extend(finish.apply(&sums, product.n, self.c_values[group].as_deref())?);
            let all = self.sums.rows_of(&self.d, group)?.to_vec_f32()?;
            found.extend((0..rows * columns).map(|i| all[i / columns * width + places[i % columns]]));
            if let Some(of_d) = &self.scales {
                scales.extend(self.sums.rows_of(of_d, group)?.to_vec_f32()?);
            }
        }
        let quantized = epilogue.quantized.map(|(_, format)| (scales.as_slice(), format));
        Ok(Finished { columns, d_type: product.d_type, quantized }.judge(&expected, found))
    }

    /// Whether nothing was written to that is not part of the result.
    pub fn surroundings_untouched(&self) -> Result<bool, Failure> {
        let FusedGroupedSpec { product, epilogue } = &self.spec;
        if !product.poison || self.d_memory.is_empty() {
            return Ok(true);
        }
        let (size, belongs) = (self.d.dtype().size(), product.belongs());
        let (places, _) = epilogue.places(epilogue.columns(product.n));
        let mut bytes = self.d_memory.to_bytes()?;
        let pitch = bytes.len() / belongs.len().max(1);
        for (row, _) in belongs.iter().enumerate().filter(|(_, belongs)| **belongs) {
            for place in &places {
                bytes[row * pitch + place * size..][..size].fill(POISON);
            }
        }
        let mut scales = self.scales.as_ref().map_or(Ok(Vec::new()), Tensor::to_bytes)?;
        let pitch = scales.len() / belongs.len().max(1);
        for (row, _) in belongs.iter().enumerate().filter(|(_, belongs)| **belongs) {
            scales[row * pitch..][..pitch].fill(POISON);
        }
        Ok(bytes.iter().chain(&scales).all(|byte| *byte == POISON))
    }

    /// Puts into D what is added to, where it is D.
    pub fn restore(&mut self) -> Result<(), Failure> {
        match self.spec.product.addend {
            AddendKind::Inplace => self.write_addend(&self.d.clone()),
            _ => Ok(()),
        }
    }

    fn write_addend(&self, to: &Tensor) -> Result<(), Failure> {
        let FusedGroupedSpec { product, epilogue } = &self.spec;
        for (group, values) in self.c_values.iter().enumerate() {
            let Some(values) = values.as_ref().filter(|values| !values.is_empty()) else { continue };
            let columns = epilogue.columns(product.n);
            self.sums.rows_of(to, group)?.write_bytes(&epilogue.laid_out(values, columns, to.dtype()))?;
        }
        Ok(())
    }

    /// Overwrites D, its scales and everything around it with poison.
    pub fn poison(&mut self) -> Result<(), Failure> {
        for tensor in [Some(&mut self.d_memory), self.scales.as_mut()].into_iter().flatten() {
            let bytes = vec![POISON; tensor.len() * tensor.dtype().size()];
            tensor.write_bytes(&bytes)?;
        }
        Ok(())
    }

    /// Has the device told of other groups: of the same number, in the same memory. Nothing is added.
    pub fn change_groups(&mut self, product: &GroupedSpec) -> Result<(), Failure> {
        self.sums.change_groups(&FusedGroupedTask::product(product)?)?;
        self.spec.product = product.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxigemm_kernels::grouping::GroupLayout;

    fn specs() -> Vec<FusedGroupedSpec> {
        let mut all = Vec::new();
        for layout in [GroupLayout::Counts, GroupLayout::Ids, GroupLayout::Ends] {
            for words in ["gelu,bias,beta=0.5", "swiglu,fp8", "heads=8/3/8"] {
                let product = GroupedSpec::new(layout, vec![5, 0, 9, 1], 256, 200);
                let addend = if words.contains("beta") { AddendKind::Other } else { AddendKind::None };
                let alignment = if product.is_masked() { 1 } else { 16 };
                let product = GroupedSpec { alignment, behind: 3, room: 12, addend, ..product };
                all.push(FusedGroupedSpec { product, epilogue: words.parse().unwrap() });
            }
        }
        all
    }

    #[test]
    fn the_reference_is_right_and_a_wrong_element_is_found() {
        for spec in specs() {
            let about = spec.to_string();
            let mut task = FusedGroupedTask::new(spec, &Device::cpu()).unwrap();
            task.run(&GemmOptions::default()).unwrap();
            let good = task.judge().unwrap();
            assert!(good.right && good.rows == 15, "{about}: {good:?}");
            assert!(task.surroundings_untouched().unwrap(), "{about}");
            let mut row = task.sums.rows_of(&task.d, 2).unwrap();
            let (mut bytes, size) = (row.to_bytes().unwrap(), row.dtype().size());
            // The sign, or a large part, of the second element.
            bytes[2 * size - 1] ^= 0xc0;
            row.write_bytes(&bytes).unwrap();
            assert!(!task.judge().unwrap().right, "{about}");
        }
    }

    #[test]
    fn a_write_to_a_row_of_no_group_is_seen() {
        for spec in specs() {
            let about = spec.to_string();
            let task = FusedGroupedTask::new(spec, &Device::cpu()).unwrap();
            let last = |x: &Tensor| {
                let rows = if x.dims().len() == 3 { x.select(x.dims()[0] - 1).unwrap() } else { x.clone() };
                rows.select(rows.dims()[0] - 1).unwrap()
            };
            for tensor in [Some(&task.d), task.scales.as_ref()].into_iter().flatten() {
                assert!(task.surroundings_untouched().unwrap(), "{about}");
                let mut row = last(tensor);
                let before = row.to_bytes().unwrap();
                row.write_bytes(&vec![0; before.len()]).unwrap();
                assert!(!task.surroundings_untouched().unwrap(), "{about}");
                row.write_bytes(&before).unwrap();
            }
        }
    }
}

//! The argument checks of products whose rows are grouped.

use oxigemm_kernels::gemm::launch::OperandKind;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::scheduler::m_grouped::{GroupLayout, MAX_GROUPS};

use super::operand::Footprint;
use super::{Accumulate, BLOCK, D_ELEMENTS_LIMIT, EpilogueArguments, Operand, Problem, ScaleStrides, blocks};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::MAX_RANK;

/// What the rows of a group may have to start at a multiple of.
const ALIGNMENTS: [i64; 5] = [1, 16, 32, 64, 128];

/// TMA takes strides below this many bytes.
const TMA_STRIDE_LIMIT: u64 = 1 << 40;

/// The arguments of a product whose rows are grouped: D = A·Bᵀ, each group with its own B.
///
/// Where [`GroupsArgument::layout`] is `Counts`, or there are no such, A, its scales and D have a leading dimension for the
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedFp8GemmNt {
    /// `[M, K]` or `[G, M, K]` e4m3, K-major.
    pub a: Operand,
    /// The scales of A: `[M, ceil(K/128)]` or `[G, M, ceil(K/128)]` f32, or 1 along any dimension for all.
    pub sfa: Operand,
    /// `[G, N, K]` e4m3, K-major.
    pub b: Operand,
    /// The scales of B: `[G, ceil(N/128), ceil(K/128)]` f32, or 1 along any dimension for all.
    pub sfb: Operand,
    /// The result: `[M, N]` or `[G, M, N]` bf16 or f32, row-major.
    pub d: Operand,
    /// Where the groups are; without it, each has all rows of its slab: a batch of products.
    pub groups: Option<GroupsArgument>,
}

/// The argument that says where the groups are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupsArgument {
    /// What the numbers mean.
    pub layout: GroupLayout,
    /// The numbers: `[G]` or, of `Ids`, `[M]` i32, without gaps.
    pub numbers: Operand,
    /// What the first row of a group is a multiple of: 1, 16, 32, 64 or 128.
    pub alignment: i64,
    /// Rows that a group is expected to have, for planning only; without it, an equal share of all rows.
    pub expected: Option<i64>,
}

/// What a call with good arguments has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedGroups {
    /// Run a kernel. The problem is that of a slab: of one group where each has its own rows, else of all rows.
    Launch(Problem, Groups),
    /// Nothing: there are no groups, no rows or no columns.
    Nothing,
}

/// The groups of a checked product. Equal ones take the same plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// What the numbers mean that only the device knows.
    pub layout: GroupLayout,
    /// How many groups there are.
    pub count: u32,
    /// What the first row of a group is a multiple of.
    pub alignment: u32,
    /// Rows that a group is expected to have.
    pub expected: u32,
    /// From one slab of A to the next, in elements.
    pub a_slab: u64,
    /// From the B of one group to the next, in elements.
    pub b_group: u64,
    /// From one slab of D to the next, in elements; 0 where there is one.
    pub d_slab: u32,
    /// From one slab of A's scales to the next, in elements.
    pub sfa_slab: u32,
    /// From the scales of one group's B to the next, in elements.
    pub sfb_group: u32,
}

impl Groups {
    /// How many slabs of A and D there are.
    #[must_use]
    pub fn slabs(&self) -> u32 {
        if self.layout.has_slabs() { self.count } else { 1 }
    }

    /// From one slab of D to the next, in rows of this pitch, where they are whole rows apart.
    pub(crate) fn d_slab_rows(&self, pitch: u64) -> u32 {
        (u64::from(self.d_slab) / pitch) as u32
    }
}

impl GroupedFp8GemmNt {
    /// Checks every rule of the call. What the numbers are is not looked at: only the device knows.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check(&self) -> Result<CheckedGroups> {
        let k_major = |operand: &Operand| operand.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory));
        Ok(self.check_by(k_major, None, None)?.0)
    }

    /// The same where sums are finished and `c` is added, but for where the operands of the epilogue lie.
    pub(super) fn check_finished(
        &self,
        c: Option<&Operand>,
        epilogue: &EpilogueArguments,
    ) -> Result<CheckedGroups> {
        let k_major = |operand: &Operand| operand.tma_rows().map(|(pitch, memory)| (Major::K, pitch, memory));
        Ok(self.check_by(k_major, c, Some(epilogue))?.0)
    }

    /// The same for a B that is contiguous along K or along N; also along which. Where it is N, its pitch is from one
    /// step of K to the next.
    ///
    /// # Errors
    /// The first broken rule, with the argument that breaks it.
    pub fn check_either_major(&self) -> Result<(CheckedGroups, Major)> {
        self.check_by(|operand| operand.tma_either_major(Major::K), None, None)
    }

    fn check_by(
        &self,
        rows_of_b: impl Fn(&Operand) -> Result<(Major, u64, Footprint)>,
        c: Option<&Operand>,
        epilogue: Option<&EpilogueArguments>,
    ) -> Result<(CheckedGroups, Major)> {
        let GroupedFp8GemmNt { a, sfa, b, sfb, d, groups } = self;
        let numbers = groups.as_ref().map(|groups| &groups.numbers);
        let layout = groups.map_or(GroupLayout::All, |groups| groups.layout);
        let masked = layout.has_slabs();
        let finish = epilogue.copied().unwrap_or_default();

        a.expect_dtype(&[DType::E4m3])?;
        b.expect_dtype(&[DType::E4m3])?;
        sfa.expect_dtype(&[DType::F32])?;
        sfb.expect_dtype(&[DType::F32])?;
        finish.expect_type_of_d(d, a)?;
        if let Some(numbers) = numbers {
            numbers.expect_dtype(&[DType::I32])?;
        }
        let [count, n, k] = b.slab_dims(true)?;
        let [a_slabs, m, a_k] = a.slab_dims(masked)?;
        if masked && a_slabs != count {
            return Err(a.wrong_shape([count, m, k], "with the groups of `b`"));
        }
        if a_k != k {
            let expected = if masked { vec![count, m, k] } else { vec![m, k] };
            return Err(a.wrong_shape(expected, "with the K of `b`"));
        }
        let (k_blocks, n_blocks) = (blocks(k), blocks(n));
        let slabs = a_slabs;
        let sfa = &sfa.expect_slab_scales(masked, [slabs, m, k_blocks], "one per row of `a` and 128 of K")?;
        let sfb = &sfb.expect_slab_scales(
            true,
            [count, n_blocks, k_blocks],
            "one per group, 128 rows of `b` and 128 of K",
        )?;
        let columns = finish.columns(b, n, i64::from(BLOCK))?;
        let d_dims = [slabs, m, finish.columns_of_d(columns)];
        let expect_dims = |operand: &Operand, meaning: &str| {
            if operand.slab_dims(masked)? == d_dims {
                return Ok(());
            }
            Err(operand.wrong_shape(&d_dims[usize::from(!masked)..], meaning))
        };
        let meaning = if epilogue.is_some() {
            finish.meaning_of_d()
        } else {
            "the rows of `a` by the rows of a group's `b`"
        };
        expect_dims(d, meaning)?;
        if let Some(c) = c {
            c.expect_dtype(&[d.dtype])?;
            expect_dims(c, "the shape of `d`")?;
        }
        match groups {
            Some(groups) => groups.check(b, d, [slabs, count, m, d_dims[2]])?,
            None => expect_sizes(b, d, [slabs, count, m, d_dims[2]])?,
        }
        for operand in [sfa, b, sfb, d].into_iter().chain(numbers).chain(c) {
            operand.expect_device(a)?;
        }
        finish.check_shapes((Some(count), n), &[slabs, m, columns][usize::from(!masked)..], a, c)?;
        if count == 0 || m == 0 || n == 0 {
            return Ok((CheckedGroups::Nothing, Major::K));
        }
        if k == 0 {
            return Err(b.wrong_shape([count, n, 1], "or more along K"));
        }

        let (d_pitch, d_slab, d_memory) = match layout {
            GroupLayout::All => d.plain_slabs()?,
            _ => {
                let (pitch, memory) = d.slab().plain_rows()?;
                d.whole_rows_apart(pitch, memory)?
            }
        };
        let (a_pitch, a_memory) = a.slab().tma_rows()?;
        let (a_slab, a_memory) = a.tma_slabs(a_pitch, a_memory)?;
        let (b_major, b_pitch, b_memory) = rows_of_b(&b.slab())?;
        let (b_group, b_memory) = b.tma_slabs(b_pitch, b_memory)?;
        let (sfa_strides, sfa_memory) = sfa.slab().scale_strides()?;
        let (sfa_slab, sfa_memory) = sfa.scale_slabs(sfa_strides, sfa_memory)?;
        let (sfb_strides, sfb_memory) = sfb.slab().scale_strides()?;
        let (sfb_group, sfb_memory) = sfb.scale_slabs(sfb_strides, sfb_memory)?;
        let inputs = [(a, a_memory), (b, b_memory), (sfa, sfa_memory), (sfb, sfb_memory)];
        for (input, memory) in &inputs {
            d.expect_apart(&d_memory, input, memory)?;
        }
        if let Some(numbers) = numbers {
            d.expect_apart(&d_memory, numbers, &numbers.list().plain_rows()?.1)?;
        }
        let accumulate = match c {
            None => Accumulate::None,
            Some(c) => addend(c, d, (d_pitch, d_slab), &d_memory)?,
        };
        let expected = groups.map_or(m as u32, |groups| groups.expected_rows([slabs, count, m]));
        let problem = Problem {
            family: OperandKind::Fp8,
            // slab_dims has bounded each of them by i32::MAX.
            m: m as u32,
            n: columns as u32,
            k: k as u32,
            a_pitch,
            b_pitch,
            d_pitch,
            c: accumulate,
            sfa: sfa_strides,
            sfb: sfb_strides,
            d_type: d.dtype,
        };
        let groups = Groups {
            layout,
            count: count as u32,
            alignment: groups.map_or(1, |groups| groups.alignment as u32),
            expected,
            a_slab,
            b_group,
            d_slab,
            sfa_slab,
            sfb_group,
        };
        Ok((CheckedGroups::Launch(problem, groups), b_major))
    }
}

/// What is added to a D whose rows, and slabs of rows, are so far apart.
fn addend(
    c: &Operand,
    d: &Operand,
    (d_pitch, d_slab): (u64, u32),
    d_memory: &Footprint,
) -> Result<Accumulate> {
    let (pitch, memory) = c.slab().plain_rows()?;
    let (pitch, slab, memory) = c.whole_rows_apart(pitch, memory)?;
    // A row of C has the number of the row of D.
    if u64::from(slab) / pitch != u64::from(d_slab) / d_pitch {
        return Err(Error::Stride {
            argument: "c",
            expected: format!("groups {} rows apart, as those of `d`", u64::from(d_slab) / d_pitch),
            found: format!("groups {} rows apart", u64::from(slab) / pitch),
        });
    }
    if c.address == d.address && pitch == d_pitch {
        return Ok(Accumulate::InPlace);
    }
    d.expect_apart(d_memory, c, &memory)?;
    Ok(Accumulate::From { pitch })
}

impl GroupsArgument {
    /// Checks the numbers, as far as the host knows of them, beside `count` groups in so many slabs of `m` rows.
    pub(super) fn check(&self, b: &Operand, d: &Operand, [slabs, count, m, n]: [i64; 4]) -> Result<()> {
        self.numbers.expect_list(if self.layout == GroupLayout::Ids { m } else { count })?;
        expect_sizes(b, d, [slabs, count, m, n])?;
        if !ALIGNMENTS.contains(&self.alignment) {
            return Err(wrong_number("alignment", "1, 16, 32, 64 or 128", self.alignment));
        }
        if let Some(negative) = self.expected.filter(|expected| *expected < 0) {
            return Err(wrong_number("expected_m", "0 or more", negative));
        }
        Ok(())
    }

    /// Rows that a group is expected to have: as many as are told, but no more than there are.
    pub(super) fn expected_rows(&self, [slabs, count, m]: [i64; 3]) -> u32 {
        self.expected.unwrap_or(m * slabs / count).clamp(1, m) as u32
    }
}

/// Checks that kernels can count the groups, and the tiles of D.
pub(super) fn expect_sizes(b: &Operand, d: &Operand, [slabs, count, m, n]: [i64; 4]) -> Result<()> {
    if count > i64::from(MAX_GROUPS) {
        return Err(b.too_large(format!("at most {MAX_GROUPS} groups")));
    }
    if i128::from(slabs) * i128::from(m) * i128::from(n) > i128::from(D_ELEMENTS_LIMIT) {
        return Err(d.too_large(format!("at most {D_ELEMENTS_LIMIT} elements")));
    }
    Ok(())
}

fn wrong_number(argument: &'static str, expected: &str, found: i64) -> Error {
    Error::Shape { argument, expected: expected.to_owned(), found: found.to_string() }
}

/// Matrices one behind another: the leading dimension of three, or a single matrix.
impl Operand {
    /// How many matrices, and their dimensions; of an operand with or without a leading dimension.
    pub(super) fn slab_dims(&self, several: bool) -> Result<[i64; 3]> {
        let expected = if several { 3 } else { 2 };
        if self.rank != expected {
            return Err(Error::Rank {
                argument: self.name,
                expected: format!("{expected} dimensions{}", if several { ", groups first" } else { "" }),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        let [rows, columns] = self.slab().matrix_dims()?;
        let slabs = if several { self.dims[0] } else { 1 };
        if slabs < 0 {
            return Err(Error::Shape {
                argument: self.name,
                expected: "dimensions of 0 or more".to_owned(),
                found: format!("{:?}", self.dims()),
            });
        }
        if slabs > i64::from(i32::MAX) {
            return Err(self.too_large(format!("dimensions up to {}", i32::MAX)));
        }
        Ok([slabs, rows, columns])
    }

    /// The matrices with rows and columns exchanged.
    pub(crate) fn transposed_slabs(mut self) -> Operand {
        if self.rank == 3 {
            self.dims.swap(1, 2);
            self.strides.swap(1, 2);
        }
        self
    }

    /// The first matrix.
    pub(super) fn slab(&self) -> Operand {
        if self.rank < 3 {
            return *self;
        }
        let ([_, rows, columns, ..], [_, row_stride, column_stride, ..]) = (self.dims, self.strides);
        Operand::matrix(
            self.name,
            self.dtype,
            [rows, columns],
            [row_stride, column_stride],
            self.address,
            self.device,
        )
    }

    /// As [`expect_scales`](Operand::expect_scales), of one matrix or of several.
    fn expect_slab_scales(&self, several: bool, expected: [i64; 3], meaning: &str) -> Result<Operand> {
        let single = self.rank < 3 && self.dims().iter().all(|dim| *dim == 1);
        let rank = if several { 3 } else { 2 };
        let all = if single { Operand { rank, dims: [1; MAX_RANK], ..*self } } else { *self };
        let found = all.slab_dims(several)?;
        if found.iter().zip(expected).any(|(&found, expected)| found != expected && found != 1) {
            return Err(Error::ScaleShape {
                argument: self.name,
                expected: format!(
                    "{:?}, {meaning}, or 1 along any dimension for all",
                    &expected[usize::from(!several)..]
                ),
                found: format!("{:?}", self.dims()),
            });
        }
        Ok(all.repeated_to(&expected[usize::from(!several)..]))
    }

    /// A list of so many numbers without gaps.
    pub(super) fn expect_list(&self, length: i64) -> Result<()> {
        if self.rank != 1 {
            return Err(Error::Rank {
                argument: self.name,
                expected: "1 dimension".to_owned(),
                found: format!("{} dimensions, {:?}", self.rank, self.dims()),
            });
        }
        if self.dims[0] != length {
            return Err(Error::Shape {
                argument: self.name,
                expected: format!("[{length}]"),
                found: format!("{:?}", self.dims()),
            });
        }
        if length > 1 && self.strides[0] != 1 {
            return Err(Error::Stride {
                argument: self.name,
                expected: "numbers without gaps".to_owned(),
                found: format!("a stride of {}", self.strides[0]),
            });
        }
        Ok(())
    }

    /// A list as a matrix of one row.
    pub(super) fn list(&self) -> Operand {
        Operand::matrix(
            self.name,
            self.dtype,
            [1, self.dims[0]],
            [self.dims[0], 1],
            self.address,
            self.device,
        )
    }

    /// From one matrix to the next, and how many there are; `None` where there is only one.
    fn slab_stride(&self) -> Result<Option<(u64, u64)>> {
        match (self.rank, self.dims[0], self.strides[0]) {
            (3, count @ 2.., stride @ 1..) => Ok(Some((count as u64, stride as u64))),
            (3, 2.., _) => Err(Error::Stride {
                argument: self.name,
                expected: "groups apart from each other".to_owned(),
                found: format!("strides {:?} for {:?}", &self.strides[..3], self.dims()),
            }),
            _ => Ok(None),
        }
    }

    /// The bytes of all matrices, from those of the first.
    fn slabs_footprint(&self, count: u64, stride: u64, first: Footprint) -> Result<Footprint> {
        let size = self.dtype.size() as u64;
        let length =
            u128::from(count - 1) * u128::from(stride) * u128::from(size) + u128::from(first.length());
        Ok(first.repeated(count, stride * size, self.end_of(length)?))
    }

    /// Checks matrices that TMA reads; gives the elements from one to the next and the bytes of all.
    pub(super) fn tma_slabs(&self, pitch: u64, first: Footprint) -> Result<(u64, Footprint)> {
        let size = self.dtype.size() as u64;
        let Some((count, stride)) = self.slab_stride()? else {
            // The stride of one matrix has no meaning: any that TMA takes will do.
            let whole = pitch.saturating_mul(self.slab().dims[0] as u64);
            return Ok((if whole < TMA_STRIDE_LIMIT / size { whole } else { pitch }, first));
        };
        let bytes = stride.saturating_mul(size);
        if !bytes.is_multiple_of(16) || bytes >= TMA_STRIDE_LIMIT {
            return Err(self.not_tma(format!(
                "the stride from group to group must be a multiple of 16 bytes below {TMA_STRIDE_LIMIT}, found \
                 {stride} {} elements",
                self.dtype
            )));
        }
        Ok((stride, self.slabs_footprint(count, stride, first)?))
    }

    /// Checks that the rows of all matrices are rows of one; gives the elements from one row to the next, and from one
    /// matrix to the next, and the bytes of all.
    pub(super) fn whole_rows_apart(&self, pitch: u64, first: Footprint) -> Result<(u64, u32, Footprint)> {
        let Some((count, stride)) = self.slab_stride()? else { return Ok((pitch, 0, first)) };
        let rows = self.dims[1] as u64;
        // The pitch of single rows has no meaning: they are as far apart as their groups.
        let pitch = if rows == 1 { stride } else { pitch };
        if !stride.is_multiple_of(pitch) || stride < rows * pitch || stride < self.dims[2] as u64 {
            return Err(Error::Stride {
                argument: self.name,
                expected: format!("groups whole rows of {pitch} elements apart, at least {rows} of them"),
                found: format!("strides {:?} for {:?}", &self.strides[..3], self.dims()),
            });
        }
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        if (count - 1) * (stride / pitch) + rows > i32::MAX as u64 {
            return Err(self.too_large(format!("at most {} rows from the first to the last", i32::MAX)));
        }
        Ok((pitch, self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }

    /// Checks an output of matrices none of which reaches into another, one behind another or row beside row; gives the
    /// elements from one row to the next, and from one matrix to the next, and the bytes of all.
    pub(super) fn plain_slabs(&self) -> Result<(u64, u32, Footprint)> {
        let (pitch, first) = self.slab().plain_rows()?;
        let Some((count, stride)) = self.slab_stride()? else { return Ok((pitch, 0, first)) };
        let [rows, columns] = [self.dims[1], self.dims[2]].map(|dim| dim as u64);
        let behind = stride >= (rows - 1) * pitch + columns;
        let beside = stride >= columns && pitch >= (count - 1).saturating_mul(stride).saturating_add(columns);
        if !behind && !beside {
            return Err(Error::Stride {
                argument: self.name,
                expected: "groups that do not reach into each other".to_owned(),
                found: format!("strides {:?} for {:?}", &self.strides[..3], self.dims()),
            });
        }
        if pitch > u64::from(u32::MAX) {
            return Err(self.too_large(format!("a row pitch of at most {} elements", u32::MAX)));
        }
        Ok((pitch, self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }

    /// Elements from one matrix to the next, as kernels count them.
    fn narrow_slab(&self, stride: u64) -> Result<u32> {
        u32::try_from(stride)
            .map_err(|_| self.too_large(format!("at most {} elements from group to group", u32::MAX)))
    }

    /// Checks matrices of scales; gives the elements from one to the next, 0 where all groups have the same, and the
    /// bytes of all.
    pub(super) fn scale_slabs(&self, strides: ScaleStrides, first: Footprint) -> Result<(u32, Footprint)> {
        if self.rank == 3 && self.dims[0] > 1 && self.strides[0] == 0 {
            return Ok((0, first));
        }
        let Some((count, stride)) = self.slab_stride()? else {
            // As above: the length of the matrix, whichever way it lies.
            let [rows, columns] = [self.slab().dims[0], self.slab().dims[1]].map(|dim| dim as u64);
            let whole = (rows * u64::from(strides.mn)).max(columns * u64::from(strides.k));
            return Ok((u32::try_from(whole.next_multiple_of(4)).unwrap_or(4), first));
        };
        Ok((self.narrow_slab(stride)?, self.slabs_footprint(count, stride, first)?))
    }
}

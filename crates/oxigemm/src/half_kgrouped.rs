//! Products with BF16 and FP16 operands and groups along K.

use crate::call::{Addresses, FusedAt};
use crate::check::int;
use crate::check::{CheckedKGroups, GemmLayout, KGroupedHalfGemm, Operand};
use crate::device::{Device, DeviceId};
use crate::dtype::DType;
use crate::error::Result;
use crate::gemm::{Addend, GemmOptions, refuse_stream};
use crate::half_gemm::expect_type;
use crate::kgrouped::{KGroupedArguments, launch, run_raw};
use crate::reference;
use crate::tensor::Tensor;

/// D\[g\] = C\[g\] + A_g·B_g with 16-bit operands, for groups that share M and N and have a range of K each.
///
/// | argument | shape | type | layout |
/// |---|---|---|---|
/// | `a` | `[K, M]`, of `nt` `[M, K]` | bf16 or f16 | contiguous along the last dimension; pitch and address multiples of 16 bytes |
/// | `b` | `[K, N]`, of `nt` `[N, K]` | as `a` | as `a` |
/// | `c`, `d` | `[G, M, N]` | that of `a`, or f32; the same | rows of N, any pitch; groups whole rows apart |
/// | `ks` | `[G]` | i32 | on the device, without gaps |
///
/// The layout is `tn` or `nt`. K is that of all groups, which lie one behind another: in `tn` without gaps, in `nt` each
/// begins at a multiple of 8, and what lies between does not count. Each may have any K, also 0 (D becomes C or 0), 1,
/// and what is no multiple of anything.
///
/// The kernel itself reads `ks`, so that a captured call can be replayed with others. Numbers below 0 count as 0; a
/// group is cut off where the operands end. What lies behind the last group is not read. `ks_host` are the same numbers,
/// if the host knows them: they must fit K exactly.
///
/// Where M, N or the number of groups is 0 nothing is done. There are at most 1024 groups.
///
/// # Errors
/// The first rule that an argument breaks, or what the device reports.
///
/// ```
/// use oxigemm::{Addend, DType, Device, GemmLayout, GemmOptions, Tensor, k_grouped_half_gemm};
///
/// let device = Device::cpu(); // or Device::auto(), which takes a GPU, else the simulator
/// let (m, n) = (8, 16);
/// let a = Tensor::from_f32(DType::Bf16, &vec![0.5; 5 * m], &[5, m], &device)?;
/// let b = Tensor::from_f32(DType::Bf16, &vec![2.0; 5 * n], &[5, n], &device)?;
/// let mut d = Tensor::from_f32(DType::F32, &vec![100.0; 3 * m * n], &[3, m, n], &device)?;
///
/// let ks = Tensor::from_slice(&[4i32, 0, 1], &[3], &device)?; // rows of A and B that each group has
/// let (layout, options) = (GemmLayout::Tn, GemmOptions::default());
/// k_grouped_half_gemm(layout, &a, &b, Addend::InPlace, &mut d, &ks, Some(&[4, 0, 1]), &options)?;
/// let firsts: Vec<f32> = d.to_vec_f32()?.into_iter().step_by(m * n).collect();
/// assert_eq!(firsts, [104.0, 100.0, 101.0]);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[expect(clippy::too_many_arguments, reason = "every one of them is a part of the call")]
pub fn k_grouped_half_gemm(
    layout: GemmLayout,
    a: &Tensor,
    b: &Tensor,
    c: Addend<'_>,
    d: &mut Tensor,
    ks: &Tensor,
    ks_host: Option<&[usize]>,
    options: &GemmOptions,
) -> Result<()> {
    let arguments = KGroupedHalfGemm {
        layout,
        a: a.describe("a"),
        b: b.describe("b"),
        c: c.describe(d),
        d: d.describe("d"),
        ks: ks.describe("ks"),
        ks_host,
    };
    match a.device() {
        // SAFETY: tensors hold the memory that they describe. The driver keeps freed memory until running work is done.
        Device::Cuda(cuda) => unsafe { launch(cuda, &arguments, options) },
        // SAFETY: as above.
        Device::Sim(sim) => unsafe { launch(sim, &arguments, options) },
        Device::Cpu => {
            refuse_stream(a.device(), options)?;
            let checked = arguments.check()?;
            let old = d.clone();
            let c = c.tensor(&old);
            reference::k_grouped_half_gemm_tensors(layout, [a, b], c, d, ks, &checked)
        }
    }
}

/// The functions by their names, each for one type and layout.
macro_rules! named {
    ($($name:ident: $dtype:ident $layout:ident, $formula:literal, $shapes:literal;)*) => {$(
        #[doc = concat!("D\\[g\\] = C\\[g\\] + ", $formula, " for groups along K, ", $shapes, ":")]
        /// [`k_grouped_half_gemm`] with its type and layout.
        ///
        /// # Errors
        #[doc = "As [`k_grouped_half_gemm`]; operands of another type are refused."]
        pub fn $name(
            a: &Tensor,
            b: &Tensor,
            c: Addend<'_>,
            d: &mut Tensor,
            ks: &Tensor,
            ks_host: Option<&[usize]>,
            options: &GemmOptions,
        ) -> Result<()> {
            expect_type(a, DType::$dtype)?;
            k_grouped_half_gemm(GemmLayout::$layout, a, b, c, d, ks, ks_host, options)
        }
    )*};
}

named! {
    k_grouped_bf16_gemm_tn_contiguous: Bf16 Tn, "A_gᵀ·B_g", "A `[K, M]` and B `[K, N]`";
    k_grouped_bf16_gemm_nt_contiguous: Bf16 Nt, "A_g·B_gᵀ", "A `[M, K]` and B `[N, K]`";
    k_grouped_fp16_gemm_tn_contiguous: F16 Tn, "A_gᵀ·B_g", "A `[K, M]` and B `[K, N]`";
    k_grouped_fp16_gemm_nt_contiguous: F16 Nt, "A_g·B_gᵀ", "A `[M, K]` and B `[N, K]`";
}

/// The operands of a product with groups along K, as addresses, for engines that own their memory. Pitches and strides
/// are in elements.
///
/// What the fields mean and how they are checked is told at [`k_grouped_half_gemm`].
#[derive(Clone, Copy, Debug)]
pub struct RawKGroupedHalfGemm<'a> {
    /// How A and B are given: tn or nt.
    pub layout: GemmLayout,
    /// How many groups there are.
    pub groups: usize,
    /// Rows of a group's D.
    pub m: usize,
    /// Columns of D.
    pub n: usize,
    /// The K of all groups together, of `nt` with what lies between.
    pub k: usize,
    /// The element type of A and B: bf16 or f16.
    pub ab_type: DType,
    /// Address of A.
    pub a: u64,
    /// From one row of A, as it lies in memory, to the next.
    pub a_pitch: usize,
    /// Address of B.
    pub b: u64,
    /// From one row of B, as it lies in memory, to the next.
    pub b_pitch: usize,
    /// Address of C: 0 for none, that of D to add to D.
    pub c: u64,
    /// From one group of C to the next, and from one row to the next.
    pub c_strides: [usize; 2],
    /// Address of D.
    pub d: u64,
    /// From one group of D to the next, and from one row to the next.
    pub d_strides: [usize; 2],
    /// The element type of C and D: that of A and B, or f32.
    pub d_type: DType,
    /// Address of the K of each group, of type i32.
    pub ks: u64,
    /// The same numbers, as far as the host knows them.
    pub ks_host: Option<&'a [usize]>,
}

impl<'a> RawKGroupedHalfGemm<'a> {
    fn describe(&self, device: DeviceId) -> KGroupedHalfGemm<'a> {
        let [groups, m, n, k] = [self.groups, self.m, self.n, self.k].map(int);
        let matrix = |name, rows: i64, k_first: bool, pitch, address| {
            let dims = if k_first { [k, rows] } else { [rows, k] };
            Operand::matrix(name, self.ab_type, dims, [int(pitch), 1], address, device)
        };
        let output = |name, [group, row]: [usize; 2], address| {
            let dims = [groups, m, n];
            Operand::new((name, self.d_type), &dims, &[int(group), int(row), 1], (address, device))
        };
        let (a_first, b_first) = (self.layout.a_begins_with_k(), self.layout.b_begins_with_k());
        KGroupedHalfGemm {
            layout: self.layout,
            a: matrix("a", m, a_first, self.a_pitch, self.a),
            b: matrix("b", n, b_first, self.b_pitch, self.b),
            c: (self.c != 0).then(|| output("c", self.c_strides, self.c)),
            d: output("d", self.d_strides, self.d),
            ks: Operand::new(("ks", DType::I32), &[groups], &[1], (self.ks, device)),
            ks_host: self.ks_host,
        }
    }
}

/// [`k_grouped_half_gemm`] on memory that the caller owns, on the stream of the options. The device is a GPU or the
/// simulator, whose addresses are those of its tensors.
///
/// # Safety
/// As for [`k_grouped_fp8_gemm_nt_contiguous_raw`](crate::k_grouped_fp8_gemm_nt_contiguous_raw).
///
/// # Errors
/// As [`k_grouped_half_gemm`]. The CPU is refused: it has tensors only.
pub unsafe fn k_grouped_half_gemm_raw(
    device: &Device,
    gemm: &RawKGroupedHalfGemm<'_>,
    options: &GemmOptions,
) -> Result<()> {
    // SAFETY: the caller keeps the operands as described.
    unsafe { run_raw(device, &gemm.describe(device.id()), options) }
}

impl KGroupedArguments for KGroupedHalfGemm<'_> {
    fn check(&self) -> Result<CheckedKGroups> {
        KGroupedHalfGemm::check(self)
    }

    fn output(&self) -> (Option<&Operand>, &Operand) {
        (self.c.as_ref(), &self.d)
    }

    fn addresses(&self) -> Addresses {
        Addresses {
            a: self.a.address,
            sfa: 0,
            b: self.b.address,
            sfb: 0,
            c: self.c.map_or(0, |c| c.address),
            d: self.d.address,
            groups: self.ks.address,
            map_room: 0,
            fused: FusedAt::default(),
        }
    }
}

//! Groups with a B of `[K, N]` each: the bits are those of the same B transposed by the caller.

use crate::common::{same_bits, schedules};
use oxigemm::Granularity;
use oxigemm::cast::{ScaleFormat, cast_to_fp8};
use oxigemm::{
    DType, Device, Error, GemmLayout, GemmOptions, GroupedRows, RawGemm, RawGrouping, RawGroups, RawMatrix,
    RawScaleFactors, Sim, Tensor, gemm_raw, m_grouped_fp8_gemm_nn_contiguous, m_grouped_fp8_gemm_nn_masked,
    m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_masked, random,
};

const GROUPS: usize = 3;
const M: usize = 40;
const N: usize = 150;
const K: usize = 208;

struct Problem {
    /// `[GROUPS, M, K]`, and its scales.
    a: (Tensor, Tensor),
    /// `[GROUPS, N, K]`, and its scales.
    b: (Tensor, Tensor),
    /// The same as `[GROUPS, K, N]`, contiguous along N.
    b_nn: (Tensor, Tensor),
    counts: Tensor,
    ends: Tensor,
}

fn problem(device: &Device) -> Problem {
    let cast = |seed, rows: usize, granularity| {
        let values = random::normals(seed, rows * K);
        cast_to_fp8(&values, rows, K, DType::E4m3, granularity, ScaleFormat::F32).unwrap()
    };
    let a = cast(1, GROUPS * M, Granularity::PerToken);
    let (blocks, n_blocks, pitch) = (K.div_ceil(128), N.div_ceil(128), N.next_multiple_of(16));
    let mut codes = Vec::new();
    let mut turned = vec![0x7f; GROUPS * K * pitch];
    let mut scales = Vec::new();
    for group in 0..GROUPS {
        let b = cast(10 + group as u64, N, Granularity::PerBlock);
        for (i, code) in b.codes.iter().enumerate() {
            turned[(group * K + i % K) * pitch + i / K] = *code;
        }
        codes.extend(b.codes);
        scales.extend(b.scales);
    }
    let cube =
        |bytes: &[u8], dims: [usize; 3]| Tensor::from_bytes(DType::E4m3, bytes, &dims, device).unwrap();
    let sfb = Tensor::from_slice(&scales, &[GROUPS, n_blocks, blocks], device).unwrap();
    Problem {
        a: (
            cube(&a.codes, [GROUPS, M, K]),
            Tensor::from_slice(&a.scales, &[GROUPS, M, blocks], device).unwrap(),
        ),
        b_nn: (cube(&turned, [GROUPS, K, pitch]).narrow(2, 0, N).unwrap(), sfb.transpose(1, 2).unwrap()),
        b: (cube(&codes, [GROUPS, N, K]), sfb),
        counts: Tensor::from_slice(&[7i32, 0, 40], &[GROUPS], device).unwrap(),
        ends: Tensor::from_slice(&[33i32, 33, 120], &[GROUPS], device).unwrap(),
    }
}

impl Problem {
    fn masked(&self, nn: bool) -> oxigemm::Result<Vec<u8>> {
        let mut d = Tensor::zeros(DType::F32, &[GROUPS, M, N], self.a.0.device())?;
        let options = GemmOptions::default();
        let a = (&self.a.0, &self.a.1);
        match nn {
            true => m_grouped_fp8_gemm_nn_masked(
                a,
                (&self.b_nn.0, &self.b_nn.1),
                &mut d,
                &self.counts,
                20,
                &options,
            )?,
            false => {
                m_grouped_fp8_gemm_nt_masked(a, (&self.b.0, &self.b.1), &mut d, &self.counts, 20, &options)?
            }
        }
        d.to_bytes()
    }

    fn contiguous(&self, b: Option<(&Tensor, &Tensor)>) -> oxigemm::Result<Vec<u8>> {
        let mut d = Tensor::zeros(DType::F32, &[GROUPS * M, N], self.a.0.device())?;
        let options = GemmOptions::default();
        let (a, sfa) = (self.a.0.view(&[GROUPS * M, K])?, self.a.1.view(&[GROUPS * M, K.div_ceil(128)])?);
        let rows = GroupedRows::Ends(&self.ends);
        match b {
            Some(b) => m_grouped_fp8_gemm_nn_contiguous((&a, &sfa), b, &mut d, rows, 1, None, &options)?,
            None => {
                let b = (&self.b.0, &self.b.1);
                m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), b, &mut d, rows, 1, None, &options)?;
            }
        }
        d.to_bytes()
    }
}

#[test]
fn every_schedule_gives_the_bits_of_nt() {
    let sim = Sim::new();
    let problem = problem(&Device::Sim(sim.clone()));
    let (masked, contiguous) = (problem.masked(false).unwrap(), problem.contiguous(None).unwrap());
    same_bits("masked", schedules(), &sim, |about| {
        let found = problem.masked(true).unwrap_or_else(|error| panic!("{about}: {error}"));
        assert_eq!(found, masked, "{about}");
        found
    });
    let view = (&problem.b.0.transpose(1, 2).unwrap(), &problem.b.1.transpose(1, 2).unwrap());
    for b in [(&problem.b_nn.0, &problem.b_nn.1), view] {
        same_bits("contiguous", schedules().step_by(3), &sim, |about| {
            let found = problem.contiguous(Some(b)).unwrap_or_else(|error| panic!("{about}: {error}"));
            assert_eq!(found, contiguous, "{about}");
            found
        });
    }
}

#[test]
fn the_cpu_gives_the_same_as_nt() {
    let problem = problem(&Device::cpu());
    assert_eq!(problem.masked(true).unwrap(), problem.masked(false).unwrap());
    let b = (&problem.b_nn.0, &problem.b_nn.1);
    assert_eq!(problem.contiguous(Some(b)).unwrap(), problem.contiguous(None).unwrap());
}

#[test]
fn addresses_say_the_same_as_tensors() {
    let device = Device::sim();
    let problem = problem(&device);
    let d = Tensor::zeros(DType::F32, &[GROUPS, M, N], &device).unwrap();
    let ([blocks, n_blocks], pitch) = ([K, N].map(|x| x.div_ceil(128)), N.next_multiple_of(16));
    let a = RawMatrix::new(problem.a.0.address(), DType::E4m3, K).groups_apart(M * K);
    let b = RawMatrix::new(problem.b_nn.0.address(), DType::E4m3, pitch).groups_apart(K * pitch);
    let sfa = RawScaleFactors::new(problem.a.1.address(), [blocks, 1]).groups_apart(M * blocks);
    let sfb = RawScaleFactors::new(problem.b.1.address(), [blocks, 1]).groups_apart(n_blocks * blocks);
    let to = RawMatrix::new(d.address(), DType::F32, N).groups_apart(M * N);
    let rows = RawGroups::Masked { masked_m: problem.counts.address(), expected_m: 20 };
    let gemm = RawGemm {
        layout: GemmLayout::Nn,
        grouping: RawGrouping::MGrouped { groups: GROUPS, rows },
        ..RawGemm::new([M, N, K], a, b, to).with_scales(sfa, sfb)
    };
    // SAFETY: the tensors live on, and nobody else uses them.
    unsafe { gemm_raw(&device, &gemm, &GemmOptions::default()).unwrap() };
    assert_eq!(d.to_bytes().unwrap(), problem.masked(false).unwrap());
}

#[test]
fn what_does_not_fit_is_refused_with_its_name() {
    let device = Device::sim();
    let problem = problem(&device);
    let refused = |b: &Tensor, sfb: &Tensor| problem.contiguous(Some((b, sfb))).unwrap_err();
    let (b, sfb) = &problem.b_nn;
    let error = refused(&problem.b.0, sfb);
    assert!(matches!(error, Error::Shape { argument: "a", .. }), "{error}");
    let error = refused(b, &problem.b.1.narrow(1, 0, 1).unwrap().narrow(0, 0, 2).unwrap());
    assert!(matches!(error, Error::ScaleShape { argument: "sfb", .. }), "{error}");
    let narrow = Tensor::zeros(DType::E4m3, &[GROUPS, K, N + 2], &device).unwrap().narrow(2, 0, N).unwrap();
    let error = refused(&narrow, sfb);
    assert!(matches!(error, Error::Tma { argument: "b", .. }), "{error}");
    let error = refused(&b.select(0).unwrap(), sfb);
    assert!(matches!(error, Error::Rank { argument: "b", .. }), "{error}");
}

//! In the batch-invariant mode a row has the same bits alone and in any batch.

use crate::common;
use oxigemm::Granularity;
use oxigemm::cast::{Quantized, ScaleFormat, cast_to_fp8};
use oxigemm::plan::{self, GemmConfig, GemmShape, KOrder, Limits, OperandKind, PlanRequest};
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, GemmLayout, GemmOptions, GroupedRows,
    Tensor, fp8_gemm_nt, fp8_gemm_nt_fused, half_bgemm, half_gemm, m_grouped_fp8_gemm_nt_contiguous, random,
};
use oxigemm_kernels::gemm::operand::f16::Half;
use proptest::prelude::*;

const MOST: usize = 300;
const BATCHES: [usize; 5] = [1, 7, 64, 130, MOST];

fn invariant(choice: Option<GemmConfig>) -> GemmOptions {
    GemmOptions { config: choice, batch_invariant: true, ..Default::default() }
}

struct Fp8 {
    a: Tensor,
    sfa: Tensor,
    b: Tensor,
    sfb: Tensor,
    n: usize,
}

fn fp8(n: usize, k: usize, device: &Device) -> Fp8 {
    let cast = |seed, rows, granularity| {
        let values = random::normals(seed, rows * k);
        cast_to_fp8(&values, rows, k, DType::E4m3, granularity, ScaleFormat::F32).unwrap()
    };
    let scales = |x: &Quantized| Tensor::from_slice(&x.scales, &x.scale_dims(), device).unwrap();
    let (a, b) = (cast(1, MOST, Granularity::PerToken), cast(2, n, Granularity::PerBlock));
    Fp8 { a: common::codes(&a, device), sfa: scales(&a), b: common::codes(&b, device), sfb: scales(&b), n }
}

impl Fp8 {
    /// The rows of D for `count` rows of A from `first` on.
    fn rows(&self, first: usize, count: usize, options: &GemmOptions) -> oxigemm::Result<Vec<u8>> {
        let part = |x: &Tensor| x.narrow(0, first, count);
        let mut d = Tensor::zeros(DType::F32, &[count, self.n], self.a.device())?;
        let (a, sfa) = (part(&self.a)?, part(&self.sfa)?);
        fp8_gemm_nt((&a, &sfa), (&self.b, &self.sfb), Addend::InPlace, &mut d, options)?;
        d.to_bytes()
    }
}

fn request(shape: GemmShape, batch_invariant: bool) -> PlanRequest {
    PlanRequest { batch_invariant, ..PlanRequest::dense(OperandKind::FP8, shape) }
}

/// The configuration that is planned for FP8 operands.
fn planned(shape: GemmShape, batch_invariant: bool) -> GemmConfig {
    plan::plan(&request(shape, batch_invariant), &Limits::h200()).unwrap().config
}

#[test]
fn rows_of_fp8_products_have_the_same_bits_in_every_batch() {
    let device = Device::sim();
    // Deep and narrow: a plan for few rows would split K.
    let x = fp8(40, 4000, &device);
    let few = planned(GemmShape { m: 7, n: 40, k: 4000 }, false);
    assert!(!plan::is_batch_invariant(&few), "{}", plan::name(&few));
    let whole = x.rows(0, MOST, &invariant(None)).unwrap();
    let mut kernels = std::collections::HashSet::new();
    for count in BATCHES {
        let first = (MOST - count) / 2;
        let found = x.rows(first, count, &invariant(None)).unwrap();
        let width = x.n * 4;
        assert!(found == whole[first * width..(first + count) * width], "{count} rows have other bits");
        let shape = GemmShape { m: count as u32, n: 40, k: 4000 };
        kernels.insert(planned(shape, true).kernel);
    }
    assert!(kernels.len() > 1, "different batches take different kernels: {kernels:?}");
}

#[test]
fn finished_rows_have_the_same_bits_in_every_batch() {
    let device = Device::sim();
    let x = fp8(256, 4000, &device);
    let rows = |first, count, options: &GemmOptions| {
        let part = |x: &Tensor| x.narrow(0, first, count);
        let (a, sfa) = (part(&x.a)?, part(&x.sfa)?);
        let mut d = Tensor::zeros(DType::F32, &[count, 128], &device)?;
        let swiglu = Epilogue { activation: Activation::Silu, gated: true, ..Default::default() };
        let output = FusedOutput::Matrix(&mut d);
        fp8_gemm_nt_fused((&a, &sfa), (&x.b, &x.sfb), Addend::None, output, &swiglu, options)?;
        d.to_bytes()
    };
    let (whole, width) = (rows(0, MOST, &invariant(None)).unwrap(), 128 * 4);
    for count in BATCHES {
        let first = (MOST - count) / 2;
        let found = rows(first, count, &invariant(None)).unwrap();
        assert!(found == whole[first * width..(first + count) * width], "{count} rows have other bits");
    }
    // Elsewhere few rows split K, which is refused here.
    let alone = rows(0, 1, &GemmOptions::default()).unwrap();
    assert!(alone != whole[..width], "K was not split");
    let error = rows(0, 1, &invariant(plan::parse("sm90_fp8_split_k_gated_8x256_k8_s2"))).unwrap_err();
    assert!(matches!(error, Error::ConfigBatchInvariant { .. }), "{error}");
}

#[test]
fn rows_have_the_same_bits_in_every_tile_of_a_block() {
    let x = fp8(40, 4096, &Device::sim());
    let rows = |first, count, batch_invariant: bool| {
        let options = GemmOptions {
            num_sms: Some(1),
            batch_invariant,
            k_order: (!batch_invariant).then_some(KOrder::Serpentine),
            ..invariant(plan::parse("sm90_fp8_persistent_128x128_s5_c1x1"))
        };
        x.rows(first, count, &options).unwrap()
    };
    // The second tile of the block, which is the first of another product.
    let (tile, width) = (128, x.n * 4);
    let second = |whole: &[u8]| whole[tile * width..2 * tile * width].to_vec();
    assert!(second(&rows(0, MOST, true)) == rows(tile, tile, true), "rows have other bits");
    assert!(second(&rows(0, MOST, false)) != rows(tile, tile, false), "it takes K from its end");
}

#[test]
fn rows_of_16_bits_have_the_same_bits_in_every_tile_of_a_block() {
    let (device, n, k, tile) = (Device::sim(), 40, 640, 128);
    let a = Tensor::from_f32(DType::Bf16, &random::normals(3, MOST * k), &[MOST, k], &device).unwrap();
    let b = Tensor::from_f32(DType::Bf16, &random::normals(4, n * k), &[n, k], &device).unwrap();
    let rows = |first: usize, count: usize, batch_invariant: bool| {
        let choice = plan::parse("sm90_bf16_persistent_nt_128x256_s3_c1x1");
        assert!(choice.is_some());
        let k_order = (!batch_invariant).then_some(KOrder::Serpentine);
        let options = GemmOptions { num_sms: Some(1), batch_invariant, k_order, ..invariant(choice) };
        let mut d = Tensor::zeros(DType::F32, &[count, n], &device).unwrap();
        let a = a.narrow(0, first, count).unwrap();
        half_gemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).unwrap();
        d.to_bytes().unwrap()
    };
    let second = |whole: &[u8]| whole[tile * n * 4..2 * tile * n * 4].to_vec();
    assert!(second(&rows(0, MOST, true)) == rows(tile, tile, true), "rows have other bits");
    assert!(second(&rows(0, MOST, false)) != rows(tile, tile, false), "it takes K from its end");
}

/// Without any option, the rows of a batch of 16-bit GEMMs are the same wherever they stand: every tile has forward K.
#[test]
fn rows_of_a_16_bit_batch_do_not_depend_on_their_place() {
    // As many tiles, and rows as long, as serpentine K takes; one CTA has all of them.
    let (device, batch, rows, n, k) = (Device::sim(), 2, 512, 16, 3072);
    let config = plan::parse("sm90_bf16_persistent_m_grouped_nt_64x128_s8_c1x1");
    assert!(config.is_some());
    let drawn = random::normals(5, batch * rows * k);
    // Every GEMM of the batch multiplies the same B.
    let weights = random::normals(6, n * k).repeat(batch);
    let b = Tensor::from_f32(DType::Bf16, &weights, &[batch, n, k], &device).unwrap();
    // Row `i` of the batch stands where row `i + by` did.
    let products = |by: usize, k_order| {
        let values: Vec<f32> = [&drawn[by * k..], &drawn[..by * k]].concat();
        let a = Tensor::from_f32(DType::Bf16, &values, &[batch, rows, k], &device).unwrap();
        let mut d = Tensor::zeros(DType::F32, &[batch, rows, n], &device).unwrap();
        let options = GemmOptions { config, num_sms: Some(1), k_order, ..Default::default() };
        half_bgemm(GemmLayout::Nt, &a, &b, Addend::None, &mut d, &options).unwrap();
        let mut bytes = d.to_bytes().unwrap();
        bytes.rotate_right(by * n * 4);
        bytes
    };
    // To the next tile, into the middle of one, and to the other GEMM.
    let whole = products(0, None);
    for by in [64, 100, rows] {
        assert!(products(by, None) == whole, "rows have other bits {by} places further");
    }
    let serpentine = Some(KOrder::Serpentine);
    assert!(products(64, serpentine) != products(0, serpentine), "serpentine K depends on the tile");
}

#[test]
fn serpentine_k_is_refused_in_a_batch_invariant_call() {
    let x = fp8(64, 512, &Device::sim());
    let options = GemmOptions { k_order: Some(KOrder::Serpentine), ..invariant(None) };
    let error = x.rows(0, 3, &options).unwrap_err();
    assert!(matches!(error, Error::KOrderBatchInvariant), "{error}");
    assert_eq!(error.to_string(), "k_order is Serpentine: expected Forward, as the call is batch-invariant");
}

/// A raster band changes which CTA computes which tile, and no bit.
#[test]
fn raster_bands_do_not_change_the_result() {
    let x = fp8(200, 256, &Device::sim());
    let config = plan::parse("sm90_fp8_persistent_64x128_s8_c1x1");
    assert!(config.is_some());
    let rows = |raster_band| {
        let k_order = Some(KOrder::Forward);
        let options = GemmOptions { config, num_sms: Some(2), k_order, raster_band, ..Default::default() };
        x.rows(0, MOST, &options).unwrap()
    };
    let planned = rows(None);
    for band in [0, 1, 3, 64, u32::MAX] {
        assert!(rows(Some(band)) == planned, "band {band}");
    }
}

#[test]
fn rows_of_groups_are_those_of_a_product_alone() {
    let device = Device::sim();
    let (n, k) = (72, 400);
    let x = fp8(n, k, &device);
    let (rows, options) = (130, invariant(None));
    let part = |t: &Tensor, count| t.narrow(0, 0, count).unwrap();
    let cube = |t: &Tensor| {
        let [rows, columns] = [t.dims()[0], t.dims()[1]];
        let pitch = columns.next_multiple_of(16);
        let mut whole =
            Tensor::zeros(t.dtype(), &[1, rows, pitch], &device).unwrap().narrow(2, 0, columns).unwrap();
        whole.write_bytes(&t.to_bytes().unwrap()).unwrap();
        whole
    };
    let (b, sfb) = (cube(&x.b), cube(&x.sfb));
    let mut d = Tensor::zeros(DType::F32, &[rows, n], &device).unwrap();
    let ends = Tensor::from_slice(&[rows as i32], &[1], &device).unwrap();
    let (a, sfa) = (part(&x.a, rows), part(&x.sfa, rows));
    let groups = GroupedRows::Ends(&ends);
    m_grouped_fp8_gemm_nt_contiguous((&a, &sfa), (&b, &sfb), &mut d, groups, 1, None, &options).unwrap();
    let grouped = d.to_bytes().unwrap();
    for count in [1, 9, rows] {
        let alone = x.rows(0, count, &options).unwrap();
        assert!(alone == grouped[..count * n * 4], "{count} rows have other bits");
    }
}

#[test]
fn rows_of_16_bit_products_have_the_same_bits_in_every_batch() {
    let device = Device::sim();
    let (n, k) = (40, 4000);
    for (element, dtype, layout) in
        [(Half::Bf16, DType::Bf16, GemmLayout::Nt), (Half::F16, DType::F16, GemmLayout::Nn)]
    {
        let a = Tensor::from_f32(dtype, &random::normals(3, MOST * k), &[MOST, k], &device).unwrap();
        let b_dims = if layout == GemmLayout::Nt { [n, k] } else { [k, n] };
        let b = Tensor::from_f32(dtype, &random::normals(4, n * k), &b_dims, &device).unwrap();
        let operands = OperandKind::f16(layout.operands(element));
        let few = PlanRequest::dense(operands, GemmShape { m: 7, n: n as u32, k: k as u32 });
        let few = plan::plan(&few, &Limits::h200()).unwrap().config;
        assert!(!plan::is_batch_invariant(&few), "{}", plan::name(&few));
        let rows = |first: usize, count: usize| {
            let mut d = Tensor::zeros(DType::F32, &[count, n], &device).unwrap();
            let a = a.narrow(0, first, count).unwrap();
            half_gemm(layout, &a, &b, Addend::None, &mut d, &invariant(None)).unwrap();
            d.to_bytes().unwrap()
        };
        let whole = rows(0, MOST);
        for count in BATCHES {
            let first = (MOST - count) / 2;
            let same = rows(first, count) == whole[first * n * 4..(first + count) * n * 4];
            assert!(same, "{dtype} {layout}: {count} rows have other bits");
        }
    }
}

#[test]
fn a_choice_that_splits_k_is_refused() {
    let x = fp8(64, 512, &Device::sim());
    let error = x.rows(0, 3, &invariant(plan::parse("sm90_fp8_split_k_8x64_k2_s2"))).unwrap_err();
    assert!(matches!(error, Error::ConfigBatchInvariant { .. }), "{error}");
    assert!(error.to_string().contains("sm90_fp8_split_k_8x64_k2_s2"), "{error}");
    let one = x.rows(0, 3, &invariant(plan::parse("sm90_fp8_split_k_8x64_k1_s2"))).unwrap();
    assert_eq!(one, x.rows(0, 3, &invariant(plan::parse("sm90_fp8_persistent_128x176_s4_c2x1"))).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any rows of any batch, in kernels that planning would never take for them.
    #[test]
    fn every_kernel_that_does_not_split_k_gives_the_same_bits(
        (n, k) in (1..200usize, 1..700usize),
        (first, count) in (0..100usize, 1..80usize),
        (one, other) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let x = fp8(n, k, &Device::sim());
        let shape = GemmShape { m: count as u32, n: n as u32, k: k as u32 };
        let all = |shape: GemmShape| -> Vec<GemmConfig> {
            let mut all = plan::rank(&request(shape, true), &Limits::h200());
            // An order that does not depend on estimates.
            all.sort_by_key(|(config, _)| plan::name(config));
            all.into_iter().map(|(config, _)| config).collect()
        };
        let larger = GemmShape { m: 200, ..shape };
        let (one, other) = (*one.get(&all(shape)), *other.get(&all(larger)));
        let found = x.rows(first, count, &invariant(Some(one))).unwrap();
        let whole = x.rows(0, 200, &invariant(Some(other))).unwrap();
        prop_assert!(
            found == whole[first * n * 4..(first + count) * n * 4],
            "{} and {}", plan::name(&one), plan::name(&other)
        );
    }
}

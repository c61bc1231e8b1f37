//! Every function that launches can be captured once it was called: a replay gives the bits of the direct call.

mod moe;

use oxigemm::cast::ScaleFormat;
use oxigemm::check::Logits;
use oxigemm::{
    Activation, Addend, DType, Device, Epilogue, Error, FusedOutput, GemmLayout, GemmOptions, Granularity,
    GroupedRows, HeadSplits, LaunchOptions, Result, RowGroups, Stream, Tensor, TensorScale, TransposedCopy,
    dequantize, dequantize_nvfp4, einsum, fp8_bgemm_nn, fp8_bgemm_nt, fp8_einsum, fp8_gemm, fp8_gemm_nt,
    fp8_gemm_nt_fused, fp8_gemm_nt_skip_head_mid, fp8_mqa_logits, fp8_paged_mqa_logits, gather_quantize,
    get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor, get_mn_major_tma_aligned_packed_ue8m0_tensor,
    get_mn_major_tma_aligned_tensor, get_paged_mqa_logits_metadata, half_bgemm, half_bgemm_nt_summed,
    half_gemm, half_gemm_nt_fused, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_tn_contiguous,
    k_grouped_half_gemm, m_grouped_fp8_gemm_nn_contiguous, m_grouped_fp8_gemm_nn_masked,
    m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_fused, m_grouped_fp8_gemm_nt_masked,
    m_grouped_half_gemm, m_grouped_half_gemm_nt_fused, packed_scales, quantize, quantize_by_scale,
    quantize_nvfp4, quantize_with_transpose, random, rms_norm_quantize, swiglu_quantize,
    tf32_hc_prenorm_gemm, tma_aligned_scales, transform_scales, transform_sf_into_required_layout,
};

const LAYOUTS: [GemmLayout; 4] = [GemmLayout::Nt, GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt];

/// What outputs hold before a call.
const FILL: u8 = 0x11;

/// A simulated device with a stream to capture.
struct Setup {
    device: Device,
    stream: Stream,
    gemm: GemmOptions,
    launch: LaunchOptions,
}

impl Setup {
    fn new() -> Setup {
        let device = Device::sim();
        let stream = device.new_stream().unwrap();
        Setup {
            gemm: GemmOptions { stream: Some(stream.clone()), ..Default::default() },
            launch: LaunchOptions { stream: Some(stream.clone()), ..Default::default() },
            device,
            stream,
        }
    }

    /// Normal numbers.
    fn normals(&self, dtype: DType, dims: &[usize]) -> Tensor {
        let values = random::normals(1 + dims.len() as u64, dims.iter().product());
        Tensor::from_f32(dtype, &values, dims, &self.device).unwrap()
    }

    /// Scales between 0.5 and 2.
    fn scales(&self, dims: &[usize]) -> Tensor {
        let values: Vec<f32> =
            (0..dims.iter().product()).map(|i: usize| 0.5 + (i % 7) as f32 / 4.0).collect();
        Tensor::from_f32(DType::F32, &values, dims, &self.device).unwrap()
    }

    fn numbers(&self, numbers: &[i32]) -> Tensor {
        Tensor::from_slice(numbers, &[numbers.len()], &self.device).unwrap()
    }

    fn output(&self, dtype: DType, dims: &[usize]) -> Tensor {
        Tensor::zeros(dtype, dims, &self.device).unwrap()
    }

    /// Calls a function directly, captures it, and replays the graph twice, each time with outputs that were filled anew.
    fn check(&self, what: &str, outputs: &[&Tensor], call: impl Fn() -> Result<()>) {
        let bytes = || outputs.iter().map(|output| output.to_bytes().unwrap()).collect::<Vec<_>>();
        let fill = || {
            for output in outputs {
                let filled = vec![FILL; output.len() * output.dtype().size()];
                Tensor::clone(output).write_bytes(&filled).unwrap();
            }
            bytes()
        };
        let filled = fill();
        call().unwrap_or_else(|error| panic!("{what}: {error}"));
        let direct = bytes();
        for (nth, (direct, filled)) in direct.iter().zip(&filled).enumerate() {
            assert_ne!(direct, filled, "{what}: output {nth} is not written");
        }
        fill();
        let graph =
            self.stream.capture(|_| call()).unwrap_or_else(|error| panic!("{what}, captured: {error}"));
        assert_eq!(bytes(), filled, "{what}: a capture does nothing");
        for _ in 0..2 {
            fill();
            graph.launch(&self.stream).unwrap_or_else(|error| panic!("{what}, replayed: {error}"));
            assert_eq!(bytes(), direct, "{what}: other bits than the direct call");
        }
    }

    /// An operand `[rows, columns]`, or its transpose in memory where it is `flipped`.
    fn oriented(&self, dtype: DType, [rows, columns]: [usize; 2], flipped: bool) -> Tensor {
        self.normals(dtype, &if flipped { [columns, rows] } else { [rows, columns] })
    }

    fn oriented_scales(&self, [rows, columns]: [usize; 2], flipped: bool) -> Tensor {
        self.scales(&if flipped { [columns, rows] } else { [rows, columns] })
    }
}

/// Whether A, and B, are transposed in a layout.
fn flipped(layout: GemmLayout) -> [bool; 2] {
    [matches!(layout, GemmLayout::Tn | GemmLayout::Tt), matches!(layout, GemmLayout::Nn | GemmLayout::Tn)]
}

#[test]
fn dense_fp8_gemms_of_every_layout() {
    let s = Setup::new();
    let [m, n, k] = [16, 128, 256];
    for layout in LAYOUTS {
        let [a_flipped, b_flipped] = flipped(layout);
        let (a, sfa) =
            (s.oriented(DType::E4m3, [m, k], a_flipped), s.oriented_scales([m, k / 128], a_flipped));
        let (b, sfb) =
            (s.oriented(DType::E4m3, [n, k], b_flipped), s.oriented_scales([n / 128, k / 128], b_flipped));
        let d = s.output(DType::Bf16, &[m, n]);
        s.check(&format!("fp8_gemm {layout}"), &[&d], || {
            fp8_gemm(layout, (&a, &sfa), (&b, &sfb), Addend::None, &mut d.clone(), &s.gemm)
        });
    }
    // More rows than the split-K kernels take, 1D1D scales, an addend, and a GEMM without K.
    let [m, n, k] = [160, 128, 128];
    let (a, sfa) = (s.normals(DType::E4m3, &[m, k]), s.scales(&[m, 1]));
    let (b, sfb, rows_sfb) = (s.normals(DType::E4m3, &[n, k]), s.scales(&[1, 1]), s.scales(&[n, 1]));
    let (c, d) = (s.normals(DType::F32, &[m, n]), s.output(DType::F32, &[m, n]));
    s.check("fp8_gemm_nt of many rows", &[&d], || {
        fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::From(&c), &mut d.clone(), &s.gemm)
    });
    s.check("fp8_gemm_nt with 1D1D scales", &[&d], || {
        fp8_gemm_nt((&a, &sfa), (&b, &rows_sfb), Addend::InPlace, &mut d.clone(), &s.gemm)
    });
    for (what, rows_of_sfb) in [("1x32", n), ("32x32", n / 32)] {
        let (sfa, sfb) = (s.scales(&[m, k / 32]), s.scales(&[rows_of_sfb, k / 32]));
        s.check(&format!("fp8_gemm_nt with {what} scales of B"), &[&d], || {
            fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::From(&c), &mut d.clone(), &s.gemm)
        });
    }
    let (a, sfa) = (s.output(DType::E4m3, &[m, 0]), s.output(DType::F32, &[m, 0]));
    let (b, sfb) = (s.output(DType::E4m3, &[n, 0]), s.output(DType::F32, &[1, 0]));
    for (what, c) in [("clears", Addend::None), ("copies", Addend::From(&c))] {
        s.check(&format!("fp8_gemm_nt without K {what}"), &[&d], || {
            fp8_gemm_nt((&a, &sfa), (&b, &sfb), c, &mut d.clone(), &s.gemm)
        });
    }
}

#[test]
fn dense_16_bit_gemms_of_every_layout() {
    let s = Setup::new();
    for (layout, m) in LAYOUTS.into_iter().flat_map(|layout| [(layout, 16), (layout, 160)]) {
        let [n, k] = [64, 64];
        let [a_flipped, b_flipped] = flipped(layout);
        for dtype in [DType::Bf16, DType::F16] {
            let a = s.oriented(dtype, [m, k], a_flipped);
            let b = s.oriented(dtype, [n, k], b_flipped);
            let d = s.output(dtype, &[m, n]);
            s.check(&format!("half_gemm {layout} of {dtype} and {m} rows"), &[&d], || {
                half_gemm(layout, &a, &b, Addend::InPlace, &mut d.clone(), &s.gemm)
            });
        }
    }
}

#[test]
fn fused_gemms() {
    let s = Setup::new();
    let [m, n, k] = [16, 128, 128];
    let (a, sfa) = (s.normals(DType::E4m3, &[m, k]), s.scales(&[m, 1]));
    let (b, sfb) = (s.normals(DType::E4m3, &[n, k]), s.scales(&[1, 1]));
    let bias = s.normals(DType::F32, &[n]);
    let silu = Epilogue { bias: Some(&bias), activation: Activation::Silu, alpha: 0.5, ..Default::default() };
    let d = s.output(DType::Bf16, &[m, n]);
    s.check("fp8_gemm_nt_fused", &[&d], || {
        let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
        fp8_gemm_nt_fused(a, b, Addend::None, FusedOutput::Matrix(d), &silu, &s.gemm)
    });
    let (codes, scales) = (s.output(DType::E4m3, &[m, n]), s.output(DType::F32, &[m, 1]));
    s.check("fp8_gemm_nt_fused with FP8 output", &[&codes, &scales], || {
        let (d, scales) = (&mut codes.clone(), &mut scales.clone());
        let d = FusedOutput::Fp8 { d, scales, format: ScaleFormat::F32 };
        fp8_gemm_nt_fused((&a, &sfa), (&b, &sfb), Addend::None, d, &silu, &s.gemm)
    });
    let heads = HeadSplits { left: 32, mid: 16, right: 32 };
    let (b, sfb) = (s.normals(DType::E4m3, &[128, k]), s.scales(&[1, 1]));
    let d = s.output(DType::Bf16, &[m, 128 + 2 * 16]);
    s.check("fp8_gemm_nt_skip_head_mid", &[&d], || {
        fp8_gemm_nt_skip_head_mid((&a, &sfa), (&b, &sfb), &mut d.clone(), heads, &s.gemm)
    });
    let (a, b) = (s.normals(DType::Bf16, &[m, k]), s.normals(DType::Bf16, &[n, k]));
    let d = s.output(DType::Bf16, &[m, n]);
    s.check("half_gemm_nt_fused", &[&d], || {
        let d = FusedOutput::Matrix(&mut d.clone());
        half_gemm_nt_fused(&a, &b, Addend::None, d, &silu, &s.gemm)
    });
}

#[test]
fn batched_gemms_sums_and_einsums() {
    let s = Setup::new();
    let [g, m, n, k] = [2, 16, 128, 128];
    let (a, sfa) = (s.normals(DType::E4m3, &[g, m, k]), s.scales(&[g, m, 1]));
    let (b, sfb) = (s.normals(DType::E4m3, &[g, n, k]), s.scales(&[g, 1, 1]));
    let d = s.output(DType::Bf16, &[g, m, n]);
    s.check("fp8_bgemm_nt", &[&d], || fp8_bgemm_nt((&a, &sfa), (&b, &sfb), &mut d.clone(), &s.gemm));
    s.check("fp8_bgemm_nn", &[&d], || fp8_bgemm_nn((&a, &sfa), (&b, &sfb), &mut d.clone(), &s.gemm));
    let (x, sfx) = (s.normals(DType::E4m3, &[m, g, k]), s.scales(&[m, g, 1]));
    let y = s.output(DType::Bf16, &[m, g, n]);
    for expression in ["bhr,hdr->bhd", "bhd,hdr->bhr"] {
        s.check(&format!("fp8_einsum {expression}"), &[&y], || {
            fp8_einsum(expression, (&x, &sfx), (&b, &sfb), &mut y.clone(), &s.gemm)
        });
    }
    let (a, b) = (s.normals(DType::Bf16, &[g, m, k]), s.normals(DType::Bf16, &[g, n, k]));
    for layout in [GemmLayout::Nt, GemmLayout::Nn] {
        s.check(&format!("half_bgemm {layout}"), &[&d], || {
            half_bgemm(layout, &a, &b, Addend::None, &mut d.clone(), &s.gemm)
        });
    }
    let x = s.normals(DType::Bf16, &[m, g, k]);
    for expression in ["bhr,hdr->bhd", "bhd,hdr->bhr"] {
        s.check(&format!("einsum {expression}"), &[&y], || {
            einsum(expression, &x, &b, Addend::None, &mut y.clone(), &s.gemm)
        });
    }
    let d = s.output(DType::F32, &[m, n]);
    s.check("half_bgemm_nt_summed", &[&d], || {
        half_bgemm_nt_summed(&a, &b, Addend::InPlace, &mut d.clone(), &s.gemm)
    });
}

#[test]
fn m_grouped_fp8_gemms() {
    let s = Setup::new();
    let [g, m, n, k] = [2, 32, 128, 128];
    let (b, sfb) = (s.normals(DType::E4m3, &[g, n, k]), s.scales(&[g, 1, 1]));
    let bias = s.normals(DType::F32, &[n]);
    let relu = Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Default::default() };
    let (a, sfa) = (s.normals(DType::E4m3, &[m, k]), s.scales(&[m, 1]));
    let ids = s.numbers(&[[0; 16], [1; 16]].concat());
    let ends = s.numbers(&[16, 30]);
    let d = s.output(DType::Bf16, &[m, n]);
    for rows in [GroupedRows::Ids(&ids), GroupedRows::Ends(&ends)] {
        s.check(&format!("m_grouped_fp8_gemm_nt_contiguous {rows:?}"), &[&d], || {
            let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
            m_grouped_fp8_gemm_nt_contiguous(a, b, d, rows, 16, None, &s.gemm)
        });
        s.check(&format!("m_grouped_fp8_gemm_nn_contiguous {rows:?}"), &[&d], || {
            let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
            m_grouped_fp8_gemm_nn_contiguous(a, b, d, rows, 16, None, &s.gemm)
        });
        let groups = RowGroups::Contiguous { rows, alignment: 16, expected_m: None };
        s.check(&format!("m_grouped_fp8_gemm_nt_fused {rows:?}"), &[&d], || {
            let (a, b, d) = ((&a, &sfa), (&b, &sfb), FusedOutput::Matrix(&mut d.clone()));
            m_grouped_fp8_gemm_nt_fused(a, b, Addend::None, d, groups, &relu, &s.gemm)
        });
    }
    let (a, sfa) = (s.normals(DType::E4m3, &[g, m, k]), s.scales(&[g, m, 1]));
    let masked_m = s.numbers(&[20, 3]);
    let d = s.output(DType::Bf16, &[g, m, n]);
    s.check("m_grouped_fp8_gemm_nt_masked", &[&d], || {
        let (a, b) = ((&a, &sfa), (&b, &sfb));
        m_grouped_fp8_gemm_nt_masked(a, b, &mut d.clone(), &masked_m, 16, &s.gemm)
    });
    s.check("m_grouped_fp8_gemm_nn_masked", &[&d], || {
        let (a, b) = ((&a, &sfa), (&b, &sfb));
        m_grouped_fp8_gemm_nn_masked(a, b, &mut d.clone(), &masked_m, 16, &s.gemm)
    });
    s.check("m_grouped_fp8_gemm_nt_fused, masked", &[&d], || {
        let (a, b, d) = ((&a, &sfa), (&b, &sfb), FusedOutput::Matrix(&mut d.clone()));
        let groups = RowGroups::Masked { masked_m: &masked_m, expected_m: 16 };
        m_grouped_fp8_gemm_nt_fused(a, b, Addend::None, d, groups, &relu, &s.gemm)
    });
}

#[test]
fn m_grouped_16_bit_gemms() {
    let s = Setup::new();
    let [g, m, n, k] = [2, 32, 64, 64];
    let b = s.normals(DType::Bf16, &[g, n, k]);
    let bias = s.normals(DType::F32, &[n]);
    let gelu = Epilogue { bias: Some(&bias), activation: Activation::Gelu, ..Default::default() };
    let ids = s.numbers(&[[0; 16], [1; 16]].concat());
    let masked_m = s.numbers(&[20, 3]);
    let contiguous = RowGroups::Contiguous { rows: GroupedRows::Ids(&ids), alignment: 16, expected_m: None };
    let masked = RowGroups::Masked { masked_m: &masked_m, expected_m: 16 };
    for (groups, dims) in [(contiguous, vec![m, k]), (masked, vec![g, m, k])] {
        let a = s.normals(DType::Bf16, &dims);
        let d = s.output(DType::Bf16, &[&dims[..dims.len() - 1], &[n]].concat());
        for layout in [GemmLayout::Nt, GemmLayout::Nn] {
            s.check(&format!("m_grouped_half_gemm {layout} {groups:?}"), &[&d], || {
                m_grouped_half_gemm(layout, &a, &b, Addend::None, &mut d.clone(), groups, &s.gemm)
            });
        }
        s.check(&format!("m_grouped_half_gemm_nt_fused {groups:?}"), &[&d], || {
            let d = FusedOutput::Matrix(&mut d.clone());
            m_grouped_half_gemm_nt_fused(&a, &b, Addend::None, d, groups, &gelu, &s.gemm)
        });
    }
}

#[test]
fn k_grouped_gemms() {
    let s = Setup::new();
    let [g, m, n, k] = [2, 16, 32, 160];
    let ks = s.numbers(&[128, 32]);
    let d = s.output(DType::F32, &[g, m, n]);
    let (a, sfa) = (s.normals(DType::E4m3, &[m * k]), s.scales(&[m, 2]));
    let (b, sfb) = (s.normals(DType::E4m3, &[n * k]), s.scales(&[n, 2]));
    s.check("k_grouped_fp8_gemm_nt_contiguous", &[&d], || {
        let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
        k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::InPlace, d, &ks, None, &s.gemm)
    });
    let (a, sfa) = (s.normals(DType::E4m3, &[k, m]), s.scales(&[2, m]));
    let (b, sfb) = (s.normals(DType::E4m3, &[k, n]), s.scales(&[2, n]));
    s.check("k_grouped_fp8_gemm_tn_contiguous", &[&d], || {
        let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
        k_grouped_fp8_gemm_tn_contiguous(a, b, Addend::InPlace, d, &ks, None, &s.gemm)
    });
    // Exponents of 1: scales are unpacked into the workspace first.
    let exponents = |rows: usize| Tensor::from_slice(&vec![127i32; rows], &[rows, 1], &s.device).unwrap();
    let (a, sfa) = (s.normals(DType::E4m3, &[m * k]), exponents(m));
    let (b, sfb) = (s.normals(DType::E4m3, &[n * k]), exponents(n));
    s.check("k_grouped_fp8_gemm_nt_contiguous with UE8M0 scales", &[&d], || {
        let (a, b, d) = ((&a, &sfa), (&b, &sfb), &mut d.clone());
        k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::InPlace, d, &ks, None, &s.gemm)
    });
    for (layout, flipped) in [(GemmLayout::Nt, false), (GemmLayout::Tn, true)] {
        let a = s.oriented(DType::Bf16, [m, k], flipped);
        let b = s.oriented(DType::Bf16, [n, k], flipped);
        s.check(&format!("k_grouped_half_gemm {layout}"), &[&d], || {
            k_grouped_half_gemm(layout, &a, &b, Addend::InPlace, &mut d.clone(), &ks, None, &s.gemm)
        });
    }
}

#[test]
fn quantization_of_every_granularity() {
    let s = Setup::new();
    let [m, k] = [130, 256];
    let x = s.normals(DType::Bf16, &[m, k]);
    let granularities = [
        Granularity::PerToken,
        Granularity::PerGroup32,
        Granularity::PerBlock,
        Granularity::PerChannel,
        Granularity::PerRow,
        Granularity::PerTensor,
    ];
    let (codes, back) = (s.output(DType::E4m3, &[m, k]), s.output(DType::Bf16, &[m, k]));
    for granularity in granularities {
        let scales = s.output(DType::F32, &granularity.scale_dims(m, k));
        s.check(&format!("quantize {granularity}"), &[&codes, &scales], || {
            let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
            quantize(&x, codes, scales, granularity, ScaleFormat::F32, &s.launch)
        });
        s.check(&format!("dequantize {granularity}"), &[&back], || {
            dequantize(&codes, &scales, &mut back.clone(), granularity, &s.launch)
        });
    }
    // Rows without vectors are not for the kernel with a grid barrier.
    let x = s.normals(DType::Bf16, &[m, 255]);
    let (codes, scales) = (s.output(DType::E4m3, &[m, 255]), s.output(DType::F32, &[1, 1]));
    s.check("quantize 1 scale by two kernels", &[&codes, &scales], || {
        let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
        quantize(&x, codes, scales, Granularity::PerTensor, ScaleFormat::F32, &s.launch)
    });
}

#[test]
fn fused_quantization() {
    let s = Setup::new();
    let [m, k] = [5, 256];
    let (x, gates) = (s.normals(DType::Bf16, &[m, k]), s.normals(DType::Bf16, &[m, 2 * k]));
    let (codes, scales) = (s.output(DType::E4m3, &[m, k]), s.output(DType::F32, &[m, k / 128]));
    let outputs = [&codes, &scales];
    let format = ScaleFormat::F32;
    s.check("swiglu_quantize", &outputs, || {
        swiglu_quantize(&gates, &mut codes.clone(), &mut scales.clone(), format, &s.launch)
    });
    let rows = s.numbers(&[4, 0, -1, 2, 2]);
    s.check("gather_quantize", &outputs, || {
        gather_quantize(&x, &rows, &mut codes.clone(), &mut scales.clone(), format, &s.launch)
    });
    let weight = s.normals(DType::Bf16, &[k]);
    s.check("rms_norm_quantize", &outputs, || {
        let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
        rms_norm_quantize(&x, &weight, 1e-6, codes, scales, format, &s.launch)
    });
    let scale = s.scales(&[1, 1]);
    s.check("quantize_by_scale", &[&codes], || quantize_by_scale(&x, &scale, &mut codes.clone(), &s.launch));
    let transposed = s.output(DType::E4m3, &[k, m]);
    let transposed_scales = s.output(DType::F32, &[k, 1]);
    s.check("quantize_with_transpose 1x128", &[&codes, &scales, &transposed, &transposed_scales], || {
        let copy =
            TransposedCopy { codes: &mut transposed.clone(), scales: Some(&mut transposed_scales.clone()) };
        let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
        quantize_with_transpose(&x, codes, scales, copy, Granularity::PerToken, format, &s.launch)
    });
    let block_scales = s.output(DType::F32, &[1, k / 128]);
    s.check("quantize_with_transpose 128x128", &[&codes, &block_scales, &transposed], || {
        let copy = TransposedCopy { codes: &mut transposed.clone(), scales: None };
        let (codes, scales) = (&mut codes.clone(), &mut block_scales.clone());
        quantize_with_transpose(&x, codes, scales, copy, Granularity::PerBlock, format, &s.launch)
    });
}

#[test]
fn nvfp4_and_scale_layouts() {
    let s = Setup::new();
    let [m, k] = [5, 64];
    let x = s.normals(DType::Bf16, &[m, k]);
    let (codes, scales) = (s.output(DType::U8, &[m, k / 2]), s.output(DType::E4m3, &[m, k / 16]));
    let tensor_scale = s.output(DType::F32, &[1]);
    s.check("quantize_nvfp4", &[&codes, &scales, &tensor_scale], || {
        let tensor_scale = &mut tensor_scale.clone();
        let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
        quantize_nvfp4(&x, codes, scales, TensorScale::Computed(tensor_scale), &s.launch)
    });
    let given = s.scales(&[1]);
    s.check("quantize_nvfp4 by a given scale", &[&codes, &scales], || {
        let (codes, scales) = (&mut codes.clone(), &mut scales.clone());
        quantize_nvfp4(&x, codes, scales, TensorScale::Given(&given), &s.launch)
    });
    let back = s.output(DType::Bf16, &[m, k]);
    s.check("dequantize_nvfp4", &[&back], || {
        dequantize_nvfp4(&codes, &scales, &given, &mut back.clone(), &s.launch)
    });
    let from = s.scales(&[6, 8]);
    let aligned = tma_aligned_scales(6, 8, &s.device).unwrap();
    let packed = packed_scales(6, 8, &s.device).unwrap();
    for to in [&aligned, &packed] {
        s.check(&format!("transform_scales to {}", to.dtype()), &[to], || {
            transform_scales(&from, &mut to.clone(), &s.launch)
        });
    }
}

#[test]
fn mqa_logits() {
    let s = Setup::new();
    let [queries, heads, dim, keys] = [3, 8, 32, 40];
    let (q, kv) = (s.normals(DType::E4m3, &[queries, heads, dim]), s.normals(DType::E4m3, &[keys, dim]));
    let (kv_scales, weights) = (s.scales(&[keys]), s.scales(&[queries, heads]));
    let (starts, ends) = (s.numbers(&[0, 3, 1]), s.numbers(&[10, 40, 1]));
    let logits = s.output(DType::F32, &[queries, keys]);
    for form in [Logits::Clean, Logits::Partial, Logits::Compressed] {
        s.check(&format!("fp8_mqa_logits {form:?}"), &[&logits], || {
            let (kv, ranges, logits) = ((&kv, &kv_scales), [&starts, &ends], &mut logits.clone());
            fp8_mqa_logits(&q, kv, &weights, ranges, logits, form, &s.gemm)
        });
    }
    let lengths = s.numbers(&[17, 5, 30]);
    let schedule = s.output(DType::I32, &[4 + 1, 2]);
    s.check("get_paged_mqa_logits_metadata", &[&schedule], || {
        get_paged_mqa_logits_metadata(&lengths, &mut schedule.clone(), &s.gemm)
    });
    let q = s.normals(DType::E4m3, &[queries, 1, heads, dim]);
    let scale: Vec<u8> = [1.5f32; 16].iter().flat_map(|x| x.to_le_bytes()).collect();
    let page = [vec![0x30; 16 * dim], scale].concat();
    let kv_cache = Tensor::from_bytes(DType::E4m3, &page.repeat(2), &[2, 16, 1, dim + 4], &s.device).unwrap();
    let table = Tensor::from_slice(&[1, 0, 0, 1, 1, 1], &[queries, 2], &s.device).unwrap();
    let logits = s.output(DType::F32, &[queries, 32]);
    s.check("fp8_paged_mqa_logits", &[&logits], || {
        let lists = [&lengths, &table, &schedule];
        fp8_paged_mqa_logits(&q, &kv_cache, &weights, lists, &mut logits.clone(), true, &s.gemm)
    });
}

/// Heads that are padded, more queries of a sequence than dedicated kernels have, and pages that are larger than a tile.
#[test]
fn mqa_logits_of_padded_kernels() {
    let s = Setup::new();
    let [sequences, next, heads, dim, keys] = [2, 5, 24, 32, 40];
    let q = s.normals(DType::E4m3, &[sequences, next, heads, dim]);
    let weights = s.scales(&[sequences * next, heads]);
    let (kv, kv_scales) = (s.normals(DType::E4m3, &[keys, dim]), s.scales(&[keys]));
    let (starts, ends) = (s.numbers(&[0, 3]), s.numbers(&[10, 40]));
    let logits = s.output(DType::F32, &[sequences, keys]);
    let (some_q, some_weights) =
        (s.normals(DType::E4m3, &[sequences, heads, dim]), s.scales(&[sequences, heads]));
    s.check("fp8_mqa_logits of 24 heads", &[&logits], || {
        let (kv, ranges, logits) = ((&kv, &kv_scales), [&starts, &ends], &mut logits.clone());
        fp8_mqa_logits(&some_q, kv, &some_weights, ranges, logits, Logits::Clean, &s.gemm)
    });
    let lengths =
        Tensor::from_slice(&[17, 5, 30, 0, 9, 1, 2, 3, 4, 31], &[sequences, next], &s.device).unwrap();
    let schedule = s.output(DType::I32, &[4 + 1, 2]);
    s.check("get_paged_mqa_logits_metadata of 5 queries", &[&schedule], || {
        get_paged_mqa_logits_metadata(&lengths, &mut schedule.clone(), &s.gemm)
    });
    let scale: Vec<u8> = [1.5f32; 256].iter().flat_map(|x| x.to_le_bytes()).collect();
    let page = [vec![0x30; 256 * dim], scale].concat();
    let kv_cache =
        Tensor::from_bytes(DType::E4m3, &page.repeat(2), &[2, 256, 1, dim + 4], &s.device).unwrap();
    let table = Tensor::from_slice(&[1, 0], &[sequences, 1], &s.device).unwrap();
    let logits = s.output(DType::F32, &[sequences * next, 32]);
    s.check("fp8_paged_mqa_logits of 5 queries and pages of 256", &[&logits], || {
        let lists = [&lengths, &table, &schedule];
        fp8_paged_mqa_logits(&q, &kv_cache, &weights, lists, &mut logits.clone(), true, &s.gemm)
    });
}

#[test]
fn hyper_connection_with_and_without_splits() {
    let s = Setup::new();
    // Deep enough that blocks share rows, and so reduce in a workspace.
    let [m, n, k] = [5, 24, 2048];
    let (a, b) = (s.normals(DType::Bf16, &[m, k]), s.normals(DType::F32, &[n, k]));
    for splits in [None, Some(3)] {
        let dims = |dims: &[usize]| splits.into_iter().chain(dims.iter().copied()).collect::<Vec<_>>();
        let (d, sums) = (s.output(DType::F32, &dims(&[m, n])), s.output(DType::F32, &dims(&[m])));
        s.check(&format!("tf32_hc_prenorm_gemm with splits {splits:?}"), &[&d, &sums], || {
            tf32_hc_prenorm_gemm(&a, &b, &mut d.clone(), &mut sums.clone(), &s.gemm)
        });
    }
}

#[test]
fn functions_that_return_a_new_tensor_are_refused_as_they_allocate() {
    let s = Setup::new();
    let scales = s.scales(&[8, 4]);
    let new: [&dyn Fn() -> Result<Tensor>; 4] = [
        &|| get_mn_major_tma_aligned_tensor(&scales, &s.launch),
        &|| get_mn_major_tma_aligned_packed_ue8m0_tensor(&scales, &s.launch),
        &|| transform_sf_into_required_layout(&scales, 8, 512, [1, 128], None, &s.launch),
        &|| get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(&scales, &[512, 512], 128, 128, &s.launch),
    ];
    for call in new {
        call().unwrap();
        let captured = s.stream.capture(|_| call().map(drop));
        assert!(matches!(captured, Err(Error::Stream { .. })), "{captured:?}");
    }
}

//! UE8M0 scales, as bytes and packed: every FP8 GEMM gives the bits of the same scales in FP32, on the CPU and in the
//! simulator, whatever their strides.

use oxigemm::{
    Addend, DType, Device, Epilogue, FusedOutput, GemmLayout, GemmOptions, GroupedRows, KGroupNumbers,
    Tensor, fp8_einsum, fp8_gemm, fp8_gemm_nt, fp8_gemm_nt_fused, k_grouped_fp8_gemm_nt_contiguous,
    k_grouped_half_gemm, m_grouped_fp8_gemm_nt_contiguous, m_grouped_fp8_gemm_nt_masked, random,
};
use oxigemm_kernels::gemm::unpack_scales;

/// Exponents of an operand's scales, `[.., rows, columns]`, in the three forms that a GEMM takes.
struct Scales {
    f32: Tensor,
    bytes: Tensor,
    packed: Tensor,
}

impl Scales {
    fn new(seed: u64, dims: &[usize], device: &Device) -> Scales {
        let count = dims.iter().product();
        let exponents: Vec<u8> =
            random::normals(seed, count).iter().map(|x| (127.0 + 3.0 * x).round() as u8).collect();
        Scales::of(&exponents, dims, device)
    }

    fn of(exponents: &[u8], dims: &[usize], device: &Device) -> Scales {
        let values: Vec<f32> = exponents.iter().map(|e| unpack_scales::scale(*e)).collect();
        let columns = dims[dims.len() - 1];
        let words: Vec<i32> = exponents
            .chunks(columns)
            .flat_map(|row| row.chunks(4))
            .map(|four| four.iter().rev().fold(0, |word, e| word << 8 | u32::from(*e)).cast_signed())
            .collect();
        let mut bytes = Tensor::zeros(DType::U8, dims, device).unwrap();
        bytes.write_bytes(exponents).unwrap();
        let mut packed = dims.to_vec();
        packed[dims.len() - 1] = columns.div_ceil(4);
        Scales {
            f32: Tensor::from_slice(&values, dims, device).unwrap(),
            bytes,
            packed: Tensor::from_slice(&words, &packed, device).unwrap(),
        }
    }

    /// The last two dimensions exchanged, as a view: other strides, and matrices that begin with K.
    fn flipped(self) -> Scales {
        let flip = |x: &Tensor| x.transpose(x.dims().len() - 2, x.dims().len() - 1).unwrap();
        Scales { f32: flip(&self.f32), bytes: flip(&self.bytes), packed: flip(&self.packed) }
    }

    /// The same values where other strides are smallest.
    fn mn_major(mut self) -> Scales {
        for x in [&mut self.bytes, &mut self.packed] {
            let last = x.dims().len() - 1;
            let flipped = x.transpose(last - 1, last).unwrap();
            let mut memory = Tensor::zeros(x.dtype(), flipped.dims(), x.device()).unwrap();
            memory.copy_from(&flipped).unwrap();
            *x = memory.transpose(last - 1, last).unwrap();
        }
        self
    }
}

fn codes(seed: u64, dims: &[usize], device: &Device) -> Tensor {
    let values = random::normals(seed, dims.iter().product());
    Tensor::from_f32(DType::E4m3, &values, dims, device).unwrap()
}

/// Runs a GEMM with FP32 scales and with UE8M0 ones of every form: all results are the same.
fn expect_same_bits(about: &str, d: &Tensor, sfa: &Scales, sfb: &Scales, run: impl Fn(&Tensor, &Tensor)) {
    run(&sfa.f32, &sfb.f32);
    let expected = d.to_bytes().unwrap();
    assert!(expected.iter().any(|byte| *byte != 0), "{about}: nothing was computed");
    let forms = [
        ("bytes", &sfa.bytes, &sfb.bytes),
        ("packed", &sfa.packed, &sfb.packed),
        ("packed and f32", &sfa.packed, &sfb.f32),
        ("f32 and bytes", &sfa.f32, &sfb.bytes),
    ];
    for (form, sfa, sfb) in forms {
        // The second call comes from the launch cache.
        for call in 0..2 {
            d.clone().write_bytes(&vec![0; expected.len()]).unwrap();
            run(sfa, sfb);
            assert!(d.to_bytes().unwrap() == expected, "{about}, {form}, call {call}");
        }
    }
}

fn devices() -> [Device; 2] {
    [Device::cpu(), Device::sim()]
}

#[test]
fn dense_gemms_of_both_granularities() {
    let (m, n, k) = (17, 136, 640);
    for device in devices() {
        let options = GemmOptions::default();
        let (a, b) = (codes(1, &[m, k], &device), codes(2, &[n, k], &device));
        let d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
        for (rows, about) in [(2, "1D2D"), (n, "1D1D")] {
            let (sfa, sfb) =
                (Scales::new(3, &[m, 5], &device), Scales::new(4, &[rows, 5], &device).mn_major());
            expect_same_bits(&format!("{about} on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
                fp8_gemm_nt((&a, sfa), (&b, sfb), Addend::None, &mut d.clone(), &options).unwrap();
            });
        }
    }
}

#[test]
fn layouts_that_are_transposed_and_fused_epilogues() {
    let (m, n, k) = (16, 128, 256);
    for device in devices() {
        let options = GemmOptions::default();
        let a = codes(1, &[m, k], &device);
        let d = Tensor::zeros(DType::Bf16, &[m, n], &device).unwrap();
        // B is [K, N] and contiguous along N, so scales and operand both need the workspace.
        let b = codes(2, &[k, n], &device);
        let (sfa, sfb) = (Scales::new(3, &[m, 2], &device), Scales::new(4, &[1, 2], &device).flipped());
        expect_same_bits(&format!("nn on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
            let (a, b) = ((&a, sfa), (&b, sfb));
            fp8_gemm(GemmLayout::Nn, a, b, Addend::None, &mut d.clone(), &options).unwrap();
        });
        let b = codes(2, &[n, k], &device);
        let (sfa, sfb) = (Scales::new(3, &[m, 2], &device), Scales::new(4, &[1, 2], &device));
        let epilogue = Epilogue { alpha: 0.5, ..Default::default() };
        expect_same_bits(&format!("fused on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
            let (a, b, mut d) = ((&a, sfa), (&b, sfb), d.clone());
            let output = FusedOutput::Matrix(&mut d);
            fp8_gemm_nt_fused(a, b, Addend::None, output, &epilogue, &options).unwrap();
        });
    }
}

#[test]
fn grouped_and_batched_gemms() {
    let (g, m, n, k) = (2, 16, 128, 384);
    for device in devices() {
        let options = GemmOptions::default();
        let b = codes(2, &[g, n, k], &device);
        let sfb = Scales::new(4, &[g, 1, 3], &device).mn_major();
        let (a, sfa) = (codes(1, &[g, m, k], &device), Scales::new(3, &[g, m, 3], &device).mn_major());
        let masked_m = Tensor::from_slice(&[3i32, 16], &[g], &device).unwrap();
        let d = Tensor::zeros(DType::Bf16, &[g, m, n], &device).unwrap();
        expect_same_bits(&format!("masked on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
            let (a, b) = ((&a, sfa), (&b, sfb));
            m_grouped_fp8_gemm_nt_masked(a, b, &mut d.clone(), &masked_m, 8, &options).unwrap();
        });
        let (a, sfa) = (codes(1, &[g * m, k], &device), Scales::new(3, &[g * m, 3], &device));
        let ends = Tensor::from_slice(&[5i32, 32], &[g], &device).unwrap();
        let d = Tensor::zeros(DType::Bf16, &[g * m, n], &device).unwrap();
        expect_same_bits(&format!("contiguous on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
            let (a, b, rows) = ((&a, sfa), (&b, sfb), GroupedRows::Ends(&ends));
            m_grouped_fp8_gemm_nt_contiguous(a, b, &mut d.clone(), rows, 16, None, &options).unwrap();
        });
        let (a, sfa) = (codes(1, &[m, g, k], &device), Scales::new(3, &[m, g, 3], &device));
        let d = Tensor::zeros(DType::Bf16, &[m, g, n], &device).unwrap();
        expect_same_bits(&format!("einsum on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
            fp8_einsum("bhr,hdr->bhd", (&a, sfa), (&b, sfb), &mut d.clone(), &options).unwrap();
        });
    }
}

#[test]
fn k_grouped_gemms() {
    let (m, n, ks) = (16, 32, [160usize, 0, 256]);
    for device in devices() {
        let options = GemmOptions::default();
        let (a, b) = (codes(1, &[m * 416], &device), codes(2, &[n * 416], &device));
        let (sfa, sfb) = (Scales::new(3, &[m, 4], &device), Scales::new(4, &[n, 4], &device).mn_major());
        let numbers = Tensor::from_slice(&ks.map(|k| k as i32), &[3], &device).unwrap();
        let d = Tensor::zeros(DType::F32, &[3, m, n], &device).unwrap();
        for host in [None, Some(&ks[..])] {
            expect_same_bits(&format!("k-grouped on {device}"), &d, &sfa, &sfb, |sfa, sfb| {
                let (a, b, d) = ((&a, sfa), (&b, sfb), &mut d.clone());
                k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::None, d, &numbers, host, &options).unwrap();
            });
        }
    }
}

#[test]
fn exponents_at_the_ends_of_their_range() {
    for device in devices() {
        let (m, n, k) = (8, 16, 128);
        let one = |rows| Tensor::from_f32(DType::E4m3, &vec![1.0; rows * k], &[rows, k], &device).unwrap();
        let sfa = Scales::of(&[0, 1, 127, 254, 255, 127, 127, 127], &[m, 1], &device);
        let sfb = Scales::of(&[127], &[1, 1], &device);
        for form in [&sfa.bytes, &sfa.packed] {
            let mut d = Tensor::zeros(DType::F32, &[m, n], &device).unwrap();
            let (a, b) = (one(m), one(n));
            let (a, b) = ((&a, form), (&b, &sfb.bytes));
            fp8_gemm_nt(a, b, Addend::None, &mut d, &GemmOptions::default()).unwrap();
            let d = d.to_vec_f32().unwrap();
            let rows: Vec<f32> = d.iter().step_by(n).copied().collect();
            assert_eq!(rows[..3], [2f32.powi(-120), 2f32.powi(-119), 128.0], "{device}");
            assert!(rows[3].is_infinite() && rows[4].is_nan() && rows[5] == 128.0, "{device}: {rows:?}");
        }
    }
}

#[test]
fn wrong_packed_scales_are_refused_by_name() {
    for device in devices() {
        let (a, b) = (codes(1, &[16, 640], &device), codes(2, &[128, 640], &device));
        let (good, bad) = (Scales::new(3, &[16, 5], &device), Scales::new(3, &[16, 9], &device));
        let sfb = Scales::new(4, &[1, 5], &device);
        let d = Tensor::zeros(DType::Bf16, &[16, 128], &device).unwrap();
        let call = |sfa: &Tensor, d: &mut Tensor| {
            fp8_gemm_nt((&a, sfa), (&b, &sfb.packed), Addend::None, d, &GemmOptions::default()).unwrap_err()
        };
        let error = call(&bad.packed, &mut d.clone());
        assert_eq!(error.argument(), Some("sfa"), "{error}");
        assert!(error.to_string().contains("2 i32 along K"), "{error}");
        let error = call(&bad.bytes, &mut d.clone());
        assert_eq!(error.argument(), Some("sfa"), "{error}");
        let error = call(&good.packed.view(&[32]).unwrap(), &mut d.clone());
        assert_eq!(error.argument(), Some("sfa"), "{error}");
        // D where the scales are.
        let mut same = Tensor::zeros(DType::Bf16, &[16, 128], &device).unwrap();
        // SAFETY: a view of memory that lives on.
        let inside = unsafe { Tensor::from_raw_parts(DType::U8, &[16, 5], &[5, 1], same.address(), &device) };
        let error = call(&inside.unwrap(), &mut same);
        assert!(error.to_string().contains("memory apart"), "{error}");
    }
}

#[test]
fn k_groups_by_their_ends() {
    let (m, n, alignment) = (16, 32, 64);
    // The ends of groups of 40, 0 and 100; the memory between the first and the last is never read.
    let (ks, ends, extent) = ([40usize, 0, 100], [40i32, 40, 164], 164);
    for device in devices() {
        let options = GemmOptions::default();
        let draw = |seed, columns: usize| {
            let values = random::normals(seed, extent * columns);
            let padding = 40 * columns..64 * columns;
            let with_nan =
                values.iter().enumerate().map(|(i, x)| if padding.contains(&i) { f32::NAN } else { *x });
            let x = Tensor::from_f32(DType::Bf16, &with_nan.collect::<Vec<_>>(), &[extent, columns], &device);
            let dense: Vec<f32> =
                values.iter().enumerate().filter(|(i, _)| !padding.contains(i)).map(|(_, x)| *x).collect();
            let dense = Tensor::from_f32(DType::Bf16, &dense, &[extent - 24, columns], &device);
            (x.unwrap(), dense.unwrap())
        };
        let ((a, dense_a), (b, dense_b)) = (draw(1, m), draw(2, n));
        let d = Tensor::zeros(DType::F32, &[3, m, n], &device).unwrap();
        let expected = Tensor::zeros(DType::F32, &[3, m, n], &device).unwrap();
        let numbers = Tensor::from_slice(&ks.map(|k| k as i32), &[3], &device).unwrap();
        let (layout, add) = (GemmLayout::Tn, Addend::None);
        let to = &mut expected.clone();
        k_grouped_half_gemm(layout, &dense_a, &dense_b, add, to, &numbers, Some(&ks), &options).unwrap();
        let ends = Tensor::from_slice(&ends, &[3], &device).unwrap();
        for host in [None, Some(&ks[..])] {
            let groups = KGroupNumbers::Ends { ends: &ends, alignment };
            k_grouped_half_gemm(layout, &a, &b, add, &mut d.clone(), groups, host, &options).unwrap();
            assert!(d.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{device}, {host:?}");
        }
        let groups = KGroupNumbers::Ends { ends: &ends, alignment: 48 };
        let to = &mut d.clone();
        let error = k_grouped_half_gemm(layout, &a, &b, add, to, groups, None, &options).unwrap_err();
        assert_eq!(error.argument(), Some("alignment"), "{error}");
    }
}

#[test]
fn fp8_k_groups_by_their_ends() {
    let (m, n, ks) = (16, 32, [160usize, 0, 128]);
    for device in devices() {
        let options = GemmOptions::default();
        // Groups begin at 0, 256 and 256; the matrices of a group are as they are without ends.
        let spread = |x: &Tensor, rows: usize| {
            let bytes = x.to_bytes().unwrap();
            let mut all = vec![0x7fu8; rows * 384];
            all[..rows * 160].copy_from_slice(&bytes[..rows * 160]);
            all[rows * 256..].copy_from_slice(&bytes[rows * 160..]);
            let mut spread = Tensor::zeros(DType::E4m3, &[rows * 384], &device).unwrap();
            spread.write_bytes(&all).unwrap();
            spread
        };
        let (a, b) = (codes(1, &[m * 288], &device), codes(2, &[n * 288], &device));
        let (sfa, sfb) = (Scales::new(3, &[m, 3], &device).f32, Scales::new(4, &[n, 3], &device).f32);
        let mut expected = Tensor::zeros(DType::F32, &[3, m, n], &device).unwrap();
        let numbers = Tensor::from_slice(&ks.map(|k| k as i32), &[3], &device).unwrap();
        let (dense, add) = (((&a, &sfa), (&b, &sfb)), Addend::None);
        k_grouped_fp8_gemm_nt_contiguous(dense.0, dense.1, add, &mut expected, &numbers, Some(&ks), &options)
            .unwrap();
        let (a, b) = (spread(&a, m), spread(&b, n));
        let ends = Tensor::from_slice(&[160i32, 256, 384], &[3], &device).unwrap();
        let mut d = Tensor::zeros(DType::F32, &[3, m, n], &device).unwrap();
        let groups = KGroupNumbers::Ends { ends: &ends, alignment: 128 };
        let (a, b) = ((&a, &sfa), (&b, &sfb));
        k_grouped_fp8_gemm_nt_contiguous(a, b, add, &mut d, groups, Some(&ks), &options).unwrap();
        assert!(d.to_bytes().unwrap() == expected.to_bytes().unwrap(), "{device}");
        let groups = KGroupNumbers::Ends { ends: &ends, alignment: 1 };
        let error = k_grouped_fp8_gemm_nt_contiguous(a, b, add, &mut d, groups, None, &options).unwrap_err();
        assert_eq!(error.argument(), Some("alignment"), "{error}");
    }
}

//! What hostile use found: each call is refused with the argument and the shape as its caller passed them.

use oxigemm::{
    Addend, DType, Device, Error, GemmLayout, GemmOptions, Granularity, LaunchOptions, PermutedRows, Tensor,
    einsum, fp8_einsum, fp8_gemm, k_grouped_fp8_gemm_nt_contiguous, k_grouped_fp8_gemm_tn_contiguous,
    k_grouped_half_gemm, moe_permute, quantize,
};

fn new(dtype: DType, dims: &[usize], device: &Device) -> Tensor {
    Tensor::zeros(dtype, dims, device).unwrap()
}

fn on_cpu(dtype: DType, dims: &[usize]) -> Tensor {
    new(dtype, dims, &Device::Cpu)
}

/// Tensors whose elements lie `strides` apart, in memory that the first one keeps.
fn strided(dtype: DType, dims: &[usize], strides: &[usize], device: &Device) -> (Tensor, Tensor) {
    let memory = new(dtype, &[4096], device);
    // SAFETY: the view ends within the memory, which is returned with it.
    let view = unsafe { Tensor::from_raw_parts(dtype, dims, strides, memory.address(), device) };
    (memory, view.unwrap())
}

#[test]
fn memory_that_there_is_not_is_an_error() {
    for device in [Device::cpu(), Device::sim()] {
        // A system that promises whatever is asked for has no 2^62 bytes of addresses, either.
        let promises =
            std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.starts_with(b"1"));
        let sizes = [&[1usize << 62][..], &[1 << 30, 1 << 20, 1 << 5], &[1 << 46], &[1 << 23, 1 << 23]];
        for dims in &sizes[..if promises { 2 } else { 4 }] {
            let error = Tensor::empty(DType::U8, dims, &device).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{device}: {error:?}");
            assert!(error.to_string().contains("bytes were asked for"), "{error}");
        }
        assert!(Tensor::zeros(DType::F32, &[16], &device).is_ok(), "the device goes on");
    }
}

#[test]
fn shapes_are_told_as_they_were_passed() {
    use GemmLayout::{Nn, Tn, Tt};
    let (fp8, f32) = (DType::E4m3, DType::F32);
    let refused = |layout, [a, sfa, b, sfb, d]: [&[usize]; 5]| {
        let (a, b) = (on_cpu(fp8, a), on_cpu(fp8, b));
        let (sfa, sfb, mut d) = (on_cpu(f32, sfa), on_cpu(f32, sfb), on_cpu(DType::Bf16, d));
        let options = GemmOptions::default();
        fp8_gemm(layout, (&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options).unwrap_err().to_string()
    };
    // M, N and K are 32, 64 and 256.
    for (layout, shapes, words) in [
        (
            Nn,
            [&[32, 256][..], &[32, 2], &[128, 64], &[2, 1], &[32, 64]],
            "`b` has the wrong shape: expected [256, 64], with the K of `a`, found [128, 64]",
        ),
        (
            Tn,
            [&[256, 32], &[2, 32], &[128, 64], &[2, 1], &[32, 64]],
            "expected [256, 64], with the K of `a`, found [128, 64]",
        ),
        (
            Tt,
            [&[256, 32], &[2, 32], &[64, 128], &[1, 2], &[32, 64]],
            "expected [64, 256], with the K of `a`, found [64, 128]",
        ),
        (
            Tn,
            [&[256, 32], &[32, 2], &[256, 64], &[2, 1], &[32, 64]],
            "expected [2, 32], one per row of `a` and 128 of K, or 1 along either dimension for all, found [32, 2]",
        ),
        (
            Nn,
            [&[32, 256], &[32, 2], &[256, 64], &[3, 1], &[32, 64]],
            "expected [2, 1], one per 128 rows, or each row, of `b` and 128 of K, or 1 along either dimension for all, found [3, 1]",
        ),
        (
            Tn,
            [&[256, 32], &[2, 32], &[256, 64], &[2, 1], &[64, 32]],
            "expected [32, 64], the M of `a` by the N of `b`, found [64, 32]",
        ),
    ] {
        let text = refused(layout, shapes);
        assert!(text.contains(words), "{layout}: {text}");
    }
}

#[test]
fn einsums_tell_shapes_by_their_letters() {
    let options = GemmOptions::default();
    let refused = |expression, a: &[usize], b: &[usize], d: &[usize]| {
        let [a, b, mut d] = [a, b, d].map(|dims| on_cpu(DType::Bf16, dims));
        einsum(expression, &a, &b, Addend::None, &mut d, &options).unwrap_err().to_string()
    };
    let text = refused("bhr,hdr->bhd", &[4, 3, 16], &[3, 8, 32], &[4, 3, 8]);
    assert!(
        text.contains("`b` has the wrong shape: expected [3, 8, 16] for hdr, with the r of `a`"),
        "{text}"
    );
    let text = refused("bhr,hdr->bhd", &[4, 3, 16], &[3, 8, 16], &[5, 3, 8]);
    assert!(
        text.contains("`d` has the wrong shape: expected [4, 3, 8] for bhd, with the b of `a`"),
        "{text}"
    );
    let text = refused("bhd,hdr->bhr", &[4, 3, 16], &[3, 16, 8], &[4, 3, 16]);
    assert!(
        text.contains("`d` has the wrong shape: expected [4, 3, 8] for bhr, with the r of `b`"),
        "{text}"
    );
    let text = refused("bhd,hdr->bhr", &[4, 3], &[3, 16, 8], &[4, 3, 8]);
    assert!(text.contains("`a` has the wrong rank: expected 3 dimensions, bhd, found 2"), "{text}");

    let (a, b) = (on_cpu(DType::E4m3, &[4, 3, 256]), on_cpu(DType::E4m3, &[3, 128, 256]));
    let (sfa, sfb) = (on_cpu(DType::F32, &[4, 3, 3]), on_cpu(DType::F32, &[3, 1, 2]));
    let mut d = on_cpu(DType::Bf16, &[4, 3, 128]);
    let text = fp8_einsum("bhr,hdr->bhd", (&a, &sfa), (&b, &sfb), &mut d, &options).unwrap_err().to_string();
    assert!(text.contains("`sfa` has the wrong number of scales: expected [4, 3, 2], one per row"), "{text}");
    assert!(text.ends_with("found [4, 3, 3]"), "{text}");
}

/// Of two operands the one with fewer blocks of scales than the groups have is at fault.
#[test]
fn short_scales_of_k_groups_are_named() {
    let (m, n, ks) = (16, 32, [128, 128]);
    let attempt = |tn: bool, blocks_a: usize, blocks_b: usize, host: Option<&[usize]>| {
        let dims = |rows: usize, blocks: usize| if tn { [blocks, rows] } else { [rows, blocks] };
        let operand = |rows: usize| match tn {
            true => on_cpu(DType::E4m3, &[256, rows]),
            false => on_cpu(DType::E4m3, &[256 * rows]),
        };
        let (a, b) = (operand(m), operand(n));
        let (sfa, sfb) = (on_cpu(DType::F32, &dims(m, blocks_a)), on_cpu(DType::F32, &dims(n, blocks_b)));
        let ks = Tensor::from_slice(&ks, &[2], &Device::Cpu).unwrap();
        let mut d = on_cpu(DType::F32, &[2, m, n]);
        let function = if tn { k_grouped_fp8_gemm_tn_contiguous } else { k_grouped_fp8_gemm_nt_contiguous };
        function((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &ks, host, &GemmOptions::default())
    };
    for tn in [false, true] {
        for host in [None, Some(&[128usize, 128][..])] {
            attempt(tn, 2, 2, host).unwrap();
            for (a, b, argument) in [(1, 2, "sfa"), (2, 1, "sfb")] {
                let error = attempt(tn, a, b, host).unwrap_err();
                assert_eq!(error.argument(), Some(argument), "{error}");
            }
        }
        // With more than the host says, too.
        assert_eq!(attempt(tn, 3, 2, Some(&[128, 128])).unwrap_err().argument(), Some("sfa"));
    }
}

#[test]
fn numbers_of_the_host_that_are_not_those_of_the_device_are_refused() {
    let (m, n) = (16, 32);
    for device in [Device::cpu(), Device::sim()] {
        let a = new(DType::Bf16, &[64, m], &device);
        let b = new(DType::Bf16, &[64, n], &device);
        let ks = Tensor::from_slice(&[48i32, 16], &[2], &device).unwrap();
        let mut d = new(DType::F32, &[2, m, n], &device);
        let mut run = |host: &[usize]| {
            let options = GemmOptions::default();
            k_grouped_half_gemm(GemmLayout::Tn, &a, &b, Addend::None, &mut d, &ks, Some(host), &options)
        };
        run(&[48, 16]).unwrap();
        let error = run(&[16, 48]).unwrap_err();
        assert_eq!(error.argument(), Some("ks_host"));
        let text = error.to_string();
        assert!(text.contains("expected [48, 16], the numbers of `ks`, found [16, 48]"), "{device}: {text}");
    }
}

#[test]
fn scales_that_are_written_to_one_place_are_refused() {
    for device in [Device::cpu(), Device::sim()] {
        let x = new(DType::Bf16, &[4, 256], &device);
        for (strides, right) in
            [([2, 1], true), ([1, 4], true), ([0, 1], false), ([1, 0], false), ([0, 0], false)]
        {
            let (_memory, mut scales) = strided(DType::F32, &[4, 2], &strides, &device);
            let mut codes = new(DType::E4m3, &[4, 256], &device);
            let options = LaunchOptions::default();
            let format = oxigemm::cast::ScaleFormat::F32;
            let done = quantize(&x, &mut codes, &mut scales, Granularity::PerToken, format, &options);
            match done {
                Ok(()) => assert!(right, "{device}: {strides:?}"),
                Err(error) => assert!(
                    !right && error.to_string().contains("scales that do not overlap, as they are written"),
                    "{device}: {strides:?}: {error}"
                ),
            }
        }
        // A single column is no exception.
        let x = new(DType::Bf16, &[4, 128], &device);
        let (_memory, mut scales) = strided(DType::F32, &[4, 1], &[0, 1], &device);
        let mut codes = new(DType::E4m3, &[4, 128], &device);
        let (format, options) = (oxigemm::cast::ScaleFormat::F32, LaunchOptions::default());
        let done = quantize(&x, &mut codes, &mut scales, Granularity::PerToken, format, &options);
        assert_eq!(done.unwrap_err().argument(), Some("scales"), "{device}");
    }
}

/// Whatever is written through a tensor goes to a place of its own.
#[test]
fn a_tensor_whose_elements_share_memory_is_not_written() {
    let (_memory, mut same) = strided(DType::F32, &[4, 2], &[0, 1], &Device::Cpu);
    for error in [same.write_f32(&[0.0; 8]), same.copy_from(&on_cpu(DType::F32, &[4, 2]))] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Stride { argument: "tensor", .. }), "{error}");
        assert!(error.to_string().contains("elements in places of their own"), "{error}");
    }
    assert_eq!(same.to_vec_f32().unwrap(), [0.0; 8], "it can be read");
    let (_memory, mut apart) = strided(DType::F32, &[2, 2], &[2, 3], &Device::Cpu);
    apart.write_f32(&[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(apart.to_vec_f32().unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn too_few_experts_and_rows_are_refused() {
    for device in [Device::cpu(), Device::sim()] {
        let permute = |experts: usize, rows: usize| {
            let ids = Tensor::from_slice(&[0i32, 1, 1, 2, -1, 7], &[3, 2], &device)?;
            let new = |dims: &[usize]| Tensor::empty(DType::I32, dims, &device);
            let (mut tokens, mut groups) = (new(&[rows])?, new(&[rows])?);
            let (mut ends, mut places) = (new(&[experts])?, new(&[3, 2])?);
            let to = PermutedRows {
                tokens: &mut tokens,
                groups: &mut groups,
                ends: &mut ends,
                places: &mut places,
            };
            moe_permute(&ids, 16, to, &LaunchOptions::default())?;
            places.to_vec::<i32>()
        };
        // One row of the first expert, two of the second, one of the third.
        assert_eq!(permute(3, 33).unwrap(), [0, 16, 17, 32, -1, -1], "{device}");
        let error = permute(3, 32).unwrap_err();
        assert_eq!(error.argument(), Some("tokens"));
        assert!(error.to_string().contains("expected [33] or more, the rows of these choices"), "{error}");
        for rows in [0, 64] {
            let error = permute(0, rows).unwrap_err();
            assert_eq!(error.argument(), Some("ends"), "{device}: {error}");
            assert!(error.to_string().contains("expected [1] or more, one for each expert"), "{error}");
        }
    }
}

//! Checks of arguments that no call can have: each is refused by its name.

use oxigemm::{
    Addend, DType, GemmLayout, GemmOptions, GroupedRows, RowGroups, Tensor, einsum, fp8_gemm_nt, half_gemm,
    k_grouped_fp8_gemm_nt_contiguous, k_grouped_half_gemm, m_grouped_fp8_gemm_nt_contiguous,
    m_grouped_half_gemm,
};
use oxigemm_testkit::{BF16, FP16, Failure, OperandTypes};

use super::{Check, Setup, ensure};

pub fn checks(_: &Setup) -> Vec<Check> {
    let mut checks = vec![Check::anywhere("bad arguments", fp8)];
    for types in [BF16, FP16] {
        checks.push(Check::anywhere(&format!("{types}: bad arguments"), move |setup| half(setup, types)));
    }
    checks.extend([
        Check::anywhere("m-grouped: bad arguments of groups", fp8_m_grouped),
        Check::anywhere("bf16: m-grouped: bad arguments of groups", half_m_grouped),
        Check::anywhere("k-grouped: bad arguments of groups", k_grouped),
        Check::anywhere("summed: bad arguments", summed),
    ]);
    checks
}

fn fp8(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8, 256])?, new(DType::F32, &[8, 2])?);
    let (b, sfb) = (new(DType::E4m3, &[64, 256])?, new(DType::F32, &[1, 2])?);
    let wrong = [
        (new(DType::F16, &[8, 64])?, "d"),
        (new(DType::Bf16, &[8, 65])?, "d"),
        (new(DType::Bf16, &[64, 8])?.transpose(0, 1)?, "d"),
    ];
    for (mut d, argument) in wrong {
        let result = fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{result:?}")
        })?;
    }
    let mut d = new(DType::Bf16, &[8, 64])?;
    let narrow = new(DType::E4m3, &[8, 264])?.narrow(1, 0, 256)?;
    let result = fp8_gemm_nt((&narrow, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
    ensure(matches!(&result, Err(error) if error.argument() == Some("a")), || format!("{result:?}"))?;
    // A scale for each row, or one for all, but not four.
    let four = new(DType::F32, &[4, 2])?;
    let result = fp8_gemm_nt((&a, &four), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default());
    ensure(matches!(&result, Err(error) if error.argument() == Some("sfa")), || format!("{result:?}"))?;
    Ok("refused, each with its name".to_owned())
}

fn half(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    let (device, dtype) = (&setup.device, types.ab);
    let other = if types == BF16 { DType::F16 } else { DType::Bf16 };
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, b) = (new(dtype, &[8, 64])?, new(dtype, &[24, 64])?);
    let mut count = 0;
    let mut refuse = |a: &Tensor, b: &Tensor, d: &Tensor, argument: &str| -> Result<(), Failure> {
        count += 1;
        let result = half_gemm(GemmLayout::Nt, a, b, Addend::None, &mut d.clone(), &GemmOptions::default());
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("expected `{argument}` to be refused, got {result:?}")
        })
    };
    let d = new(dtype, &[8, 24])?;
    refuse(&new(DType::F32, &[8, 64])?, &b, &d, "a")?;
    refuse(&a, &new(other, &[24, 64])?, &d, "b")?;
    refuse(&a, &b, &new(other, &[8, 24])?, "d")?;
    refuse(&a, &new(dtype, &[24, 72])?, &d, "b")?;
    refuse(&a, &b, &new(dtype, &[8, 25])?, "d")?;
    refuse(&a, &b, &new(dtype, &[24, 8])?.transpose(0, 1)?, "d")?;
    // Rows that begin at 8 bytes, and an address that does.
    refuse(&new(dtype, &[8, 68])?.narrow(1, 0, 64)?, &b, &d, "a")?;
    refuse(&a, &new(dtype, &[24, 72])?.narrow(1, 4, 64)?, &d, "b")?;
    // D inside of A.
    let one = new(dtype, &[64, 64])?;
    refuse(&one.narrow(0, 0, 8)?, &b, &one.narrow(0, 4, 8)?.narrow(1, 0, 24)?, "a")?;
    Ok(format!("{count} refused, each with its name"))
}

fn fp8_m_grouped(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8, 256])?, new(DType::F32, &[8, 2])?);
    let (b, sfb) = (new(DType::E4m3, &[3, 64, 256])?, new(DType::F32, &[3, 1, 2])?);
    let (ids, ends) = (new(DType::I32, &[8])?, new(DType::I32, &[3])?);
    let floats = new(DType::F32, &[8])?;
    let run = |b: &Tensor, rows: GroupedRows<'_>, alignment: usize| -> Result<oxigemm::Result<()>, Failure> {
        let mut d = new(DType::Bf16, &[8, 64])?;
        let options = GemmOptions::default();
        let (a, b) = ((&a, &sfa), (b, &sfb));
        Ok(m_grouped_fp8_gemm_nt_contiguous(a, b, &mut d, rows, alignment, None, &options))
    };
    let one_group = b.select(0)?;
    for (result, argument) in [
        (run(&one_group, GroupedRows::Ids(&ids), 1)?, "b"),
        (run(&b, GroupedRows::Ids(&ends), 1)?, "ids"),
        (run(&b, GroupedRows::Ends(&ids), 1)?, "ends"),
        (run(&b, GroupedRows::Ids(&floats), 1)?, "ids"),
        (run(&b, GroupedRows::Ends(&ends), 24)?, "alignment"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&b, GroupedRows::Ends(&ends), 16)?.is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

fn half_m_grouped(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, b) = (new(DType::Bf16, &[8, 64])?, new(DType::Bf16, &[3, 24, 64])?);
    let (ids, ends, d) = (new(DType::I32, &[8])?, new(DType::I32, &[3])?, new(DType::Bf16, &[8, 24])?);
    let run = |layout, a: &Tensor, b: &Tensor, c: Addend<'_>, rows: GroupedRows<'_>| {
        let groups = RowGroups::Contiguous { rows, alignment: 1, expected_m: None };
        m_grouped_half_gemm(layout, a, b, c, &mut d.clone(), groups, &GemmOptions::default())
    };
    let (nt, good, none) = (GemmLayout::Nt, GroupedRows::Ends(&ends), Addend::None);
    let other = new(DType::F32, &[8, 24])?;
    for (result, argument) in [
        (run(GemmLayout::Tn, &a, &b, none, good), "layout"),
        (run(nt, &new(DType::F32, &[8, 64])?, &b, none, good), "a"),
        (run(nt, &a.transpose(0, 1)?, &b, none, good), "a"),
        (run(nt, &a, &b.select(0)?, none, good), "b"),
        (run(GemmLayout::Nn, &a, &b, none, good), "a"),
        (run(nt, &a, &new(DType::F16, &[3, 24, 64])?, none, good), "b"),
        (run(nt, &a, &b, Addend::From(&other), good), "c"),
        (run(nt, &a, &b, none, GroupedRows::Ids(&ends)), "ids"),
        (run(nt, &a, &b, none, GroupedRows::Ends(&ids)), "ends"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(nt, &a, &b, none, good).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

fn k_grouped(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let (a, sfa) = (new(DType::E4m3, &[8 * 384])?, new(DType::F32, &[8, 3])?);
    let (b, sfb) = (new(DType::E4m3, &[16 * 384])?, new(DType::F32, &[16, 3])?);
    let d = new(DType::F32, &[2, 8, 16])?;
    let ks = Tensor::from_slice(&[256i32, 128], &[2], device)?;
    let run = |a: &Tensor, sfb: &Tensor, ks: &Tensor, host: &[usize]| {
        let (a, b, options) = ((a, &sfa), (&b, sfb), GemmOptions::default());
        let d = &mut d.clone();
        k_grouped_fp8_gemm_nt_contiguous(a, b, Addend::None, d, ks, Some(host), &options)
    };
    for (result, argument) in [
        (run(&new(DType::E4m3, &[8 * 384 + 1])?, &sfb, &ks, &[256, 128]), "a"),
        (run(&a, &new(DType::F32, &[16, 4])?, &ks, &[256, 128]), "sfb"),
        (run(&a, &sfb, &new(DType::I32, &[3])?, &[256, 128]), "ks"),
        (run(&a, &sfb, &ks, &[256, 256]), "ks_host"),
        (run(&a, &sfb, &ks, &[384]), "ks_host"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&a, &sfb, &ks, &[256, 128]).is_ok(), || "good arguments were refused".to_owned())?;
    let (a, b) = (new(DType::Bf16, &[100, 8])?, new(DType::Bf16, &[100, 16])?);
    let ks = Tensor::from_slice(&[60i32, 40], &[2], device)?;
    let run = |layout, a: &Tensor, b: &Tensor, ks: &Tensor, host: &[usize]| {
        let (d, options) = (&mut d.clone(), GemmOptions::default());
        k_grouped_half_gemm(layout, a, b, Addend::None, d, ks, Some(host), &options)
    };
    let tn = GemmLayout::Tn;
    for (result, argument) in [
        (run(GemmLayout::Nn, &a, &b, &ks, &[60, 40]), "layout"),
        (run(tn, &new(DType::Bf16, &[100, 16])?, &b, &ks, &[60, 40]), "a"),
        (run(tn, &a, &new(DType::Bf16, &[99, 16])?, &ks, &[60, 40]), "b"),
        (run(tn, &a, &b, &new(DType::I32, &[3])?, &[60, 40]), "ks"),
        (run(tn, &a, &b, &ks, &[60, 41]), "ks_host"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(tn, &a, &b, &ks, &[60, 40]).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

fn summed(setup: &Setup) -> Result<String, Failure> {
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, &setup.device);
    let (a, b) = (new(DType::Bf16, &[3, 8, 16])?, new(DType::Bf16, &[3, 24, 16])?);
    let d = new(DType::F32, &[8, 24])?;
    let run = |a: &Tensor, b: &Tensor, d: &Tensor| {
        einsum("bmk,bnk->mn", a, b, Addend::None, &mut d.clone(), &GemmOptions::default())
    };
    for (result, argument) in [
        (run(&new(DType::Bf16, &[8, 16])?, &b, &d), "a"),
        (run(&a, &new(DType::Bf16, &[2, 24, 16])?, &d), "b"),
        (run(&a, &new(DType::F16, &[3, 24, 16])?, &d), "b"),
        (run(&a, &b, &new(DType::F32, &[24, 8])?), "d"),
    ] {
        ensure(matches!(&result, Err(error) if error.argument() == Some(argument)), || {
            format!("{argument}: {result:?}")
        })?;
    }
    ensure(run(&a, &b, &d).is_ok(), || "good arguments were refused".to_owned())?;
    Ok("refused, each with its name".to_owned())
}

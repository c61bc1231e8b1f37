//! Checks of the other forms of FP8 GEMMs: per-token and per-tensor scales, e5m2, operands that are not K-major; and of
//! batch invariance.

use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, GroupedRows, Tensor, fp8_gemm,
    m_grouped_fp8_gemm_nn_contiguous, m_grouped_fp8_gemm_nn_masked, random,
};
use oxigemm_testkit::{
    BF16, E5m2, FP8, FP16, Failure, GemmCase, GemmData, GroupLayout, MGroups, OperandTypes, ScaleMode,
};

use super::kernels::of_each_fp8_kernel;
use super::random::{Draw, GROUP_LAYOUTS, m_grouped};
use super::{Check, Setup, each, ensure, gemms};
use crate::counting::allocations;

pub fn checks(setup: &Setup) -> Vec<Check> {
    let of_e5m2 = vec![
        Check::anywhere("operands of e5m2", e5m2),
        Check::with_kernels("operands of e5m2 in every kernel", e5m2_in_kernels),
    ];
    let case = GemmCase { e5m2: Some(E5m2::A), ..GemmCase::fp8(128, 128, 128) };
    let mut checks = setup.family("GEMMs of e5m2", &case, of_e5m2);
    checks.extend([
        Check::anywhere("per-token and per-tensor scales", shared_scales),
        Check::with_kernels("per-token and per-tensor scales in every kernel", shared_in_kernels),
        Check::anywhere("fp8 operands that are not K-major", not_k_major),
        Check::with_kernels("a GEMM of transposed operands is that of K-major ones", same_as_k_major),
        Check::with_kernels("a graph transposes what is there when it is replayed", replayed),
        Check::anywhere("m-grouped: groups with a B that is not K-major", grouped_nn),
        Check::on_gpu(
            "GEMMs of transposed operands in streams that are dropped while they work",
            dropped_streams,
        ),
        Check::on_gpu("a second GEMM of transposed operands allocates nothing", no_allocation),
        Check::with_kernels("UE8M0 scales give the bits of the same scales in FP32", ue8m0),
    ]);
    for (types, layout) in [(FP8, GemmLayout::Nt), (BF16, GemmLayout::Nt), (FP16, GemmLayout::Nn)] {
        let name = format!("batch invariance of {types} {layout}");
        checks.push(Check::with_kernels(name, move |setup| batch_invariant(setup, types, layout)));
    }
    for types in [FP8, BF16, FP16] {
        let name = format!("rows of a batch of {types} do not depend on their place");
        let case = m_grouped(types, GroupLayout::All, &[64, 64], [128, 128], 0);
        let of_types = vec![Check::with_kernels(name.clone(), move |setup| place_in_batch(setup, types))];
        checks.extend(setup.family(name, &case, of_types));
    }
    checks
}

const SHARED: [ScaleMode; 2] = [ScaleMode::Row, ScaleMode::Tensor];

fn shared_scales(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 6);
    gemms(setup, each((0..setup.count(60)).map(|i| GemmCase { scales: SHARED[i % 2], ..draw.fp8() })))
}

fn shared_in_kernels(setup: &Setup) -> Result<String, Failure> {
    let cases = of_each_fp8_kernel(setup, false)?;
    let shared = |(i, (case, options)): (usize, (GemmCase, GemmOptions))| {
        (GemmCase { scales: SHARED[i % 2], ..case }, options)
    };
    let step = if setup.device.as_sim().is_some() { 4 } else { 1 };
    gemms(setup, cases.into_iter().enumerate().map(shared).step_by(step))
}

fn e5m2(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 7);
    let case = |i: usize| GemmCase { e5m2: Some(E5m2::ALL[i % 3]), ..draw.fp8() };
    gemms(setup, each((0..setup.count(60)).map(case)))
}

fn e5m2_in_kernels(setup: &Setup) -> Result<String, Failure> {
    gemms(setup, of_each_fp8_kernel(setup, true)?)
}

const OTHER_LAYOUTS: [GemmLayout; 3] = [GemmLayout::Nn, GemmLayout::Tn, GemmLayout::Tt];

fn not_k_major(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 8);
    let case = |i: usize| {
        let e5m2 = [None, Some(E5m2::A), None, Some(E5m2::B)][i % 4];
        GemmCase { layout: OTHER_LAYOUTS[i % 3], e5m2, ..draw.fp8() }
    };
    gemms(setup, each((0..setup.count(90)).map(case)))
}

/// Bit for bit, also where K, M and N are many tiles of what is transposed.
fn same_as_k_major(setup: &Setup) -> Result<String, Failure> {
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 3]] =
        if gpu { &[[1, 576, 7168], [130, 2112, 1536], [1000, 1031, 999]] } else { &[[17, 150, 300]] };
    for &dims in shapes {
        let bits = |layout| -> Result<Vec<u8>, Failure> {
            let mut operands = GemmCase::dense(FP8, layout, dims).on(&setup.device)?;
            operands.run(&GemmOptions::default())?;
            Ok(operands.d.to_bytes()?)
        };
        let expected = bits(GemmLayout::Nt)?;
        for layout in OTHER_LAYOUTS {
            ensure(bits(layout)? == expected, || format!("{layout} {dims:?} has other bits than nt"))?;
        }
    }
    Ok(format!("{} shapes in {} layouts", shapes.len(), OTHER_LAYOUTS.len()))
}

/// Bytes and packed words, of both granularities of B, also with an operand that is transposed; in a graph too.
fn ue8m0(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let gpu = device.as_cuda().is_some();
    let shapes: &[[usize; 3]] =
        if gpu { &[[1, 576, 7168], [130, 2112, 1600], [1000, 1040, 640]] } else { &[[17, 144, 640]] };
    let stream = device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    for &[m, n, k] in shapes {
        let codes = |seed, dims: &[usize; 2]| {
            Tensor::from_f32(DType::E4m3, &random::normals(seed, dims[0] * dims[1]), dims, device)
        };
        let blocks = k.div_ceil(128);
        let a = codes(1, &[m, k])?;
        for (layout, rows) in
            [(GemmLayout::Nt, n.div_ceil(128)), (GemmLayout::Nt, n), (GemmLayout::Nn, n.div_ceil(128))]
        {
            let nn = layout == GemmLayout::Nn;
            let b = if nn { codes(2, &[k, n])? } else { codes(2, &[n, k])? };
            let along = |x: Tensor| if nn { x.transpose(0, 1) } else { Ok(x) };
            let sfa = exponents(3, [m, blocks], device)?;
            let [f32, bytes, words] = exponents(4, [rows, blocks], device)?;
            let sfb = [along(f32)?, along(bytes)?, along(words)?];
            let d = Tensor::zeros(DType::Bf16, &[m, n], device)?;
            let run = |i: usize| {
                fp8_gemm(layout, (&a, &sfa[i]), (&b, &sfb[i]), Addend::None, &mut d.clone(), &options)
            };
            run(0)?;
            stream.synchronize()?;
            let expected = d.to_bytes()?;
            for form in [1, 2] {
                run(form)?;
                let graph = stream.capture(|_| run(form))?;
                stream.synchronize()?;
                let direct = d.to_bytes()?;
                d.clone().write_bytes(&vec![0; expected.len()])?;
                graph.launch(&stream)?;
                stream.synchronize()?;
                ensure(direct == expected && d.to_bytes()? == expected, || {
                    format!(
                        "{layout} {m} {n} {k}, {rows} rows of scales, form {form}: other bits than with FP32"
                    )
                })?;
            }
        }
    }
    Ok(format!("{} shapes", shapes.len()))
}

/// Exponents of powers of two around 1, as f32, as bytes and packed.
fn exponents(seed: u64, dims: [usize; 2], device: &Device) -> Result<[Tensor; 3], Failure> {
    let bytes: Vec<u8> =
        random::normals(seed, dims[0] * dims[1]).iter().map(|x| (127.0 + 2.0 * x).round() as u8).collect();
    let values: Vec<f32> = bytes.iter().map(|e| f32::from_bits(u32::from(*e) << 23)).collect();
    let words: Vec<i32> = bytes
        .chunks(dims[1])
        .flat_map(|row| row.chunks(4))
        .map(|four| four.iter().rev().fold(0, |word, e| word << 8 | u32::from(*e)).cast_signed())
        .collect();
    let mut as_bytes = Tensor::zeros(DType::U8, &dims, device)?;
    as_bytes.write_bytes(&bytes)?;
    Ok([
        Tensor::from_slice(&values, &dims, device)?,
        as_bytes,
        Tensor::from_slice(&words, &[dims[0], dims[1].div_ceil(4)], device)?,
    ])
}

fn replayed(setup: &Setup) -> Result<String, Failure> {
    let stream = setup.device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    for layout in OTHER_LAYOUTS {
        let case = GemmCase::dense(FP8, layout, [70, 200, 640]);
        let draw = |seed| GemmCase { seed, ..case.clone() }.drawn_for(&setup.device);
        let (first, second) = (draw(1)?, draw(2)?);
        let mut operands = first.upload(&setup.device)?;
        operands.run(&options)?;
        let graph = stream.capture(|_| operands.run(&options))?;
        let mut fresh = second.upload(&setup.device)?;
        operands.replace(&second)?;
        operands.poison()?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        fresh.run(&GemmOptions::default())?;
        setup.device.synchronize()?;
        ensure(operands.d.to_bytes()? == fresh.d.to_bytes()?, || {
            format!("{layout}: a replay gave other bits")
        })?;
    }
    Ok(format!("{} layouts", OTHER_LAYOUTS.len()))
}

/// The same bits as with a K-major B, and nothing else written.
fn grouped_nn(setup: &Setup) -> Result<String, Failure> {
    let options = GemmOptions::default();
    for (turn, layout) in GROUP_LAYOUTS.into_iter().enumerate() {
        let case = m_grouped(FP8, layout, &[70, 0, 1, 129, 16], [144, 656], turn);
        let mut x = case.on(&setup.device)?;
        x.run(&options)?;
        let expected = x.d_memory.to_bytes()?;
        x.poison()?;
        let &[groups, n, k] = x.b.dims() else { return Err("B has groups".into()) };
        let codes = x.b.to_bytes()?;
        let turned = |i: usize| codes[(i / (n * k) * n + i % n) * k + i / n % k];
        let turned: Vec<u8> = (0..codes.len()).map(turned).collect();
        let b = Tensor::from_bytes(x.b.dtype(), &turned, &[groups, k, n], &setup.device)?;
        let Some([sfa, sfb]) = &x.scales else { return Err("FP8 has scales".into()) };
        let sfb = sfb.transpose(1, 2)?;
        let (a, b) = ((&x.a, sfa), (&b, &sfb));
        let numbers = x.numbers.as_ref().ok_or("groups have numbers")?;
        let rows = match layout {
            GroupLayout::Counts | GroupLayout::All => None,
            GroupLayout::Ids => Some(GroupedRows::Ids(numbers)),
            GroupLayout::Ends => Some(GroupedRows::Ends(numbers)),
        };
        match rows {
            None => m_grouped_fp8_gemm_nn_masked(a, b, &mut x.d, numbers, case.m, &options)?,
            Some(rows) => {
                let alignment = case.m_groups().map_or(1, |groups| groups.alignment);
                m_grouped_fp8_gemm_nn_contiguous(a, b, &mut x.d, rows, alignment, None, &options)?;
            }
        }
        setup.device.synchronize()?;
        ensure(x.d_memory.to_bytes()? == expected, || format!("{case}: other bits than nt"))?;
    }
    Ok(format!("{} layouts of groups", GROUP_LAYOUTS.len()))
}

/// Streams that live as long as it takes to give them work. The driver gives their handles to those that follow, whose
/// GEMMs have other operands: what one transposes must not be where the one before still reads. (One driver was seen to
/// queue it behind all the same.)
fn dropped_streams(setup: &Setup) -> Result<String, Failure> {
    const STREAMS: usize = 24;
    let case = GemmCase::dense(FP8, GemmLayout::Nn, [64, 256, 8192]);
    let draw = |seed| GemmCase { seed, ..case.clone() }.drawn_for(&setup.device);
    let data = [draw(1)?, draw(2)?];
    let upload = |data: &GemmData| data.upload(&setup.device);
    let mut expected = [upload(&data[0])?, upload(&data[1])?];
    for operands in &mut expected {
        operands.run(&GemmOptions::default())?;
        setup.device.synchronize()?;
    }
    let mut found = (0..STREAMS).map(|i| upload(&data[i % 2])).collect::<Result<Vec<_>, _>>()?;
    for operands in &mut found {
        let options = GemmOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
        (0..4).try_for_each(|_| operands.run(&options))?;
    }
    setup.device.synchronize()?;
    for (i, operands) in found.iter().enumerate() {
        let same = operands.d.to_bytes()? == expected[i % 2].d.to_bytes()?;
        ensure(same, || format!("the GEMM of stream {i} has other bits than alone"))?;
    }
    Ok(format!("{STREAMS} streams, every bit as alone"))
}

fn no_allocation(setup: &Setup) -> Result<String, Failure> {
    for layout in OTHER_LAYOUTS {
        let mut operands = GemmCase::dense(FP8, layout, [130, 256, 512]).on(&setup.device)?;
        let options = GemmOptions { stream: Some(setup.device.new_stream()?), ..Default::default() };
        operands.run(&options)?;
        setup.device.synchronize()?;
        let (result, count) = allocations(|| operands.run(&options));
        result?;
        ensure(count == 0, || format!("{layout}: {count} allocations"))?;
    }
    Ok(format!("{} layouts", OTHER_LAYOUTS.len()))
}

/// Rows alone and in batches of all sizes have the same bits.
fn batch_invariant(setup: &Setup, types: OperandTypes, layout: GemmLayout) -> Result<String, Failure> {
    const MOST: usize = 300;
    let gpu = setup.device.as_cuda().is_some();
    let shapes: &[[usize; 2]] =
        if gpu { &[[576, 7168], [4096, 512], [2112, 1000], [24, 4096]] } else { &[[40, 4000]] };
    let options = GemmOptions { batch_invariant: true, ..Default::default() };
    let mut compared = 0;
    for &[n, k] in shapes {
        let whole = GemmCase::dense(types, layout, [MOST, n, k]).on(&setup.device)?;
        let rows = |first: usize, count: usize| -> Result<Vec<u8>, Failure> {
            let mut operands = whole.rows(first, count)?;
            operands.run(&options)?;
            Ok(operands.d.to_bytes()?)
        };
        let all = rows(0, MOST)?;
        let width = all.len() / MOST;
        for count in [1, 7, 64, 130, MOST] {
            for first in [0, (MOST - count) / 2, MOST - count] {
                let same = rows(first, count)? == all[first * width..(first + count) * width];
                ensure(same, || {
                    format!("{types} {layout} n={n} k={k}: {count} rows from {first} on have other bits")
                })?;
                compared += 1;
            }
        }
    }
    Ok(format!("{compared} batches"))
}

/// Rows that stand further behind in their batch have the same bits, without any option.
fn place_in_batch(setup: &Setup, types: OperandTypes) -> Result<String, Failure> {
    // On a GPU so many tiles, and rows so long, that serpentine K would be worth it.
    let gpu = setup.device.as_cuda().is_some();
    let [rows, n, k] = if gpu { [4096, 1024, 8192] } else { [200, 40, 512] };
    let batch = MGroups::new(GroupLayout::All, vec![rows; 4]);
    let case = GemmCase { d_type: DType::F32, ..GemmCase::m_grouped(types, batch, [n, k]) };
    let mut gemm = case.on(&setup.device)?;
    gemm.run(&GemmOptions::default())?;
    let expected = gemm.d.to_bytes()?;
    // Rows of every matrix, so many places further behind.
    let moved = |bytes: &[u8], by: usize| -> Vec<u8> {
        let pitch = bytes.len() / (4 * rows);
        let matrices = bytes.chunks(rows * pitch).map(|matrix| matrix.split_at((rows - by) * pitch));
        matrices.flat_map(|(first, last)| [last, first].concat()).collect()
    };
    let (a, sfa) = (gemm.a.to_bytes()?, gemm.scales.as_ref().map(|[sfa, _]| sfa.to_bytes()).transpose()?);
    let places = [64, 128, rows / 2 + 1];
    for by in places {
        gemm.a.write_bytes(&moved(&a, by))?;
        if let (Some([scales, _]), Some(sfa)) = (&mut gemm.scales, &sfa) {
            scales.write_bytes(&moved(sfa, by))?;
        }
        gemm.run(&GemmOptions::default())?;
        let same = gemm.d.to_bytes()? == moved(&expected, by);
        ensure(same, || format!("{case}: rows have other bits {by} places further behind"))?;
    }
    Ok(format!("{} places of {rows} rows", places.len()))
}

//! Checks of attention (MQA) logits.

use oxigemm::check::Logits;
use oxigemm::{
    Arch, DType, Device, GemmOptions, RawMqaLogits, RawPagedMqaLogits, Tensor, fp8_mqa_logits_raw,
    fp8_paged_mqa_logits_raw, get_paged_mqa_logits_metadata_raw,
};
use oxigemm_kernels::KernelId;
use oxigemm_kernels::attention::{Config, DIMS, Format, HEAD_STEP, HEADS, HeadTile, Heads, PAGE_SIZES};

use super::random::Draw;
use super::{Check, Setup, ensure, expect_right, tally};
use crate::Failure;
use crate::cases::attention::{PagedHost, PagedSpec, PrefillHost, PrefillSpec, Ranges};
use crate::cases::hyper_connection::{HcHost, HcSpec};
use crate::counting::allocations;

const FORMS: [Logits; 3] = [Logits::Clean, Logits::Partial, Logits::Compressed];
const TYPES: [DType; 2] = [DType::F32, DType::Bf16];
/// Pages of dedicated kernels.
const PAGES: [usize; 4] = [16, 32, 64, 128];

/// Whether an architecture has kernels for logits, besides those that are the same for all.
fn has_kernels(arch: Arch) -> bool {
    let is_one =
        |kernel| matches!(kernel, KernelId::Attention(config) if !matches!(config, Config::PagedMetadata(_)));
    KernelId::all(arch).any(is_one)
}

/// Whether it has kernels for logits of FP4.
fn has_fp4_kernels(arch: Arch) -> bool {
    let is_one =
        |kernel| matches!(kernel, KernelId::Attention(Config::Sm100(config)) if config.format == Format::Fp4);
    KernelId::all(arch).any(is_one)
}

/// The comparison of a GPU with the simulator.
pub fn comparison(setup: &Setup) -> Check {
    let name = "the simulator gives the same bits of logits";
    if has_kernels(setup.arch()) { Check::on_gpu(name, same_bits_as_simulated) } else { Check::absent(name) }
}

pub fn checks(setup: &Setup) -> Vec<Check> {
    if !has_kernels(setup.arch()) {
        return ["mqa logits", "paged mqa logits"].map(Check::absent).into();
    }
    let fp4 = ["mqa logits of FP4: random shapes and ranges", "paged mqa logits of FP4: random pages"];
    let fp4 = match has_fp4_kernels(setup.arch()) {
        true => [Check::anywhere(fp4[0], random_fp4_prefills), Check::anywhere(fp4[1], random_fp4_pages)],
        false => fp4.map(Check::absent),
    };
    let mut all = vec![
        Check::anywhere("mqa logits: random shapes and ranges", random_prefills),
        Check::anywhere("mqa logits: every number of heads", prefills_of_any_heads),
        Check::anywhere("mqa logits: operands at the end of memory", prefills_at_the_end),
        Check::anywhere("mqa logits: repeats give the same bits", prefill_repeats),
        Check::anywhere("mqa logits: sizes of zero", prefills_of_nothing),
        Check::anywhere("mqa logits: bad arguments", bad_arguments),
        Check::with_kernels("mqa logits: a limited number of SMs", limited),
        Check::with_kernels("mqa logits: raw pointers", raw_prefill),
        Check::anywhere("paged mqa logits: random shapes, lengths and pages", random_pages),
        Check::anywhere("paged mqa logits: any heads, queries and pages", any_pages),
        Check::anywhere("paged mqa logits: any number of parts", any_parts),
        Check::anywhere("paged mqa logits: operands at the end of memory", pages_at_the_end),
        Check::anywhere("paged mqa logits: repeats give the same bits", paged_repeats),
        Check::anywhere("paged mqa logits: no keys at all", pages_of_nothing),
        Check::with_kernels("paged mqa logits: a graph is replayed with other lengths", replayed),
        Check::with_kernels("paged mqa logits: raw pointers", raw_pages),
        Check::on_gpu("mqa logits and hyper-connection (hc): a call allocates nothing", no_allocations),
    ];
    all.extend(fp4);
    all
}

/// Heads that there are dedicated kernels for.
fn dedicated() -> Vec<Heads> {
    HEADS.into_iter().flat_map(|heads| DIMS.map(|dim| Heads { heads, dim })).collect()
}

fn heads(draw: &mut Draw) -> [usize; 2] {
    let heads = draw.of(&dedicated());
    [heads.heads as usize, heads.dim as usize]
}

/// A prefill whose multiplications the device can be asked for.
fn prefill(draw: &mut Draw, heads: [usize; 2]) -> PrefillSpec {
    let mut dims = [1 + draw.below(70), 1 + draw.below(3000)];
    while dims[0] * dims[1] * heads[0] * heads[1] > draw.largest() {
        dims[1] = dims[1].div_ceil(2);
        dims[0] = (dims[0] * 3).div_ceil(4);
    }
    PrefillSpec {
        form: draw.of(&FORMS),
        dtype: draw.of(&TYPES),
        seed: draw.below(1 << 20) as u64,
        ..PrefillSpec::new(heads, dims, draw.of(&[Ranges::Wild, Ranges::Causal]))
    }
}

/// Sequences whose multiplications the device can be asked for, of a dedicated kernel.
fn paged(draw: &mut Draw, heads: [usize; 2]) -> PagedSpec {
    let next = 1 + draw.below(4);
    PagedSpec { page_keys: draw.of(&PAGES), ..sequences(draw, heads, next) }
}

/// The same for any number of queries.
fn sequences(draw: &mut Draw, heads: [usize; 2], next: usize) -> PagedSpec {
    let per_query = draw.below(2) == 0;
    let sequences = 1 + draw.below(9);
    let longest = (draw.largest() / (sequences * next * heads[0] * heads[1])).clamp(200, 4000);
    let count = if per_query { sequences * next } else { sequences };
    let lengths = (0..count)
        .map(|_| match draw.below(8) {
            0 => 0,
            1 => -5,
            2 => longest as i32 + 1000,
            _ => draw.below(longest) as i32,
        })
        .collect();
    PagedSpec {
        per_query,
        columns: longest + draw.below(50),
        wild: draw.below(4) == 0,
        clean: draw.below(2) == 0,
        dtype: draw.of(&TYPES),
        parts: [None, Some(1), Some(7), Some(300)][draw.below(4)],
        seed: draw.below(1 << 20) as u64,
        ..PagedSpec::new(heads, next, lengths)
    }
}

/// Runs a prefill and judges it.
fn check_prefill(setup: &Setup, spec: PrefillSpec, options: &GemmOptions) -> Result<f64, Failure> {
    let about = move |what: &str| format!("{spec}: {what}");
    setup.now(about("this"));
    let host = PrefillHost::draw(spec);
    let mut operands = host.upload(&setup.device)?;
    operands.run(options).map_err(|error| about(&error.to_string()))?;
    setup.device.synchronize().map_err(|error| about(&error.to_string()))?;
    let verdict = host.judge(&operands)?;
    expect_right(&verdict, about)?;
    Ok(verdict.worst_element)
}

/// Shares out the keys of sequences, runs and judges them.
fn check_paged(setup: &Setup, spec: PagedSpec) -> Result<f64, Failure> {
    let start = spec.to_string();
    let about = |what: &str| format!("{start}: {what}");
    setup.now(about("this"));
    let host = PagedHost::draw(spec);
    let mut operands = host.upload(&setup.device)?;
    let options = GemmOptions::default();
    operands.plan(&options).map_err(|error| about(&error.to_string()))?;
    operands.run(&options).map_err(|error| about(&error.to_string()))?;
    setup.device.synchronize().map_err(|error| about(&error.to_string()))?;
    let verdict = host.judge(&operands)?;
    expect_right(&verdict, about)?;
    Ok(verdict.worst_element)
}

fn random_prefills(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 41);
    let all = dedicated();
    tally((0..setup.count(96)).map(|i| {
        let Heads { heads, dim } = all[i * 5 % all.len()];
        let spec = prefill(&mut draw, [heads as usize, dim as usize]);
        check_prefill(setup, spec, &GemmOptions::default())
    }))
}

/// Heads of FP4, padded ones among them.
fn fp4_heads(draw: &mut Draw) -> [usize; 2] {
    [draw.of(&[8, 24, 32, 64, 96, 128]), draw.of(Format::Fp4.dims()) as usize]
}

fn random_fp4_prefills(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 48);
    tally((0..setup.count(48)).map(|_| {
        let heads = fp4_heads(&mut draw);
        let spec = PrefillSpec { format: Format::Fp4, ..prefill(&mut draw, heads) };
        check_prefill(setup, spec, &GemmOptions::default())
    }))
}

fn random_fp4_pages(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 49);
    tally((0..setup.count(48)).map(|_| {
        let heads = fp4_heads(&mut draw);
        check_paged(setup, PagedSpec { format: Format::Fp4, ..paged(&mut draw, heads) })
    }))
}

fn limited(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 42);
    tally([1, 2, 31, 100_000].into_iter().map(|sms| {
        let heads = heads(&mut draw);
        let spec = prefill(&mut draw, heads);
        check_prefill(setup, spec, &GemmOptions { num_sms: Some(sms), ..Default::default() })
    }))
}

fn random_pages(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 43);
    let all = dedicated();
    tally((0..setup.count(96)).map(|i| {
        let Heads { heads, dim } = all[i * 5 % all.len()];
        let spec = paged(&mut draw, [heads as usize, dim as usize]);
        check_paged(setup, spec)
    }))
}

fn prefills_of_any_heads(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 46);
    let all: Vec<Heads> = Heads::all().collect();
    tally((0..setup.count(48)).map(|i| {
        let Heads { heads, dim } = all[i * 7 % all.len()];
        let spec = prefill(&mut draw, [heads as usize, dim as usize]);
        // Every other one ends where its memory does: no head is read that a query lacks.
        let spec = PrefillSpec { keys: spec.keys.next_multiple_of(4), at_end: i % 2 == 1, ..spec };
        check_prefill(setup, spec, &GemmOptions::default())
    }))
}

/// More queries of a sequence than dedicated kernels have, larger pages, heads that are padded.
fn any_pages(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 47);
    let all: Vec<Heads> = Heads::all().collect();
    tally((0..setup.count(64)).map(|i| {
        let Heads { heads, dim } = all[i * 7 % all.len()];
        let next = draw.of(&[1, 2, 4, 5, 6, 8, 11, 16]);
        let spec = sequences(&mut draw, [heads as usize, dim as usize], next);
        let page_keys = draw.of(&PAGE_SIZES) as usize;
        check_paged(setup, PagedSpec { page_keys, at_end: i % 2 == 1, ..spec })
    }))
}

/// Parts for every SM, for half of them (as engines ask for with 4 queries), for one, and for more than there are tiles.
fn any_parts(setup: &Setup) -> Result<String, Failure> {
    let small = setup.device.as_cuda().is_none();
    let (heads, lengths) =
        if small { ([8, 32], vec![200, 0, 129]) } else { ([32, 64], vec![700, 0, 129, 1000, 3]) };
    tally([132, 66, 1, 500].into_iter().flat_map(|parts| {
        let spec = |next| PagedSpec { parts: Some(parts), ..PagedSpec::new(heads, next, lengths.clone()) };
        [1, 4, 7].map(|next| check_paged(setup, spec(next)))
    }))
}

fn prefills_at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 44);
    tally((0..setup.count(40)).map(|_| {
        let heads = heads(&mut draw);
        let spec = prefill(&mut draw, heads);
        // Scales begin at a multiple of 16 bytes, and are to end at one.
        let spec = PrefillSpec { keys: spec.keys.next_multiple_of(4), at_end: true, ..spec };
        check_prefill(setup, spec, &GemmOptions::default())
    }))
}

fn pages_at_the_end(setup: &Setup) -> Result<String, Failure> {
    let mut draw = Draw::new(setup, 45);
    tally((0..setup.count(40)).map(|_| {
        let heads = heads(&mut draw);
        check_paged(setup, PagedSpec { at_end: true, ..paged(&mut draw, heads) })
    }))
}

fn prefills_of_nothing(setup: &Setup) -> Result<String, Failure> {
    for dims in [[0, 100], [5, 0], [0, 0]] {
        let spec = PrefillSpec::new([64, 128], dims, Ranges::Wild);
        setup.now(spec.to_string());
        let host = PrefillHost::draw(spec);
        host.upload(&setup.device)?.run(&GemmOptions::default())?;
    }
    Ok("3 calls without queries or keys".to_owned())
}

fn pages_of_nothing(setup: &Setup) -> Result<String, Failure> {
    for (lengths, columns) in [(vec![], 100), (vec![0; 40], 100), (vec![-1; 3], 0), (vec![0, 0], 3000)] {
        for clean in [true, false] {
            let spec = PagedSpec { columns, clean, ..PagedSpec::new([32, 64], 2, lengths.clone()) };
            check_paged(setup, spec)?;
        }
    }
    Ok("8 calls without keys".to_owned())
}

fn prefill_repeats(setup: &Setup) -> Result<String, Failure> {
    let small = setup.device.as_cuda().is_none();
    let dims = if small { [9, 400] } else { [333, 5000] };
    let mut operands =
        PrefillHost::draw(PrefillSpec::new([64, 128], dims, Ranges::Causal)).upload(&setup.device)?;
    setup.same_bits_again(&"ranges that grow", || {
        operands.run(&GemmOptions::default())?;
        Ok(operands.logits.to_bytes()?)
    })?;
    Ok("all alike".to_owned())
}

fn paged_repeats(setup: &Setup) -> Result<String, Failure> {
    let small = setup.device.as_cuda().is_none();
    let lengths = if small { vec![300, 0, 129] } else { (0..77).map(|i| i * 97).collect() };
    let mut operands = PagedHost::draw(PagedSpec::new([64, 128], 2, lengths)).upload(&setup.device)?;
    setup.same_bits_again(&"sequences of many lengths", || {
        operands.plan(&GemmOptions::default())?;
        operands.run(&GemmOptions::default())?;
        Ok(operands.logits.to_bytes()?)
    })?;
    Ok("all alike".to_owned())
}

/// Lengths are numbers of the device: a captured step serves all that come later.
fn replayed(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let all = [vec![700, 3, 128, 0, 511], vec![0; 5], vec![1, 1000, 2, 900, 64], vec![1000; 5]];
    let spec = |lengths: &[i32]| PagedSpec {
        columns: 1000,
        parts: Some(9),
        // The same operands for all: lengths decide how many pages are drawn.
        wild: false,
        ..PagedSpec::new([32, 64], 1, lengths.to_vec())
    };
    let longest = PagedHost::draw(spec(&all[3]));
    let mut operands = longest.upload(device)?;
    let stream = device.new_stream()?;
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    operands.plan(&options)?;
    operands.run(&options)?;
    stream.synchronize()?;
    let expected = operands.logits.to_vec_f32()?;
    let graph = stream.capture(|_| {
        operands.plan(&options)?;
        operands.run(&options)
    })?;
    for lengths in &all {
        operands.lengths.write_bytes(&lengths.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
        graph.launch(&stream)?;
        stream.synchronize()?;
        let found = operands.logits.to_vec_f32()?;
        for (row, &length) in lengths.iter().enumerate() {
            let (found, expected) = (&found[row * 1000..][..1000], &expected[row * 1000..][..1000]);
            let (seen, hidden) = found.split_at(length as usize);
            let right =
                seen == &expected[..length as usize] && hidden.iter().all(|x| *x == f32::NEG_INFINITY);
            ensure(right, || format!("sequence {row} of {lengths:?} is wrong after a replay"))?;
        }
    }
    Ok(format!("{} replays", all.len()))
}

fn raw_prefill(setup: &Setup) -> Result<String, Failure> {
    let host = PrefillHost::draw(PrefillSpec::new([32, 64], [7, 300], Ranges::Wild));
    let (mut operands, raw) = (host.upload(&setup.device)?, host.upload(&setup.device)?);
    operands.run(&GemmOptions::default())?;
    let call = RawMqaLogits {
        queries: 7,
        heads: 32,
        dim: 64,
        keys: 300,
        columns: 300,
        q: raw.q.address(),
        kv: raw.kv.address(),
        kv_pitch: 64,
        kv_scales: raw.kv_scales.address(),
        weights: raw.weights.address(),
        weights_pitch: 32,
        starts: raw.bounds[0].address(),
        ends: raw.bounds[1].address(),
        logits: raw.logits.address(),
        logits_pitch: 300,
        logits_type: DType::F32,
        form: Logits::Clean,
    };
    // SAFETY: the operands are tensors of this device that live until it is done; a null pointer is refused.
    let refused = unsafe {
        fp8_mqa_logits_raw(&setup.device, &call, &GemmOptions::default())?;
        fp8_mqa_logits_raw(&setup.device, &RawMqaLogits { kv: 0, ..call }, &GemmOptions::default())
    };
    setup.device.synchronize()?;
    ensure(matches!(&refused, Err(error) if error.argument() == Some("kv")), || format!("{refused:?}"))?;
    ensure(raw.logits.to_bytes()? == operands.logits.to_bytes()?, || "other bits than tensors give".into())?;
    Ok("the bits of the tensors".to_owned())
}

fn raw_pages(setup: &Setup) -> Result<String, Failure> {
    let spec = PagedSpec { parts: Some(5), ..PagedSpec::new([16, 128], 2, vec![300, 70, 0]) };
    let host = PagedHost::draw(spec);
    let (mut operands, raw) = (host.upload(&setup.device)?, host.upload(&setup.device)?);
    operands.plan(&GemmOptions::default())?;
    operands.run(&GemmOptions::default())?;
    let call = RawPagedMqaLogits {
        sequences: 3,
        next: 2,
        heads: 16,
        dim: 128,
        pages: raw.kv_cache.dims()[0],
        page_keys: 64,
        table_pages: raw.table.dims()[1],
        columns: 300,
        parts: 5,
        q: raw.q.address(),
        kv_cache: raw.kv_cache.address(),
        page_pitch: 64 * 132,
        weights: raw.weights.address(),
        weights_pitch: 16,
        context_lens: raw.lengths.address(),
        lengths_per_query: false,
        block_table: raw.table.address(),
        table_pitch: raw.table.dims()[1],
        schedule: raw.schedule.address(),
        logits: raw.logits.address(),
        logits_pitch: 300,
        logits_type: DType::F32,
        clean: true,
    };
    let (lengths, schedule) = ((raw.lengths.address(), 3, None), (raw.schedule.address(), 5));
    // SAFETY: the operands are tensors of this device that live until it is done; a null pointer is refused.
    let refused = unsafe {
        get_paged_mqa_logits_metadata_raw(&setup.device, lengths, schedule, &GemmOptions::default())?;
        fp8_paged_mqa_logits_raw(&setup.device, &call, &GemmOptions::default())?;
        fp8_paged_mqa_logits_raw(
            &setup.device,
            &RawPagedMqaLogits { block_table: 0, ..call },
            &GemmOptions::default(),
        )
    };
    setup.device.synchronize()?;
    ensure(matches!(&refused, Err(error) if error.argument() == Some("block_table")), || {
        format!("{refused:?}")
    })?;
    ensure(raw.logits.to_bytes()? == operands.logits.to_bytes()?, || "other bits than tensors give".into())?;
    Ok("the bits of the tensors".to_owned())
}

/// Once a kernel is loaded.
fn no_allocations(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let options = GemmOptions { stream: Some(device.new_stream()?), ..Default::default() };
    let mut prefill =
        PrefillHost::draw(PrefillSpec::new([64, 128], [8, 300], Ranges::Wild)).upload(device)?;
    let mut paged = PagedHost::draw(PagedSpec::new([64, 128], 1, vec![300, 70])).upload(device)?;
    let mut hc = HcHost::draw(HcSpec::new([40, 24, 640], None, 1)).upload(device)?;
    let mut calls = || {
        prefill.run(&options)?;
        paged.plan(&options)?;
        paged.run(&options)?;
        hc.run(&options)
    };
    calls()?;
    let (result, count) = allocations(&mut calls);
    result?;
    device.synchronize()?;
    ensure(count == 0, || format!("{count} allocations"))?;
    Ok("0 allocations in 4 calls".to_owned())
}

fn bad_arguments(setup: &Setup) -> Result<String, Failure> {
    let device = &setup.device;
    let host = PrefillHost::draw(PrefillSpec::new([8, 32], [4, 50], Ranges::Wild));
    let new = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims, device);
    let mut count = 0;
    let mut refuse =
        |change: &dyn Fn(&mut crate::cases::attention::PrefillOperands) -> Result<(), Failure>,
         name: &str| {
            count += 1;
            let mut operands = host.upload(device)?;
            change(&mut operands)?;
            let result = operands.run(&GemmOptions::default());
            ensure(matches!(&result, Err(error) if error.argument() == Some(name)), || {
                format!("expected `{name}` to be refused, got {result:?}")
            })
        };
    macro_rules! refuse {
        ($field:ident = $value:expr, $name:literal) => {
            refuse(
                &|operands| {
                    operands.$field = $value;
                    Ok(())
                },
                $name,
            )?
        };
    }
    refuse!(q = new(DType::F32, &[4, 8, 32])?, "q");
    refuse!(q = new(DType::E4m3, &[4, 12, 32])?, "q");
    refuse!(q = new(DType::E4m3, &[4, 8, 48])?, "q");
    refuse!(q = new(DType::E4m3, &[4, 256])?, "q");
    refuse!(kv = new(DType::E4m3, &[50, 64])?, "kv");
    refuse!(kv = new(DType::E4m3, &[50, 40])?.narrow(1, 0, 32)?, "kv");
    refuse!(kv_scales = new(DType::F32, &[51])?, "kv_scales");
    refuse!(kv_scales = new(DType::F32, &[51])?.narrow(0, 1, 50)?, "kv_scales");
    refuse!(weights = new(DType::F32, &[4, 9])?, "weights");
    refuse!(bounds = [new(DType::F32, &[4])?, new(DType::I32, &[4])?], "starts");
    refuse!(bounds = [new(DType::I32, &[4])?, new(DType::I32, &[3])?], "ends");
    refuse!(logits = new(DType::F16, &[4, 50])?, "logits");
    refuse!(logits = new(DType::F32, &[4, 49])?, "logits");
    refuse!(logits = new(DType::F32, &[50, 4])?.transpose(0, 1)?, "logits");
    Ok(format!("{count} refused, each with its name"))
}

/// The same inputs on the GPU and in the simulator, for every kernel.
fn same_bits_as_simulated(setup: &Setup) -> Result<String, Failure> {
    let simulated = setup.simulator()?;
    let (mut cases, mut bytes) = (0, 0);
    let mut compare = |gpu: Vec<u8>, sim: Vec<u8>, what: String| {
        cases += 1;
        bytes += gpu.len();
        ensure(gpu == sim, || format!("{what}: the bits differ"))
    };
    for (i, HeadTile { heads, padded }) in HeadTile::all().enumerate() {
        // A padded kernel for fewer heads than it has.
        let sizes = [heads.heads - if padded { HEAD_STEP } else { 0 }, heads.dim].map(|size| size as usize);
        for turn in 0..if setup.quick { 1 } else { 2 } {
            let spec = PrefillSpec {
                form: FORMS[(i + turn) % 3],
                dtype: TYPES[(i / 3 + turn) % 2],
                seed: i as u64,
                ..PrefillSpec::new(sizes, [37, 700], Ranges::Wild)
            };
            setup.now(format!("{spec} on both"));
            let host = PrefillHost::draw(spec);
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut operands = host.upload(device)?;
                operands.run(&GemmOptions::default())?;
                Ok(operands.logits.to_bytes()?)
            };
            compare(bits(&setup.device)?, bits(&simulated)?, spec.to_string())?;
            let (next, per_query) = (1 + (i + turn) % 4, (i / 4 + turn) % 2 == 1);
            let (next, page_keys) = match padded {
                true => (next + 4 * ((i + turn) % 3), PAGE_SIZES[(i + turn) % 5] as usize),
                false => (next, PAGES[(i + turn) % 4]),
            };
            // Longer and shorter queries of one sequence, and some that see nothing.
            let lengths = [700, 0, 33, 128, 400, 699, -1, 257].into_iter().cycle();
            let spec = PagedSpec {
                per_query,
                page_keys,
                columns: 700,
                wild: true,
                clean: (i / 2 + turn) % 2 == 0,
                dtype: TYPES[(i + turn) % 2],
                parts: Some(5),
                seed: i as u64,
                ..PagedSpec::new(sizes, next, lengths.take(if per_query { 5 * next } else { 5 }).collect())
            };
            let what = spec.to_string();
            setup.now(format!("{what} on both"));
            let host = PagedHost::draw(spec);
            let bits = |device: &Device| -> Result<Vec<u8>, Failure> {
                let mut operands = host.upload(device)?;
                operands.plan(&GemmOptions::default())?;
                operands.run(&GemmOptions::default())?;
                Ok([operands.schedule.to_bytes()?, operands.logits.to_bytes()?].concat())
            };
            compare(bits(&setup.device)?, bits(&simulated)?, what)?;
        }
    }
    Ok(format!("{cases} calls, {bytes} bytes, no bit differs"))
}

//! Streams, events, graphs and raw pointers in the simulator behave as on a GPU.

use crate::common::{Case, PLAIN, Problem};
use oxigemm::{
    Addend, DType, Device, Error, GemmOptions, RawGemm, RawMatrix, RawScaleFactors, Sim, Tensor, fp8_gemm_nt,
    gemm_raw,
};

const CASE: Case = Case { dims: [5, 64, 256], ..PLAIN };

/// The product of a problem into `d`.
fn product(p: &Problem, c: Addend<'_>, d: &mut Tensor, options: &GemmOptions) -> oxigemm::Result<()> {
    let [sfa, sfb] = p.scales();
    fp8_gemm_nt((&p.a, sfa), (&p.b, sfb), c, d, options)
}

#[test]
fn a_captured_call_does_nothing_and_each_launch_reads_what_is_there() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let first = CASE.simulated(&sim);
    let expected = first.checked(None, "not captured");
    let [m, n, _] = CASE.dims;
    let mut d = Tensor::zeros(DType::Bf16, &[m, n], &device).unwrap();
    let graph = stream
        .capture(|captured| {
            assert!(captured.is_capturing()?);
            assert!(matches!(captured.synchronize(), Err(Error::Stream { .. })));
            assert!(matches!(captured.capture(|_| Ok(())), Err(Error::Stream { .. })));
            product(&first, Addend::None, &mut d, &options)
        })
        .unwrap();
    assert!(!stream.is_capturing().unwrap() && graph.device() == device.id());
    assert!(d.to_bytes().unwrap().iter().all(|byte| *byte == 0), "nothing was done yet");
    for _ in 0..2 {
        graph.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(d.to_bytes().unwrap(), expected);
        let cleared = vec![0; expected.len()];
        d.write_bytes(&cleared).unwrap();
    }
    // Other data at the same addresses.
    let mut a = first.a.clone();
    let ones = vec![0x38; a.len()];
    a.write_bytes(&ones).unwrap();
    graph.launch(&stream).unwrap();
    assert_ne!(d.to_bytes().unwrap(), expected, "the launch reads A as it is now");
    let direct = first.computed(None).unwrap();
    assert_eq!(d.to_bytes().unwrap(), direct.to_bytes().unwrap());
}

#[test]
fn a_graph_keeps_the_order_of_its_work() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let (stream, second) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    let options = GemmOptions { stream: Some(stream.clone()), ..Default::default() };
    let p = Case { d_type: DType::F32, ..CASE }.simulated(&sim);
    let [m, n, _] = CASE.dims;
    let new = |dtype, dims: [usize; 2]| Tensor::zeros(dtype, &dims, &device).unwrap();
    let (empty_a, empty_sfa) = (new(DType::E4m3, [m, 0]), new(DType::F32, [m, 0]));
    let (empty_b, empty_sfb) = (new(DType::E4m3, [n, 0]), new(DType::F32, [1, 0]));
    let mut d = Tensor::from_f32(DType::F32, &vec![9.0; m * n], &[m, n], &device).unwrap();
    // Clear (K is 0), then add twice.
    let graph = stream
        .capture(|_| {
            fp8_gemm_nt((&empty_a, &empty_sfa), (&empty_b, &empty_sfb), Addend::None, &mut d, &options)?;
            product(&p, Addend::InPlace, &mut d, &options)?;
            product(&p, Addend::InPlace, &mut d, &options)
        })
        .unwrap();
    graph.launch(&second).unwrap();
    let once = p.computed(None).unwrap().to_vec_f32().unwrap();
    let twice: Vec<f32> = once.iter().map(|x| x + x).collect();
    assert_eq!(d.to_vec_f32().unwrap(), twice);
    // A graph can be part of another.
    let outer = second.capture(|second| graph.launch(second)).unwrap();
    outer.launch(&stream).unwrap();
    assert_eq!(d.to_vec_f32().unwrap(), twice);
}

#[test]
fn a_capture_that_fails_leaves_the_stream_as_it_was() {
    let device = Device::sim();
    let stream = device.new_stream().unwrap();
    let failed = stream.capture(|_| Err(Error::Stream { reason: "as asked".to_owned() }));
    assert!(matches!(failed, Err(Error::Stream { .. })));
    assert!(!stream.is_capturing().unwrap());
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.capture(|_| panic!("as asked"))));
    assert!(panicked.is_err() && !stream.is_capturing().unwrap());
    assert!(stream.is_idle().unwrap());
}

#[test]
fn streams_events_and_graphs_belong_to_their_device() {
    let (here, there) = (Device::sim(), Device::sim());
    let (stream, foreign) = (here.new_stream().unwrap(), there.new_stream().unwrap());
    let (start, end) = (here.event().unwrap(), here.event().unwrap());
    assert!(start.elapsed_ms(&end).is_err(), "not recorded yet");
    stream.record(&start).unwrap();
    stream.record(&end).unwrap();
    stream.wait(&start).unwrap();
    assert!(start.has_happened().unwrap() && start.elapsed_ms(&end).unwrap() >= 0.0);
    assert!(matches!(foreign.record(&start), Err(Error::Device { argument: "event", .. })));
    assert!(matches!(foreign.wait(&start), Err(Error::Device { argument: "event", .. })));
    let graph = stream.capture(|_| Ok(())).unwrap();
    assert!(matches!(graph.launch(&foreign), Err(Error::Device { argument: "stream", .. })));
    let p = CASE.simulated(here.as_sim().unwrap());
    let mut d = p.fresh().d.clone();
    let options = GemmOptions { stream: Some(foreign), ..Default::default() };
    let refused = product(&p, Addend::None, &mut d, &options);
    assert!(matches!(refused, Err(Error::Device { argument: "stream", .. })), "{refused:?}");
    assert!(matches!(Device::Cpu.new_stream(), Err(Error::Device { .. })));
    assert!(matches!(Device::Cpu.event(), Err(Error::Device { .. })));
}

#[test]
fn raw_pointers_are_addresses_of_the_simulated_memory() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let p = CASE.simulated(&sim);
    let expected = p.checked(None, "tensors");
    let [m, n, k] = CASE.dims;
    let d = Tensor::zeros(DType::Bf16, &[m, n], &device).unwrap();
    let pitched = |x: &Tensor| RawMatrix::new(x.address(), DType::E4m3, x.strides()[0]);
    let [sfa, sfb] = p.scales().map(|x| RawScaleFactors::new(x.address(), [x.strides()[0], x.strides()[1]]));
    let to = RawMatrix::new(d.address(), DType::Bf16, n);
    let gemm = RawGemm::new([m, n, k], pitched(&p.a), pitched(&p.b), to).with_scales(sfa, sfb);
    let stream = device.new_stream().unwrap();
    let options = GemmOptions { stream: Some(stream), ..Default::default() };
    // SAFETY: the tensors are alive, and the simulator checks every access.
    unsafe {
        gemm_raw(&device, &gemm, &options).unwrap();
        assert_eq!(d.to_bytes().unwrap(), expected);
        let b = RawMatrix { address: 0, ..gemm.b };
        let null = gemm_raw(&device, &RawGemm { b, ..gemm }, &options);
        assert!(matches!(null, Err(Error::NullPointer { argument: "b", .. })), "{null:?}");
        // Memory that is not there is a fault and not a crash.
        let outside = gemm_raw(&device, &RawGemm { m: 4 * m, ..gemm }, &options);
        assert!(matches!(outside, Err(Error::Fault { .. })), "{outside:?}");
        let cpu = gemm_raw(&Device::Cpu, &gemm, &GemmOptions::default());
        assert!(matches!(cpu, Err(Error::Device { argument: "device", .. })), "{cpu:?}");
    }
}

#[test]
fn threads_with_streams_of_their_own_get_the_same_bits() {
    let sim = Sim::new();
    let device = Device::Sim(sim.clone());
    let p = CASE.simulated(&sim);
    let expected = p.checked(None, "one thread");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let options =
                    GemmOptions { stream: Some(device.new_stream().unwrap()), ..Default::default() };
                for _ in 0..3 {
                    let mut d = p.fresh().d.clone();
                    product(&p, Addend::None, &mut d, &options).unwrap();
                    assert_eq!(d.to_bytes().unwrap(), expected);
                }
            });
        }
    });
}

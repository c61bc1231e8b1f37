//! Calls before and after a fork, and interrupted calls. One test: a fork copies whatever other tests hold, and the hook
//! is that of the process.
#![cfg(unix)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::{Addend, DType, Device, Error, GemmOptions, Result, Tensor, fp8_gemm_nt, random};

/// The bits of a GEMM.
fn gemm(device: &Device, [m, n, k]: [usize; 3]) -> Result<Vec<u8>> {
    let a = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
    let b = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
    let ((a, sfa), (b, sfb)) = (a.to_tensors(device)?, b.to_tensors(device)?);
    let mut d = Tensor::empty(DType::Bf16, &[m, n], device)?;
    fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
    d.to_bytes()
}

/// The exit status of a forked child that runs `work`, 0 where that says true; none where it hangs.
fn in_child(work: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child runs `work` and ends without returning to the harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "the process can be forked");
    if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place to write to.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() > deadline {
            // SAFETY: the child was started above and has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

static INTERRUPT: AtomicBool = AtomicBool::new(false);
const SMALL: [usize; 3] = [16, 64, 256];
/// Seconds in the simulator, and on a slow CPU.
const LONG: [usize; 3] = [512, 2048, 4096];

#[test]
fn calls_work_in_a_forked_child_and_can_be_interrupted() {
    let (cpu, sim) = (Device::cpu(), Device::sim());
    let (on_cpu, in_sim) = (gemm(&cpu, SMALL).unwrap(), gemm(&sim, SMALL).unwrap());
    // Twice, as the second child finds what the parent has started since.
    for _ in 0..2 {
        assert_eq!(in_child(|| gemm(&cpu, SMALL).unwrap() == on_cpu), Some(0), "the CPU in a child");
        assert_eq!(in_child(|| gemm(&sim, SMALL).unwrap() == in_sim), Some(0), "the simulator in a child");
        assert_eq!(gemm(&cpu, SMALL).unwrap(), on_cpu);
        assert_eq!(gemm(&sim, SMALL).unwrap(), in_sim);
    }

    // A child that is forked while another thread simulates has the device in the middle of a kernel.
    oxigemm::set_interrupt_hook(Some(|| INTERRUPT.load(Ordering::Relaxed)));
    let busy = sim.clone();
    let other = std::thread::spawn(move || gemm(&busy, LONG));
    let is_busy = || {
        let (busy, deadline) = (sim.clone(), Instant::now() + Duration::from_secs(60));
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(Tensor::empty(DType::F32, &[1], &busy).is_ok()));
        receive.recv_timeout(Duration::from_millis(200)).is_err() || Instant::now() > deadline
    };
    while !is_busy() {}
    let refused = || {
        let error = gemm(&sim, SMALL).unwrap_err();
        matches!(error, Error::Forked { .. })
            && error.to_string().contains("was forked: open a new one")
            && gemm(&Device::sim(), SMALL).unwrap() == in_sim
            && gemm(&cpu, SMALL).unwrap() == on_cpu
    };
    assert_eq!(in_child(refused), Some(0), "a child of a process whose simulator runs");

    // The thread is interrupted, and the device is as good as new.
    INTERRUPT.store(true, Ordering::Relaxed);
    let asked = Instant::now();
    assert!(matches!(other.join().unwrap(), Err(Error::Interrupted)));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    INTERRUPT.store(false, Ordering::Relaxed);
    assert_eq!(gemm(&sim, SMALL).unwrap(), in_sim);

    let caller = std::thread::spawn(|| gemm(&Device::cpu(), [8192, 4096, 4096]));
    std::thread::sleep(Duration::from_millis(300));
    INTERRUPT.store(true, Ordering::Relaxed);
    assert!(matches!(caller.join().unwrap(), Err(Error::Interrupted)), "the CPU is interrupted");
    oxigemm::set_interrupt_hook(None);
    assert_eq!(gemm(&cpu, SMALL).unwrap(), on_cpu);
}

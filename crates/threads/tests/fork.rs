//! A pool in a process, in its forked child, and interrupted. One test, as the hook is that of the process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use oxigemm_threads::{Pool, set_interrupt_hook};
use rayon::prelude::*;

static POOL: Pool = Pool::new("test");
static ASKED: AtomicU32 = AtomicU32::new(0);

fn sum() -> u64 {
    POOL.run(|_| (0..100_000u64).into_par_iter().map(|x| x % 7).sum())
}

/// The exit status of a forked child that runs `work`; it is killed after ten seconds.
fn in_child(work: impl FnOnce() -> bool) -> Option<i32> {
    // SAFETY: the child runs `work` and ends without returning to the harness.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "the process can be forked");
    if child == 0 {
        let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid place to write to.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
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

#[test]
fn a_pool_works_in_a_forked_child_and_is_interrupted_by_the_hook() {
    let expected = sum();
    assert_eq!(in_child(|| sum() == expected), Some(0), "a child");
    assert_eq!(
        in_child(|| sum() == expected && in_child(|| sum() == expected) == Some(0)),
        Some(0),
        "its child"
    );
    assert_eq!(sum(), expected, "the parent");

    let until_raised = || {
        let started = Instant::now();
        let ended = POOL.run(|interrupt| {
            while !interrupt.is_raised() {
                if started.elapsed() > Duration::from_secs(10) {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        });
        ended && started.elapsed() < Duration::from_secs(2)
    };
    set_interrupt_hook(Some(|| ASKED.fetch_add(1, Ordering::Relaxed) >= 2));
    assert_eq!(sum(), expected, "work that does not look at its flag comes to its end");
    assert!(until_raised());
    let asked = ASKED.load(Ordering::Relaxed);
    let started = Instant::now();
    (0..1000).for_each(|_| assert_eq!(POOL.run(|_| 1), 1));
    let more = u128::from(ASKED.load(Ordering::Relaxed) - asked);
    assert!(more <= started.elapsed().as_millis() / 50 + 1, "{more} questions");
    let panicked = std::panic::catch_unwind(|| POOL.run(|_| -> i32 { panic!("of the work") }));
    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"of the work"));
    set_interrupt_hook(None);
    assert_eq!(sum(), expected);
}

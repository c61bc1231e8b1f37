//! Thread pools that survive a fork, and the interruption of what runs on them.
//!
//! rayon's global pool belongs to the process that started it. A forked child has the pool and none of its threads, so
//! its first parallel loop waits forever. A [`Pool`] remembers its process and starts new threads in a child.
//!
//! Work that takes long is interrupted by a flag ([`Interrupt`]), which it looks at now and then. The thread that made
//! the call waits meanwhile, and asks a [hook](set_interrupt_hook) of the process whether to raise the flag: an
//! interpreter that handles signals only on its main thread can do so there.

#![warn(missing_docs)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

/// From one question to the hook to the next, on one thread.
const POLL: Duration = Duration::from_millis(50);

/// A thread for each core, started at the first use in a process. It lives as long as the process.
///
/// ```
/// use oxigemm_threads::Pool;
/// use rayon::prelude::*;
///
/// static POOL: Pool = Pool::new("squares");
/// assert_eq!(POOL.run(|_| (0..10).into_par_iter().map(|x| x * x).sum::<i32>()), 285);
/// ```
#[derive(Debug)]
pub struct Pool {
    name: &'static str,
    /// Null before the first use.
    started: AtomicPtr<Started>,
}

#[derive(Debug)]
struct Started {
    process: u32,
    threads: ThreadPool,
}

impl Pool {
    /// A pool whose threads have this name and a number.
    pub const fn new(name: &'static str) -> Pool {
        Pool { name, started: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The threads of this process.
    ///
    /// # Panics
    /// If the system starts no thread.
    pub fn threads(&self) -> &'static ThreadPool {
        let process = std::process::id();
        loop {
            let known = self.started.load(Ordering::Acquire);
            // SAFETY: what is stored comes from a box and is never freed.
            if let Some(started) = unsafe { known.as_ref() }
                && started.process == process
            {
                return &started.threads;
            }
            // No lock is involved: another thread could hold one at the moment of a fork. The pool of the parent is
            // left as it is, as its threads are not here to end.
            let fresh = Box::into_raw(Box::new(Started { process, threads: self.start() }));
            match self.started.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it is stored now, and never freed.
                Ok(_) => return unsafe { &(*fresh).threads },
                // SAFETY: it comes from the box above, and nobody else has seen it.
                Err(_) => drop(unsafe { Box::from_raw(fresh) }),
            }
        }
    }

    fn start(&self) -> ThreadPool {
        let name = self.name;
        let pool = ThreadPoolBuilder::new().thread_name(move |i| format!("{name}-{i}")).build();
        pool.unwrap_or_else(|error| panic!("the system starts no threads for {name}: {error}"))
    }

    /// Runs work on the pool, where parallel loops use its threads, and waits for it. Where the caller is a thread of a
    /// pool already, the work runs there.
    ///
    /// The work may look at the flag that it is given, and return early where it is raised.
    pub fn run<R: Send>(&self, work: impl FnOnce(&Interrupt) -> R + Send) -> R {
        let interrupt = Interrupt::default();
        if rayon::current_thread_index().is_some() {
            return work(&interrupt);
        }
        if hook().is_none() {
            return self.threads().install(|| work(&interrupt));
        }
        let done = self.threads().in_place_scope(|scope| {
            let (send, receive) = sync_channel(1);
            let flag = &interrupt;
            // The receiver waits for it.
            scope.spawn(move |_| drop(send.send(work(flag))));
            wait(&receive, &interrupt).ok()
        });
        done.expect("a panic of the work has gone on to the caller")
    }
}

/// A flag that asks running work to end early. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks the work to end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the work should end.
    #[inline]
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The hook, as a pointer to a function.
static HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the hook of the process: whether the call that this thread waits for should end early. It is asked at most
/// every 50 ms, on the thread that made the call.
pub fn set_interrupt_hook(hook: Option<fn() -> bool>) {
    HOOK.store(hook.map_or(std::ptr::null_mut(), |hook| hook as *mut ()), Ordering::Release);
}

fn hook() -> Option<fn() -> bool> {
    let hook = HOOK.load(Ordering::Acquire);
    // SAFETY: what is stored is null or such a function.
    (!hook.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), fn() -> bool>(hook) })
}

/// Whether the hook says that the call that this thread waits for should end early.
pub fn is_interrupt_asked() -> bool {
    hook().is_some_and(|hook| hook())
}

/// Waits for a message, and raises the flag of who will send it where the hook says so.
///
/// # Errors
/// If the sender is gone.
pub fn wait<T>(receiver: &Receiver<T>, interrupt: &Interrupt) -> Result<T, RecvError> {
    let Some(hook) = hook() else { return receiver.recv() };
    thread_local! {
        static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    loop {
        // Many short calls in a row are interrupted as well as a long one.
        let due = ASKED.get().is_none_or(|asked| asked.elapsed() >= POLL);
        if due && !interrupt.is_raised() {
            if hook() {
                interrupt.raise();
            }
            ASKED.set(Some(Instant::now()));
        }
        match receiver.recv_timeout(POLL) {
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

//! The lock of a simulated machine, which knows the process that holds it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::error::{Error, Result};

/// A value behind a lock. A simulation holds it for as long as it runs: a process that is forked meanwhile gets it
/// locked by a thread that it does not have, and is told so instead of waiting forever.
#[derive(Default)]
pub(super) struct Guarded<T> {
    value: Mutex<T>,
    /// The process whose thread holds the lock; 0 where none does.
    holder: AtomicU32,
}

/// The value, locked.
pub(super) struct Held<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a AtomicU32,
}

impl<T> Guarded<T> {
    /// Locks it.
    ///
    /// # Errors
    /// [`Error::Forked`], where a thread of the parent process held it when this one was forked.
    pub fn lock(&self) -> Result<Held<'_, T>> {
        let process = std::process::id();
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let holder = self.holder.load(Ordering::Acquire);
                if holder != 0 && holder != process {
                    return Err(Error::Forked { device: "sim".to_owned() });
                }
                self.value.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        self.holder.store(process, Ordering::Release);
        Ok(Held { value, holder: &self.holder })
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.holder.store(0, Ordering::Release);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

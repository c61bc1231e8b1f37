//! Limits of a device: SMs, clusters and shared memory.

/// Bytes of shared memory that the system reserves in every block.
pub(crate) const RESERVED_SHARED: u32 = 1024;

/// Limits of a device that planning depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// SMs that may be used.
    pub sms: u32,
    /// Clusters of two blocks, one block per SM, that run at a time.
    pub clusters_of_2: u32,
    /// Clusters of four blocks that run at a time.
    pub clusters_of_4: u32,
    /// Bytes of shared memory that a block may have.
    pub shared_per_block: u32,
    /// Bytes of shared memory of an SM.
    pub shared_per_sm: u32,
    /// Whether `sms` is less than the device has: kernels must not spread over more.
    pub restricted: bool,
}

impl Limits {
    /// An H200, or an H100 of the SXM form.
    #[must_use]
    pub const fn h200() -> Limits {
        Limits {
            sms: 132,
            clusters_of_2: 66,
            clusters_of_4: 30,
            shared_per_block: 232_448,
            shared_per_sm: 233_472,
            restricted: false,
        }
    }

    /// A Hopper device with this many SMs.
    ///
    /// Some SMs of an uneven GPC stay without a cluster of four, in the proportion of the H200.
    #[must_use]
    pub fn hopper(sms: u32, shared_per_block: u32) -> Limits {
        let h200 = Limits::h200();
        Limits {
            sms: sms.max(1),
            clusters_of_2: (sms / 2).max(1),
            clusters_of_4: (sms * h200.clusters_of_4 / h200.sms).max(1),
            shared_per_block,
            shared_per_sm: shared_per_block + RESERVED_SHARED,
            restricted: false,
        }
    }

    /// The same device with at most `sms` of its SMs.
    #[must_use]
    pub fn restricted_to(self, sms: u32) -> Limits {
        if sms >= self.sms {
            return self;
        }
        Limits {
            restricted: true,
            shared_per_sm: self.shared_per_sm,
            ..Limits::hopper(sms, self.shared_per_block)
        }
    }

    /// How many clusters of this many blocks run at a time, where a block takes a whole SM.
    #[must_use]
    pub fn clusters(&self, blocks: u32) -> u32 {
        match blocks {
            0 | 1 => self.sms,
            2 => self.clusters_of_2,
            _ => (self.clusters_of_4 * 4 / blocks).max(1),
        }
    }
}

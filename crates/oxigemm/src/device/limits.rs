//! Limits of a device: what planning knows of it.

use oxigemm_kernels::Arch;

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The architecture.
    pub arch: Arch,
    /// SMs that may be used.
    pub sms: u32,
    /// Clusters of two blocks that run at a time, with one block on an SM.
    pub clusters_of_2: u32,
    /// Clusters of four blocks that run at a time.
    pub clusters_of_4: u32,
    /// Bytes of shared memory that a block may have.
    pub shared_per_block: u32,
    /// Bytes of shared memory of an SM.
    pub shared_per_sm: u32,
    /// Whether `sms` is less than the device has: kernels must not use more.
    pub restricted: bool,
}

impl Limits {
    /// An H200, or an H100 SXM.
    #[must_use]
    pub const fn h200() -> Limits {
        let arch = Arch::Sm90a;
        Limits {
            arch,
            sms: 132,
            clusters_of_2: 66,
            clusters_of_4: 30,
            shared_per_block: arch.limits().shared_per_block,
            shared_per_sm: arch.limits().shared_per_sm,
            restricted: false,
        }
    }

    /// A B200.
    ///
    /// SMs and shared memory are NVIDIA's figures; clusters that run at a time are as many as SMs allow in the proportion
    /// of the H200, and not measured.
    #[must_use]
    pub const fn b200() -> Limits {
        let arch = Arch::Sm100a;
        Limits {
            arch,
            sms: 148,
            clusters_of_2: 74,
            clusters_of_4: 33,
            shared_per_block: arch.limits().shared_per_block,
            shared_per_sm: arch.limits().shared_per_sm,
            restricted: false,
        }
    }

    /// A device of an architecture with this many SMs.
    #[must_use]
    pub fn of(arch: Arch, sms: u32, shared_per_block: u32) -> Limits {
        match arch {
            Arch::Sm90a => Limits::h200().with_sms(sms, shared_per_block),
            Arch::Sm100a => Limits::b200().with_sms(sms, shared_per_block),
        }
    }

    /// A device of the same kind with this many SMs.
    ///
    /// Some SMs of an uneven GPC (graphics processing cluster) have no cluster of four, in the proportion of this device.
    fn with_sms(self, sms: u32, shared_per_block: u32) -> Limits {
        Limits {
            sms: sms.max(1),
            clusters_of_2: (sms / 2).max(1),
            clusters_of_4: (sms * self.clusters_of_4 / self.sms).max(1),
            shared_per_block,
            shared_per_sm: shared_per_block + self.arch.limits().reserved_shared,
            ..self
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
            ..Limits::of(self.arch, sms, self.shared_per_block)
        }
    }

    /// Clusters of this many blocks that run at a time, where a block takes a whole SM.
    #[must_use]
    pub fn clusters(&self, blocks: u32) -> u32 {
        match blocks {
            0 | 1 => self.sms,
            2 => self.clusters_of_2,
            // Forty did not run at a time on an H200, whose GPCs have 16 or 18 SMs.
            3 => (self.clusters_of_4 * 6 / 5).max(1),
            _ => (self.clusters_of_4 * 4 / blocks).max(1),
        }
    }
}

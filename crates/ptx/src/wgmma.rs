//! `wgmma`: warpgroup MMA (PTX manual, "Asynchronous Warpgroup Level Matrix Instructions").

use crate::convert::Fp8;
pub use crate::descriptor::{Descriptor, DescriptorVar, Major, Swizzle};
use crate::kernel::Kernel;
use crate::target::Needs;
use crate::value::{Pred, U32, Var};

/// The types of a product's operands; the accumulator is FP32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaType {
    /// FP8 by FP8, formats chosen separately. K is 32.
    Fp8(Fp8, Fp8),
    /// BF16. K is 16.
    Bf16,
    /// FP16. K is 16.
    F16,
    /// TF32. K is 8.
    Tf32,
}

impl MmaType {
    /// Elements of K in one instruction.
    pub const fn k(self) -> u32 {
        match self {
            MmaType::Fp8(..) => 32,
            MmaType::Bf16 | MmaType::F16 => 16,
            MmaType::Tf32 => 8,
        }
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            MmaType::Fp8(a, b) => (a.name(), b.name()),
            MmaType::Bf16 => ("bf16", "bf16"),
            MmaType::F16 => ("f16", "f16"),
            MmaType::Tf32 => ("tf32", "tf32"),
        }
    }
}

/// The A operand: 64 rows, in shared memory or in the warpgroup's registers.
pub enum MatrixA<'k, 'r> {
    /// In shared memory.
    Shared(Descriptor<'k>),
    /// Four registers of each thread, in the layout of the manual's register fragment.
    Registers(&'r [U32<'k>; 4]),
}

impl Kernel {
    /// Issues `accumulator (+)= A · B` for 64 rows and `2 * accumulator.len()` columns, asynchronously.
    ///
    /// `accumulate` says whether the old accumulator is added. Thread `t` of the warpgroup holds, in
    /// `accumulator[4 i ..]`, columns `8 i + 2 (t % 4)` and the next, of rows `16 (t / 32) + (t % 32) / 4`
    /// (first two) and eight further down (last two).
    ///
    /// ```
    /// # use oxigemm_ptx::{Kernel, Target, wgmma::*, Fp8};
    /// let k = Kernel::new("product", Target::Sm90a);
    /// let shared = k.dynamic_shared();
    /// let a = Descriptor::k_major(shared, Swizzle::B128);
    /// let b = Descriptor::k_major(shared.at(8192), Swizzle::B128);
    /// let acc = k.fragment::<f32>(64);
    /// k.wgmma_fence();
    /// let types = MmaType::Fp8(Fp8::E4m3, Fp8::E4m3);
    /// k.wgmma(types, &acc, MatrixA::Shared(a), b, (Major::K, Major::K), k.constant(false));
    /// k.wgmma_commit();
    /// k.wgmma_wait(0);
    /// let text = k.finish()?.text;
    /// assert!(text.contains("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"));
    /// # Ok::<(), oxigemm_ptx::BuildError>(())
    /// ```
    #[track_caller]
    pub fn wgmma<'k>(
        &'k self,
        types: MmaType,
        accumulator: &[Var<'k, f32>],
        a: MatrixA<'k, '_>,
        b: Descriptor<'k>,
        (major_a, major_b): (Major, Major),
        accumulate: Pred<'k>,
    ) {
        let n = accumulator.len() * 2;
        self.require(n.is_multiple_of(8) && (8..=256).contains(&n), || {
            format!("wgmma takes 8 to 256 columns in steps of 8, not {n} (twice the accumulator's length)")
        });
        let halves = matches!(types, MmaType::Bf16 | MmaType::F16);
        let from_registers = matches!(a, MatrixA::Registers(_));
        self.require(halves || (major_a, major_b) == (Major::K, Major::K), || {
            "only 16-bit operands of wgmma may be MN-major".into()
        });
        self.require(!from_registers || major_a == Major::K, || {
            "A in registers has no major: say Major::K".into()
        });
        let registers: Vec<_> = accumulator.iter().map(|x| x.live().operand().to_string()).collect();
        let a = match a {
            MatrixA::Shared(descriptor) => descriptor.pack().operand().to_string(),
            MatrixA::Registers(words) => {
                format!("{{{}}}", words.map(|w| w.in_register().operand().to_string()).join(", "))
            }
        };
        let transposed = |major| u32::from(major == Major::MN);
        let majors = match (halves, from_registers) {
            (true, false) => format!(", {}, {}", transposed(major_a), transposed(major_b)),
            (true, true) => format!(", {}", transposed(major_b)),
            (false, _) => String::new(),
        };
        let (b, p, (type_a, type_b)) = (b.pack().operand(), accumulate.operand(), types.names());
        self.emit(
            Needs::SM90A,
            format_args!(
                "wgmma.mma_async.sync.aligned.m64n{n}k{}.f32.{type_a}.{type_b} {{{}}}, {a}, {b}, {p}, 1, 1{majors};",
                types.k(),
                registers.join(", ")
            ),
        );
    }

    /// Orders this warpgroup's register accesses before its next `wgmma`.
    #[track_caller]
    pub fn wgmma_fence(&self) {
        self.emit(Needs::SM90A, format_args!("wgmma.fence.sync.aligned;"));
    }

    /// Ends the group of products issued so far.
    #[track_caller]
    pub fn wgmma_commit(&self) {
        self.emit(Needs::SM90A, format_args!("wgmma.commit_group.sync.aligned;"));
    }

    /// Waits until at most `pending` groups are unfinished.
    #[track_caller]
    pub fn wgmma_wait(&self, pending: u32) {
        self.require(pending < 8, || format!("wgmma.wait_group takes 0 to 7, not {pending}"));
        self.emit(Needs::SM90A, format_args!("wgmma.wait_group.sync.aligned {pending};"));
    }

    /// Gives registers back to the pool; the whole warpgroup executes it.
    #[track_caller]
    pub fn registers_down(&self, to: u32) {
        self.check_register_count(to);
        self.emit(Needs::SM90A_ON, format_args!("setmaxnreg.dec.sync.aligned.u32 {to};"));
    }

    /// Takes registers from the pool, waiting for them; the whole warpgroup executes it.
    #[track_caller]
    pub fn registers_up(&self, to: u32) {
        self.check_register_count(to);
        self.emit(Needs::SM90A_ON, format_args!("setmaxnreg.inc.sync.aligned.u32 {to};"));
    }

    #[track_caller]
    fn check_register_count(&self, count: u32) {
        self.require((24..=256).contains(&count) && count.is_multiple_of(8), || {
            format!("setmaxnreg takes 24 to 256 in steps of 8, not {count}")
        });
    }
}

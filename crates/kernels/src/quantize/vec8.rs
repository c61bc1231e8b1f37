//! `Vec8`: eight neighbours of a row in the registers of one lane, and their types.

use oxigemm_ptx::tma::CachePolicy;
use oxigemm_ptx::{F16x2, F32, Global, Kernel, Pred, Shared, U32, U64};

pub use crate::common::codes::Code;
pub(crate) use crate::common::codes::bits;
use crate::common::codes::{encode_e2m1, high_bytes, replicate_signs};
use crate::gemm::operand::f16::Half;

/// Elements of a [`Vec8`](self).
pub const VEC8: u32 = 8;
/// Bytes of a vector access.
pub(crate) const VECTOR_BYTES: u32 = 16;

/// Type of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Input {
    /// All of them.
    pub const ALL: [Input; 3] = [Input::Bf16, Input::F16, Input::F32];

    /// Name in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Input::Bf16 => "bf16",
            Input::F16 => "fp16",
            Input::F32 => "fp32",
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Input::Bf16 | Input::F16 => 2,
            Input::F32 => 4,
        }
    }

    /// 16-byte vectors of a `Vec8`.
    pub(crate) const fn vectors(self) -> u32 {
        self.bytes() * VEC8 / VECTOR_BYTES
    }

    /// Widens a magnitude, given as the bits without the sign, to the bits of an `f32`.
    #[track_caller]
    pub(crate) fn widen_abs<'k>(self, k: &'k Kernel, amax: U32<'k>) -> U32<'k> {
        match self {
            Input::Bf16 => amax << 16,
            Input::F16 => {
                let [value, _] = k.join_halves(amax.to_u16(), amax.to_u16()).bitcast::<F16x2>().to_f32();
                value.bitcast()
            }
            Input::F32 => amax,
        }
    }

    /// Element-wise maximum of two words of magnitudes, each of one number or two.
    #[track_caller]
    pub(crate) fn larger<'k>(self, a: U32<'k>, b: U32<'k>) -> U32<'k> {
        match self {
            Input::Bf16 | Input::F16 => a.max_halves(b),
            Input::F32 => a.max(b),
        }
    }

    /// Maximum of the magnitudes in a word, as the bits of an `f32`.
    #[track_caller]
    pub(crate) fn widen_larger<'k>(self, k: &'k Kernel, word: U32<'k>) -> U32<'k> {
        match self {
            Input::F32 => word,
            Input::Bf16 => (word & 0xffff_0000).max(word << 16),
            Input::F16 => self.widen_abs(k, (word & 0xffff).max(word >> 16)),
        }
    }

    /// One of the two 16-bit magnitudes in a word, as the bits of an `f32`.
    #[track_caller]
    pub(crate) fn widen_half<'k>(self, k: &'k Kernel, word: U32<'k>, high: bool) -> U32<'k> {
        match (self, high) {
            (Input::Bf16, true) => word & 0xffff_0000,
            (_, true) => self.widen_abs(k, word >> 16),
            (_, false) => self.widen_abs(k, word & 0xffff),
        }
    }

    /// Stores eight numbers, rounded to this type.
    #[track_caller]
    pub(crate) fn store<'k>(
        self,
        k: &'k Kernel,
        values: &[F32<'k>],
        at: Global<'k>,
        mask: &Mask<'k>,
        policy: CachePolicy<'k>,
    ) {
        let half = match self {
            Input::Bf16 => Half::Bf16,
            Input::F16 => Half::F16,
            Input::F32 => return store_f32(k, values, at, mask, policy),
        };
        let words: Vec<U32> = values.chunks(2).map(|pair| half.pack(k, pair[0], pair[1])).collect();
        match mask {
            Mask::Vector { inside } => {
                k.guard(*inside, || at.store_vec_by([words[0], words[1], words[2], words[3]], policy))
            }
            Mask::Elements { count } => {
                for i in 0..VEC8 {
                    let half = (words[i as usize / 2] >> (16 * (i % 2))).to_u16();
                    k.guard(count.gt(i), || at.at(u64::from(2 * i)).store(half));
                }
            }
        }
    }
}

/// Stores eight FP32 numbers: two vectors, or one by one.
#[track_caller]
fn store_f32<'k>(
    k: &'k Kernel,
    values: &[F32<'k>],
    at: Global<'k>,
    mask: &Mask<'k>,
    policy: CachePolicy<'k>,
) {
    match mask {
        Mask::Vector { inside } => {
            for (i, four) in values.chunks(4).enumerate() {
                let four = [four[0], four[1], four[2], four[3]];
                k.guard(*inside, || at.at(16 * i as u64).store_vec_by(four, policy));
            }
        }
        Mask::Elements { count } => {
            for (i, value) in values.iter().enumerate() {
                k.guard(count.gt(i as u32), || at.at(4 * i as u64).store(*value));
            }
        }
    }
}

/// How a launch accesses `Vec8`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Vectors: every `Vec8` lies inside of its row, or outside.
    Vectors,
    /// Single elements.
    Elements,
}

/// Mask of a `Vec8`: the elements that exist.
#[derive(Clone, Copy)]
pub(crate) enum Mask<'k> {
    Vector { inside: Pred<'k> },
    Elements { count: U32<'k> },
}

impl<'k> Mask<'k> {
    /// Mask at `column` of `columns`, in a row that exists or not.
    #[track_caller]
    pub fn of(access: Access, exists: Pred<'k>, column: U32<'k>, columns: U32<'k>) -> Mask<'k> {
        let inside = exists & column.lt(columns);
        match access {
            Access::Vectors => Mask::Vector { inside },
            Access::Elements => Mask::Elements { count: inside.select(columns - column, 0) },
        }
    }
}

/// Eight numbers as they are in memory; those that do not exist are 0.
pub(crate) struct Vec8<'k> {
    k: &'k Kernel,
    input: Input,
    words: Vec<U32<'k>>,
}

impl<'k> Vec8<'k> {
    /// Loads from global memory; nothing waits before the first use.
    #[track_caller]
    pub fn load(
        k: &'k Kernel,
        input: Input,
        at: Global<'k>,
        mask: &Mask<'k>,
        policy: Option<CachePolicy<'k>>,
    ) -> Vec8<'k> {
        let bytes = input.bytes();
        let words = match mask {
            Mask::Vector { inside } => {
                let vector = |i| at.at(u64::from(16 * i)).load_readonly_vec_if::<u32, 4>(*inside, 0, policy);
                (0..bytes / 2).flat_map(vector).collect()
            }
            Mask::Elements { count } if input == Input::F32 => {
                (0..VEC8).map(|i| at.at(u64::from(4 * i)).load_readonly_if(count.gt(i), 0u32)).collect()
            }
            Mask::Elements { count } => {
                let element = |i: u32| at.at(u64::from(2 * i)).load_readonly_if(count.gt(i), 0u16);
                (0..VEC8 / 2).map(|i| k.join_halves(element(2 * i), element(2 * i + 1))).collect()
            }
        };
        Vec8 { k, input, words }
    }

    /// Issues `cp.async` of its vectors to shared memory, from where [`from_shared`](Self::from_shared) loads them.
    #[track_caller]
    pub fn copy_async(at: Global<'k>, inside: Pred<'k>, to: impl IntoIterator<Item = Shared<'k>>) {
        for (i, to) in (0..).zip(to) {
            to.copy_vector_async(at.at(u64::from(VECTOR_BYTES) * i), inside);
        }
    }

    /// Loads from shared memory.
    #[track_caller]
    pub fn from_shared(k: &'k Kernel, input: Input, from: impl IntoIterator<Item = Shared<'k>>) -> Vec8<'k> {
        Vec8 { k, input, words: from.into_iter().flat_map(|at| at.load_vec::<u32, 4>()).collect() }
    }

    /// Amax, as the bits of an `f32`: those of NaN are the largest of all.
    #[track_caller]
    pub fn amax(&self) -> U32<'k> {
        self.input.widen_larger(self.k, self.amax_word())
    }

    /// Element-wise maximum of the words of magnitudes: one or two magnitudes in a word.
    #[track_caller]
    pub fn amax_word(&self) -> U32<'k> {
        let words = self.abs_words().into_iter();
        words.reduce(|a, b| self.input.larger(a, b)).expect("there are words")
    }

    /// Magnitudes in the input type: one or two in a word.
    #[track_caller]
    pub fn abs_words(&self) -> Vec<U32<'k>> {
        let mask = if self.input == Input::F32 { 0x7fff_ffffu32 } else { 0x7fff_7fff };
        self.words.iter().map(|word| *word & mask).collect()
    }

    /// e2m1 codes of the numbers times a factor. The products are rounded once.
    #[track_caller]
    pub fn encode_e2m1(&self, factor: F32<'k>) -> Vec<U32<'k>> {
        let codes = encode_e2m1(&self.values(), factor);
        let [even, odd] = self.signs();
        vec![codes | (even & 0x0808_0808) | (odd & 0x8080_8080)]
    }

    /// Signs of the even numbers and of the odd ones, each in all bits of a byte: also of NaN, which loses its sign
    /// where it is widened.
    #[track_caller]
    fn signs(&self) -> [U32<'k>; 2] {
        // The highest byte of each of four numbers.
        let four = |first: usize| match (self.input, &self.words[..]) {
            (Input::F32, words) => high_bytes(&words[first..]),
            (_, words) => words[first / 2].permute_bytes(words[first / 2 + 1], 0x7531),
        };
        let (low, high) = (four(0), four(4));
        replicate_signs(low, high)
    }

    /// Numbers in FP32.
    #[track_caller]
    pub fn values(&self) -> Vec<F32<'k>> {
        let words = self.words.iter();
        match self.input {
            Input::F32 => words.map(|word| word.bitcast()).collect(),
            Input::Bf16 => words.flat_map(|word| word.bitcast::<oxigemm_ptx::Bf16x2>().to_f32()).collect(),
            Input::F16 => words.flat_map(|word| word.bitcast::<F16x2>().to_f32()).collect(),
        }
    }
}

/// Maximum of some values.
#[track_caller]
pub(crate) fn max_of<'k>(values: impl IntoIterator<Item = U32<'k>>) -> U32<'k> {
    values.into_iter().reduce(|a, b| a.max(b)).expect("there is one at least")
}

/// Amax of some numbers, as the bits of an `f32`: those of NaN are the largest of all.
#[track_caller]
pub(crate) fn amax_of<'k>(values: &[F32<'k>]) -> U32<'k> {
    let amaxes = values.iter().map(|value| value.abs());
    bits(amaxes.reduce(|a, b| a.max_nan(b)).expect("there are numbers"))
}

/// Addresses with a constant step.
pub(super) fn strided_addresses<'k>(
    count: u32,
    first: Global<'k>,
    step: U64<'k>,
) -> impl Iterator<Item = Global<'k>> {
    std::iter::successors(Some(first), move |at| Some(at.at(step))).take(count as usize)
}

/// Stores eight codes.
#[track_caller]
pub(crate) fn store_codes<'k>(
    k: &'k Kernel,
    codes: &[U32<'k>],
    at: Global<'k>,
    mask: &Mask<'k>,
    policy: CachePolicy<'k>,
) {
    match (mask, codes) {
        (Mask::Vector { inside }, &[first, second]) => {
            k.guard(*inside, || at.store_vec_by([first, second], policy));
        }
        (Mask::Vector { inside }, _) => k.guard(*inside, || at.store_by(codes[0], policy)),
        (Mask::Elements { count }, _) => {
            let per_byte = 2 / codes.len() as u32;
            for i in 0..VEC8 / per_byte {
                let byte = codes[i as usize / 4] >> (8 * (i % 4));
                k.guard(count.gt(i * per_byte), || at.at(u64::from(i)).store_byte(byte));
            }
        }
    }
}

/// Loads eight codes.
#[track_caller]
pub(crate) fn load_codes<'k>(
    code: Code,
    at: Global<'k>,
    mask: &Mask<'k>,
    policy: CachePolicy<'k>,
) -> Vec<U32<'k>> {
    let per_byte = code.per_byte();
    match mask {
        Mask::Vector { inside } if per_byte == 1 => {
            at.load_readonly_vec_if::<u32, 2>(*inside, 0, Some(policy)).to_vec()
        }
        Mask::Vector { inside } => vec![at.load_readonly_if(*inside, 0u32)],
        Mask::Elements { count } => (0..2 / per_byte)
            .map(|word| {
                let bytes = (4 * word..4 * word + 4).map(|i| {
                    at.at(u64::from(i)).load_readonly_byte_if(count.gt(i * per_byte)) << (8 * (i % 4))
                });
                bytes.reduce(|a, b| a | b).expect("there are four")
            })
            .collect(),
    }
}

//! Output with scales of bytes: D in e4m3 or e2m1, as a tensor core reads it that applies scales itself.
//!
//! Codes and scales are those of the quantizers of [`crate::quantize`], to the bit, for the numbers that an FP32 D would
//! hold. A row is spread over four lanes, so a block's amax takes two shuffles; then each of the four has the scale. Four
//! scales of a row are a 32-bit word; bytes behind the last scale are 0.

use super::fp8_output::{QuantizedRows, StagedFp8};
use super::{Panels, ROW_BYTES, WARP_BYTES, WARP_ROWS, chunk_offset};
use crate::common::block_scale::{TensorScale, power_of_two};
use crate::common::codes::{Code, bits, encode_e2m1_fours};
use crate::gemm::epilogue::fusion::SCALED_COLUMNS;
use oxigemm_ptx::warp::Shuffle;
use oxigemm_ptx::{F32, Global, Kernel, U32};

/// Scales of a word.
const PER_WORD: u32 = 4;

/// What D is quantized to where its scales are bytes. The numbers are what kernels are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BlockOutput {
    /// e4m3 with a UE8M0 scale for 128 of a row.
    Fp8 = 1,
    /// e4m3 with a UE8M0 scale for 32 of a row.
    Mxfp8 = 2,
    /// e2m1 with a UE8M0 scale for 32 of a row.
    Mxfp4 = 3,
    /// e2m1 with an e4m3 scale for 16 of a row, below one FP32 scale.
    Nvfp4 = 4,
}

impl BlockOutput {
    /// All of them.
    pub const ALL: [BlockOutput; 4] =
        [BlockOutput::Fp8, BlockOutput::Mxfp8, BlockOutput::Mxfp4, BlockOutput::Nvfp4];

    /// Type of the codes.
    pub const fn code(self) -> Code {
        match self {
            BlockOutput::Fp8 | BlockOutput::Mxfp8 => Code::E4m3,
            BlockOutput::Mxfp4 | BlockOutput::Nvfp4 => Code::E2m1,
        }
    }

    /// Columns that share a scale.
    pub const fn width(self) -> u32 {
        match self {
            BlockOutput::Fp8 => 128,
            BlockOutput::Mxfp8 | BlockOutput::Mxfp4 => 32,
            BlockOutput::Nvfp4 => 16,
        }
    }
}

/// Rows of one of the four warps that hold 64 rows of a tile, quantized to `format`.
pub(crate) struct BlockRows<'k, 'p> {
    pub rows: QuantizedRows<'k, 'p>,
    pub format: BlockOutput,
}

impl<'k> BlockRows<'k, '_> {
    /// Stages 128 columns of the warp's rows in a panel, and stores their scales.
    pub fn stage(&self, place: &Panels<'k>, values: &[F32<'k>]) {
        let QuantizedRows { k, warp, lane, .. } = self.rows;
        let row = lane >> 2;
        let is_fp8 = self.format.code() == Code::E4m3;
        let fp8 = is_fp8.then(|| StagedFp8::new(k, place.staging, row, [warp, lane]));
        let octets_of_block = self.format.width() as usize / 8;
        for (half, below) in [(0, 0), (2, 8)] {
            let octets: Vec<[F32<'k>; 2]> =
                values.chunks(4).map(|octet| [octet[half], octet[half + 1]]).collect();
            let scales: Vec<(U32<'k>, F32<'k>)> =
                octets.chunks(octets_of_block).map(|block| self.scale(self.amax(block))).collect();
            let bytes: Vec<U32<'k>> = scales.iter().map(|(byte, _)| *byte).collect();
            self.store_scales([place.row + warp * WARP_ROWS + row + below, place.column], &bytes);
            let factor = |octet: usize| scales[octet / octets_of_block].1;
            match &fp8 {
                Some(fp8) => {
                    for (chunk, octets) in octets.chunks(2).enumerate() {
                        fp8.store(k, (below, chunk), octets, factor(2 * chunk));
                    }
                }
                None => {
                    for (chunk, octets) in octets.chunks(4).enumerate() {
                        let factors = [factor(4 * chunk), factor(4 * chunk + 2)];
                        self.stage_e2m1(place, (row, below, chunk as u32), octets, factors);
                    }
                }
            }
        }
    }

    /// The amax of a block of a row, in all four lanes that have it, as bits.
    fn amax(&self, block: &[[F32<'k>; 2]]) -> U32<'k> {
        let k = self.rows.k;
        let magnitudes = block.iter().flatten().map(|x| x.abs());
        let own = magnitudes.reduce(|a, b| a.max_nan(b)).expect("a block has columns");
        bits(
            [1, 2]
                .into_iter()
                .fold(own, |amax, distance| amax.max_nan(k.shuffle(Shuffle::Xor, amax, distance))),
        )
    }

    /// The byte of a block's scale, and the factor of its numbers.
    fn scale(&self, amax: U32<'k>) -> (U32<'k>, F32<'k>) {
        match self.format {
            BlockOutput::Nvfp4 => {
                TensorScale::given(self.rows.params.tensor_scale()).block_scale(self.rows.k, amax)
            }
            format => power_of_two(format.code().max_finite(), amax),
        }
    }

    /// Stores the scales of a row from a column on: whole words, or the one byte of 128 columns.
    fn store_scales(&self, [row, column]: [U32<'k>; 2], bytes: &[U32<'k>]) {
        let QuantizedRows { k, output, lane, .. } = self.rows;
        let (width, columns) = (self.format.width(), output.columns);
        let mine = row.lt(output.rows) & (lane & 3).eq(0);
        if let [byte] = bytes {
            let block = column / width;
            let at = self.word_at(row, block / PER_WORD).at((block % PER_WORD).to_u64());
            let exists = mine & column.lt(columns);
            k.guard(exists, || at.store_byte(*byte));
            // Those behind the last are nobody else's.
            let is_last = exists & (column + width).ge(columns);
            for behind in 1..PER_WORD {
                let in_word = (block % PER_WORD + behind).lt(PER_WORD);
                k.guard(is_last & in_word, || at.at(u64::from(behind)).store_byte(k.constant(0u32)));
            }
            return;
        }
        for (nth, four) in (0u32..).zip(bytes.chunks(PER_WORD as usize)) {
            let first = column + nth * PER_WORD * width;
            let present = (0u32..).zip(four).map(|(i, byte)| {
                let exists = (first + i * width).lt(columns);
                exists.select(*byte, 0u32) << (8 * i)
            });
            let word = present.reduce(|a, b| a | b).expect("four bytes");
            let at = self.word_at(row, first / (PER_WORD * width));
            k.guard(mine & first.lt(columns), || at.store(word));
        }
    }

    /// Where a word of a row's scales lies.
    fn word_at(&self, row: U32<'k>, word: U32<'k>) -> Global<'k> {
        let params = self.rows.params;
        let [stride_m, stride_n] = params.scale_strides;
        let row = params.scales_row.map_or(row, |first| row - first);
        params.scales.at((row.widening_mul(stride_m) + word.widening_mul(stride_n)) << 2)
    }

    /// Stages 32 columns of a row in e2m1: a chunk of 16 bytes, of which each of the row's lanes stores the word of an
    /// octet.
    fn stage_e2m1(
        &self,
        place: &Panels<'k>,
        (row, below, chunk): (U32<'k>, u32, u32),
        octets: &[[F32<'k>; 2]],
        factors: [F32<'k>; 2],
    ) {
        let QuantizedRows { k, warp, lane, .. } = self.rows;
        let values: [F32<'k>; 8] = std::array::from_fn(|i| octets[i / 2][i % 2]);
        let codes = exchange_bytes(k, lane, encode_e2m1_fours(&values, factors));
        let to = place.staging.at(warp * WARP_BYTES).at(chunk_offset(row, k.constant(chunk)));
        to.at(below * ROW_BYTES).at((lane & 3) * 4).store(codes);
    }

    /// Copies the staged rows of e2m1 before `end` to D. The warp has synchronized since it staged.
    pub fn copy_e2m1(&self, place: &Panels<'k>, end: U32<'k>) {
        let per_byte = Code::E2m1.per_byte();
        let columns = [place.column, self.rows.output.columns].map(|columns| columns / per_byte);
        self.rows.copy(place, end, SCALED_COLUMNS / per_byte, columns);
    }
}

/// Transposes the bytes of four lanes: byte `i` of lane `j` becomes byte `j` of lane `i`.
fn exchange_bytes<'k>(k: &'k Kernel, lane: U32<'k>, own: U32<'k>) -> U32<'k> {
    let select = |bit: u32, own: U32<'k>, [second, first]: [u32; 2]| {
        let other = k.shuffle(Shuffle::Xor, own, bit);
        let selector: U32<'k> = (lane & bit).ne(0).select(second, first);
        own.permute_bytes(other, selector)
    };
    let pairs = select(1, own, [0x3715, 0x6240]);
    select(2, pairs, [0x3276, 0x5410])
}

//! Random queries and keys, exact and quantized.

use oxigemm::cast::{ScaleFormat, cast_blocks_to_fp4};
use oxigemm::{DType, random};
use oxigemm_kernels::attention::Format;
use std::ops::Range;

use super::spec::row_bytes;

/// Elements of FP4 that share a scale.
const FP4_BLOCK: usize = 32;

/// Rows that are quantized: of FP8 with a scale each, of FP4 with a word of scales each.
pub struct Rows {
    pub format: Format,
    dim: usize,
    exact: Vec<f32>,
    pub codes: Vec<u8>,
    /// A scale for each row.
    scales: Vec<f32>,
    /// Of FP4, what words of scales and codes stand for.
    fp4: Option<(Vec<[u8; 4]>, Vec<f32>)>,
}

impl Rows {
    pub fn draw(format: Format, seed: u64, rows: usize, dim: usize) -> Rows {
        let exact = random::normals(seed, rows * dim);
        match format {
            Format::Fp8 => {
                let scale = |row: &[f32]| row.iter().fold(1e-4f32, |most, x| most.max(x.abs())) / 448.0;
                let scales = exact.chunks(dim).map(scale).collect();
                Rows::with_scales(exact, scales, dim)
            }
            Format::Fp4 => Rows::fp4(exact, rows, dim),
        }
    }

    /// Rows of FP8 with these scales.
    fn with_scales(exact: Vec<f32>, scales: Vec<f32>, dim: usize) -> Rows {
        let scaled =
            exact.chunks(dim).zip(&scales).flat_map(|(row, scale)| row.iter().map(move |x| x / scale));
        let codes = DType::E4m3.encode(&scaled.collect::<Vec<f32>>());
        Rows { format: Format::Fp8, dim, exact, codes, scales, fp4: None }
    }

    fn fp4(exact: Vec<f32>, rows: usize, dim: usize) -> Rows {
        let cast = cast_blocks_to_fp4(&exact, rows, dim, [1, FP4_BLOCK], ScaleFormat::PowerOfTwo)
            .expect("dimensions of FP4 are even");
        let exponent = |scale: &f32| (scale.to_bits() >> 23) as u8;
        let word = |scales: &[f32]| {
            let mut word = [0; 4];
            word.iter_mut().zip(scales).for_each(|(byte, scale)| *byte = exponent(scale));
            word
        };
        let words = cast.scales.chunks(dim / FP4_BLOCK).map(word).collect();
        let values = cast.dequantize();
        let (codes, scales) = (cast.codes, vec![1.0; rows]);
        Rows { format: Format::Fp4, dim, exact, codes, scales, fp4: Some((words, values)) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    pub fn exact(&self, row: usize) -> &[f32] {
        &self.exact[row * self.dim..][..self.dim]
    }

    /// What the codes of a row stand for, and its scale.
    pub fn quantized(&self, row: usize) -> (Vec<f32>, f32) {
        let values = match &self.fp4 {
            None => {
                let bytes = row_bytes(self.format, self.dim);
                DType::E4m3.decode(&self.codes[row * bytes..][..bytes])
            }
            Some((_, values)) => values[row * self.dim..][..self.dim].to_vec(),
        };
        (values, self.scales[row])
    }

    pub fn code_type(&self) -> DType {
        if self.format == Format::Fp4 { DType::U8 } else { DType::E4m3 }
    }

    pub fn scale_type(&self) -> DType {
        if self.format == Format::Fp4 { DType::I32 } else { DType::F32 }
    }

    /// The scales of some rows as a call takes them.
    pub fn scale_bytes(&self, rows: Range<usize>) -> Vec<u8> {
        match &self.fp4 {
            None => DType::F32.encode(&self.scales[rows]),
            Some((words, _)) => words[rows].as_flattened().to_vec(),
        }
    }
}

/// What all queries are made of: a row for each head.
pub struct Queries {
    heads: usize,
    pub rows: Rows,
    pub weights: Vec<f32>,
}

impl Queries {
    pub fn draw(format: Format, seed: u64, queries: usize, [heads, dim]: [usize; 2]) -> Queries {
        let rows = queries * heads;
        let rows = match format {
            // Queries of FP8 have no scales.
            Format::Fp8 => Rows::with_scales(random::normals(seed, rows * dim), vec![1.0; rows], dim),
            Format::Fp4 => Rows::draw(format, seed, rows, dim),
        };
        Queries { heads, rows, weights: random::normals(seed + 1, queries * heads) }
    }

    pub fn weights(&self, query: usize) -> &[f32] {
        &self.weights[query * self.heads..][..self.heads]
    }

    /// All heads of a query.
    pub fn exact(&self, query: usize) -> &[f32] {
        let row = self.heads * self.rows.dim;
        &self.rows.exact[query * row..][..row]
    }

    /// All heads of a query, quantized.
    pub fn quantized(&self, query: usize) -> Vec<f32> {
        (query * self.heads..(query + 1) * self.heads).flat_map(|row| self.rows.quantized(row).0).collect()
    }
}

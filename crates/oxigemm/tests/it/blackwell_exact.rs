//! Blackwell's dense GEMM kernels against the model of the tensor core in `oxigemm-oracle`, which shares no code with the
//! simulator: every bit of an FP32 D. A kernel adds the MMAs of all stages in the order of K, and those of a split K in
//! the order of the splits.

use oxigemm::plan::{self, GemmConfig};
use oxigemm::{
    Addend, DType, Device, GemmLayout, GemmOptions, Tensor, fp8_fp4_gemm, half_gemm, nvfp4_gemm_nt, random,
    tf32_gemm,
};
use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::params::{ScaleBlock, ScalesOfB};
use oxigemm_kernels::gemm::{ElementType, GemmKernel, ScaleType};
use oxigemm_oracle::{BlockScale, Codes, Factor, product};
use oxigemm_testkit::plan::operands_of;

/// How operands are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Drawn {
    /// As weights and activations are.
    Normal,
    /// Every code, every scale that does not overflow: exponents that are far apart.
    Wide,
    /// A large number along K is followed by its opposite, so that what it has cut off shows.
    Cancelling,
    /// Numbers below the normal ones of their type, and scales so small that sums are below those of FP32.
    Subnormal,
}

const ALL: [Drawn; 4] = [Drawn::Normal, Drawn::Wide, Drawn::Cancelling, Drawn::Subnormal];

/// An operand on the host: K-major codes, and a byte of scale for each block of K of each row.
struct Matrix {
    codes: Codes,
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

impl Matrix {
    fn new(
        seed: u64,
        element: ElementType,
        dims: [usize; 2],
        scale: Option<BlockScale>,
        drawn: Drawn,
    ) -> Matrix {
        let [rows, k] = dims;
        let codes = match element {
            ElementType::Bf16 => Codes::Bf16,
            ElementType::F16 => Codes::F16,
            ElementType::Tf32 => Codes::Tf32,
            ElementType::E2m1 => Codes::E2m1,
            ElementType::E5m2 => Codes::E5m2,
            ElementType::E4m3 => Codes::E4m3,
        };
        let normals =
            if drawn == Drawn::Normal { random::normals(seed, rows * k) } else { vec![0.0; rows * k] };
        let code = |index: usize| -> u32 {
            let opposite = drawn == Drawn::Cancelling && index % 6 == 5;
            // The sign and the magnitude of what stands three elements before.
            let word = random::bits(seed, (index - if opposite { 3 } else { 0 }) as u64);
            let (bits, more) = (word as u32, (word >> 32) as u32);
            let normal = normals[index];
            // FP32 is drawn as BF16 with more bits behind, of which a tensor core reads three.
            let drawn = match (codes, drawn) {
                (Codes::Bf16 | Codes::Tf32, Drawn::Normal) => normal.to_bits() >> 16,
                (Codes::F16, Drawn::Normal) => u16::from_le_bytes(two(DType::F16, normal)).into(),
                (Codes::E4m3, Drawn::Normal) => DType::E4m3.encode(&[normal])[0].into(),
                // Products of 2^-160 to 2^40.
                (Codes::Bf16 | Codes::Tf32, Drawn::Wide) => {
                    bits & 0x8000 | (47 + bits % 100) << 7 | bits >> 20 & 0x7f
                }
                (Codes::Bf16 | Codes::Tf32, Drawn::Cancelling) => {
                    bits & 0x8000 | (112 + bits % 30) << 7 | bits >> 20 & 0x7f
                }
                (Codes::Bf16 | Codes::Tf32, Drawn::Subnormal) if index.is_multiple_of(2) => bits & 0x807f,
                (Codes::Bf16 | Codes::Tf32, Drawn::Subnormal) => {
                    bits & 0x8000 | (100 + bits % 40) << 7 | bits >> 20 & 0x7f
                }
                (Codes::F16, Drawn::Subnormal) => bits & 0x83ff,
                (Codes::F16, _) => bits & 0x8000 | (bits % 31) << 10 | bits >> 20 & 0x3ff,
                (Codes::E4m3, Drawn::Subnormal) => bits & 0x87,
                (Codes::E5m2, Drawn::Normal) => DType::E5m2.encode(&[normal])[0].into(),
                (Codes::E5m2, Drawn::Subnormal) => bits & 0x83,
                (Codes::E4m3 | Codes::E5m2, _) => bits & 0x80 | bits >> 8 & 0x7f,
                (Codes::E2m1, Drawn::Subnormal) => bits & 9,
                (Codes::E2m1, _) => bits & 15,
            };
            match codes {
                Codes::Bf16 | Codes::F16 => drawn ^ if opposite { 0x8000 } else { 0 },
                Codes::Tf32 => (drawn ^ if opposite { 0x8000 } else { 0 }) << 16 | more & 0xffff,
                // The codes of the largest exponent are infinities and NaN.
                Codes::E5m2 => {
                    (if drawn & 0x7c == 0x7c { drawn ^ 0x40 } else { drawn })
                        ^ if opposite { 0x80 } else { 0 }
                }
                // The code behind the largest number is NaN.
                Codes::E4m3 => {
                    (if drawn & 0x7f == 0x7f { drawn ^ 1 } else { drawn }) ^ if opposite { 0x80 } else { 0 }
                }
                Codes::E2m1 => drawn ^ if opposite { 8 } else { 0 },
            }
        };
        let all = 0..rows * k;
        let bytes = match codes {
            Codes::Bf16 | Codes::F16 => all.flat_map(|i| (code(i) as u16).to_le_bytes()).collect(),
            Codes::Tf32 => all.flat_map(|i| code(i).to_le_bytes()).collect(),
            Codes::E4m3 | Codes::E5m2 => all.map(|i| code(i) as u8).collect(),
            Codes::E2m1 => all.step_by(2).map(|i| (code(i) | code(i + 1) << 4) as u8).collect(),
        };
        let scales = scale.map_or(Vec::new(), |scale| {
            let blocks = k.div_ceil(scale.block());
            let of = |index: usize| {
                let bits = random::bits(seed + 1, index as u64) as u8;
                match (scale, drawn) {
                    (BlockScale::Ue8m0(_), Drawn::Normal) => 120 + bits % 16,
                    // Those of e5m2 are smaller.
                    (BlockScale::Ue8m0(_), Drawn::Subnormal) if codes == Codes::E5m2 => 62 + bits % 16,
                    (BlockScale::Ue8m0(_), Drawn::Subnormal) => 50 + bits % 16,
                    // Elements of a block cancel each other if those of the next do not drown them.
                    (BlockScale::Ue8m0(_), Drawn::Cancelling) => 122 + bits % 8,
                    (BlockScale::Ue8m0(_), Drawn::Wide) => 90 + bits % 64,
                    (BlockScale::Ue4m3, Drawn::Normal) => 40 + bits % 32,
                    (BlockScale::Ue4m3, Drawn::Subnormal) => bits & 7,
                    (BlockScale::Ue4m3, _) => bits % 127,
                }
            };
            (0..rows * blocks).map(of).collect()
        });
        Matrix { codes, bytes, scales }
    }

    /// With scales for each row where blocks of rows share them.
    fn in_rows(&self, [rows, k]: [usize; 2], (scale, shared): (BlockScale, usize)) -> Vec<u8> {
        let blocks = k.div_ceil(scale.block());
        (0..rows).flat_map(|row| self.scales[row / shared * blocks..][..blocks].to_vec()).collect()
    }
}

fn two(dtype: DType, value: f32) -> [u8; 2] {
    dtype.encode(&[value]).try_into().expect("two bytes")
}

/// Elements of so many bytes with rows and columns exchanged.
fn turned(bytes: &[u8], [rows, columns]: [usize; 2], size: usize) -> Vec<u8> {
    let at = |row: usize, column: usize| &bytes[(row * columns + column) * size..][..size];
    (0..columns).flat_map(|column| (0..rows).flat_map(move |row| at(row, column)).copied()).collect()
}

/// A dense GEMM of one configuration.
struct Exact {
    config: GemmConfig,
    dims: [usize; 3],
    drawn: Drawn,
}

impl Exact {
    fn scale(&self) -> Option<BlockScale> {
        let kind = self.config.kernel.operands();
        kind.is_block_scaled().then(|| match kind.scale_type {
            ScaleType::Ue4m3 => BlockScale::Ue4m3,
            _ => BlockScale::Ue8m0(kind.scale_block.size() as usize),
        })
    }

    /// Rows that share scales, of A and of B.
    fn shared_rows(&self) -> [usize; 2] {
        match self.config.kernel.operands().scales {
            Some(ScalesOfB::Blocks) => [1, 128],
            _ => [1, 1],
        }
    }

    /// Operands in memory, as the functions take them, and what the model makes of them.
    fn run(&self, device: &Device) {
        let (kind, [m, n, k]) = (self.config.kernel.operands(), self.dims);
        let scale = self.scale();
        let elements = [kind.a.element, kind.b.element];
        let sides = [[m, k], [n, k]];
        let matrices =
            [0, 1].map(|i| Matrix::new(1 + 2 * i as u64, elements[i], sides[i], scale, self.drawn));
        let rows_of_scales = match scale {
            None => [vec![], vec![]],
            Some(scale) => [0, 1].map(|i| matrices[i].in_rows(sides[i], (scale, self.shared_rows()[i]))),
        };
        let factor = |i: usize| Factor {
            codes: matrices[i].codes,
            bytes: &matrices[i].bytes,
            scales: &rows_of_scales[i],
        };
        let (a, b) = (factor(0), factor(1));
        let (stages, split) = (k.div_ceil(kind.block_k() as usize), self.config.split_k as usize);
        let ends: Vec<usize> =
            (0..=split).map(|nth| k.min(nth * stages / split * kind.block_k() as usize)).collect();
        // The reduction of a split K begins with zero, and the last MMAs of a stage that K ends in add zeros: -0 becomes 0.
        let adds_zero = self.config.is_split_k() || !k.is_multiple_of(kind.block_k() as usize);
        let mut expected = vec![if adds_zero { 0.0f32 } else { -0.0 }; m * n];
        for part in ends.windows(2) {
            let sums = product(&a, &b, scale, k, part[0]..part[1]);
            expected.iter_mut().zip(sums).for_each(|(sum, part)| *sum += part);
        }
        let found = self.found(&matrices, device);
        let differs = found.iter().zip(&expected).position(|(x, y)| x.to_bits() != y.to_bits());
        if let Some(at) = differs {
            let count = found.iter().zip(&expected).filter(|(x, y)| x.to_bits() != y.to_bits()).count();
            panic!(
                "{}, {:?}, {:?}: {count} of {} differ, first at {:?}: {:e} instead of {:e}",
                plan::name(&self.config),
                self.dims,
                self.drawn,
                m * n,
                [at / n, at % n],
                found[at],
                expected[at]
            );
        }
        let some = expected.iter().filter(|sum| **sum != 0.0 && sum.is_finite()).count();
        assert!(some * 4 > m * n, "{:?} of {}: {some} sums", self.drawn, plan::name(&self.config));
    }

    /// D by the kernel.
    fn found(&self, [a, b]: &[Matrix; 2], device: &Device) -> Vec<f32> {
        let (kind, [m, n, k]) = (self.config.kernel.operands(), self.dims);
        let mut d = Tensor::zeros(DType::F32, &[m, n], device).expect("D");
        // Persistent kernels: more tiles than CTAs.
        let num_sms = (!self.config.is_split_k()).then_some(2);
        let options = GemmOptions { config: Some(self.config), num_sms, ..Default::default() };
        let (types, layout) = operands_of(&self.config.kernel);
        if let Some(scale) = self.scale() {
            let tensors = |matrix: &Matrix, rows: usize, shared: usize, major: Major| {
                let (dtype, columns) = match matrix.codes {
                    Codes::E2m1 => (DType::U8, k / 2),
                    Codes::E5m2 => (DType::E5m2, k),
                    _ => (DType::E4m3, k),
                };
                let of_scales = if scale == BlockScale::Ue4m3 { DType::E4m3 } else { DType::U8 };
                let dims = [rows.div_ceil(shared), k.div_ceil(scale.block())];
                let scales = &matrix.scales[..dims[0] * dims[1]];
                let scales = Tensor::from_bytes(of_scales, scales, &dims, device).expect("scales");
                match major {
                    Major::K => {
                        let codes = Tensor::from_bytes(dtype, &matrix.bytes, &[rows, columns], device);
                        (codes.expect("codes"), scales)
                    }
                    Major::MN => {
                        let bytes = turned(&matrix.bytes, [rows, k], 1);
                        let codes = Tensor::from_bytes(dtype, &bytes, &[k, rows], device);
                        (codes.expect("codes"), scales.transpose(0, 1).expect("a view"))
                    }
                }
            };
            let [of_a, of_b] = self.shared_rows();
            let (a, sfa) = tensors(a, m, of_a, kind.a.major);
            let (b, sfb) = tensors(b, n, of_b, kind.b.major);
            match kind.scale_block {
                ScaleBlock::Of16 => {
                    nvfp4_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, [1.0, 1.0], &options)
                }
                _ => fp8_fp4_gemm(layout, (&a, &sfa), (&b, &sfb), Addend::None, &mut d, &options),
            }
        } else {
            let tensor = |matrix: &Matrix, rows: usize, major: Major| match major {
                Major::K => Tensor::from_bytes(types.ab, &matrix.bytes, &[rows, k], device),
                Major::MN => {
                    let bytes = turned(&matrix.bytes, [rows, k], types.ab.size());
                    Tensor::from_bytes(types.ab, &bytes, &[k, rows], device)
                }
            };
            let a = tensor(a, m, kind.a.major).expect("A");
            let b = tensor(b, n, kind.b.major).expect("B");
            let gemm = if types.ab == DType::F32 { tf32_gemm } else { half_gemm };
            gemm(layout, &a, &b, Addend::None, &mut d, &options)
        }
        .unwrap_or_else(|error| panic!("{}: {error}", plan::name(&self.config)));
        d.to_vec_f32().expect("D")
    }
}

fn blackwell() -> Device {
    "sim:sm_100a".parse().expect("a device")
}

/// A case of a kernel: a remainder of each side and of K; a K split has some stages, one, or none.
fn case(kernel: GemmKernel, nth: usize, drawn: Drawn) -> Exact {
    let (kind, splits) = (kernel.operands(), kernel.spec().splits());
    let stages = if kernel.is_split_k() { 3 } else { *kernel.stages().start() };
    let config = GemmConfig { split_k: splits[nth % splits.len()], stages, ..GemmConfig::of(kernel) };
    let [rows, columns] = [kernel.tile()[0] * config.cluster[0], kernel.tile_columns()].map(|x| x as usize);
    // Of FP4 beside FP8 whole lines of 128; rows of TMA are of 16 bytes.
    let k = 2 * kind.block_k() as usize + if kind.a.element == kind.b.element { 32 } else { 128 };
    // Of large tiles, a few rows and columns beside those of the first.
    let tail = if kind.is_fp8() { 16 } else { 8 };
    let rows = if kernel.is_split_k() { rows } else { rows / 2 };
    let dims = [rows + tail, columns + tail, k];
    Exact { config, dims, drawn }
}

/// Dense kernels of the set that have nothing but a product.
fn kernels() -> impl Iterator<Item = GemmKernel> {
    GemmKernel::dense(Arch::Sm100a).filter(|kernel| kernel.fusion() == Fusion::None && !kernel.is_summed())
}

#[test]
fn every_dense_kernel_gives_the_bits_of_the_model() {
    let device = blackwell();
    for (nth, kernel) in kernels().enumerate() {
        case(kernel, nth, ALL[nth / 5 % 4]).run(&device);
    }
}

#[test]
fn one_kernel_of_each_operand_kind_gives_them_whatever_the_operands_are() {
    let device = blackwell();
    // Those with the smallest tiles.
    let small = |kernel: &GemmKernel| match kernel.is_split_k() {
        true => kernel.tile()[0] == 16,
        false => kernel.tile()[1] == 64,
    };
    let small: Vec<_> =
        kernels().filter(|kernel| operands_of(kernel).1 == GemmLayout::Nt).filter(small).collect();
    for kernel in &small {
        for (nth, drawn) in ALL.into_iter().enumerate() {
            case(*kernel, nth + 1, drawn).run(&device);
        }
    }
    // BF16, FP16; three mixes of FP8 and FP4, MXFP4, NVFP4, and four with scales of 128: persistent and split-K. Three
    // mixes with e5m2, and TF32: split-K alone.
    assert_eq!(small.len(), 2 * (2 + 3 + 1 + 1 + 4) + 3 + 1);
}

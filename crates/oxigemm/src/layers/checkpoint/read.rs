//! Reading: which tensors a layer has says how its weights are quantized.

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{
    BLOCKS, GLOBAL_SCALE, INPUT_GLOBAL_SCALE, INPUT_SCALE, PACKED, SCALE, SCALE_2, SCALE_INV, SCALES, WEIGHT,
};
use crate::error::{Error, Result};
use crate::layers::weight::{MX_BLOCK, NVFP4_BLOCK};
use crate::layers::{QuantizedWeight, Recipe, WeightScales};
use crate::tensor::DType;

/// A safetensors file in memory: see the [module](super).
#[derive(Debug)]
pub struct Checkpoint<'a> {
    tensors: SafeTensors<'a>,
}

impl<'a> Checkpoint<'a> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for bytes that are no safetensors file.
    pub fn read(file: &'a [u8]) -> Result<Checkpoint<'a>> {
        let tensors = SafeTensors::deserialize(file).map_err(|error| Error::Checkpoint {
            tensor: "file".to_owned(),
            expected: "a safetensors file".to_owned(),
            found: format!("{} bytes that are none ({error})", file.len()),
        })?;
        Ok(Checkpoint { tensors })
    }

    /// The layers with quantized weights, in the order of their names.
    #[must_use]
    pub fn layers(&self) -> Vec<String> {
        let mut layers: Vec<String> = self
            .tensors
            .names()
            .into_iter()
            .filter_map(|name| {
                let of_blocks = name.strip_suffix(BLOCKS);
                let of_scales = [SCALE_INV, SCALE].into_iter().find_map(|end| name.strip_suffix(end));
                of_blocks.or_else(|| of_scales.and_then(|name| name.strip_suffix('.')))
            })
            .map(str::to_owned)
            .collect();
        layers.sort();
        layers.dedup();
        layers
    }

    /// The quantized weights of a layer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], with the tensor that is missing or has another type or shape than its layout says.
    pub fn weight(&self, layer: &str) -> Result<QuantizedWeight> {
        if let Some(blocks) = self.find(&format!("{layer}{BLOCKS}")) {
            return self.gpt_oss(layer, &blocks);
        }
        let at = |end: &str| format!("{layer}.{end}");
        let (codes_name, codes) = match self.find(&at(PACKED)) {
            Some(codes) => (at(PACKED), codes),
            None => (at(WEIGHT), self.expect(&at(WEIGHT), "the codes of a quantized layer")?),
        };
        match codes.dtype() {
            Dtype::F8_E4M3 => self.fp8(layer, &codes_name, &codes),
            Dtype::U8 | Dtype::I8 => self.fp4(layer, &codes_name, &codes),
            _ => Err(wrong(&codes_name, "F8_E4M3 codes, or U8 with two of FP4 each", &codes)),
        }
    }

    /// The bias of a layer, `name.bias` or `name_bias`, where it has one, in f32: F32, BF16 or F16.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for one of another type.
    pub fn bias(&self, layer: &str) -> Result<Option<Vec<f32>>> {
        for name in [format!("{layer}.bias"), format!("{layer}_bias")] {
            if let Some(bias) = self.find(&name) {
                return floats(&name, &bias).map(Some);
            }
        }
        Ok(None)
    }

    /// The scale of all activations of a layer that calibration found, for
    /// [`LayerOptions::input_scale`](crate::layers::LayerOptions::input_scale): `name.input_scale`, a factor, or
    /// `name.input_global_scale`, a divisor. Only NVFP4 activations have one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for one of another type, or several numbers.
    pub fn input_scale(&self, layer: &str) -> Result<Option<f32>> {
        for (end, is_divisor) in [(INPUT_SCALE, false), (INPUT_GLOBAL_SCALE, true)] {
            let name = format!("{layer}.{end}");
            let Some(tensor) = self.find(&name) else { continue };
            return match floats(&name, &tensor)?[..] {
                [scale] => Ok(Some(if is_divisor { 1.0 / scale } else { scale })),
                _ => Err(wrong(&name, "one number", &tensor)),
            };
        }
        Ok(None)
    }

    fn find(&self, name: &str) -> Option<TensorView<'a>> {
        self.tensors.tensor(name).ok()
    }

    fn expect(&self, name: &str, what: &str) -> Result<TensorView<'a>> {
        self.find(name).ok_or_else(|| Error::Checkpoint {
            tensor: name.to_owned(),
            expected: what.to_owned(),
            found: "no such tensor".to_owned(),
        })
    }

    fn gpt_oss(&self, layer: &str, blocks: &TensorView<'a>) -> Result<QuantizedWeight> {
        let (codes, scales_name) = (format!("{layer}{BLOCKS}"), format!("{layer}{SCALES}"));
        let scales = self.expect(&scales_name, "the scales of its blocks")?;
        let [lead @ .., across, 16] = blocks.shape() else {
            return Err(wrong(&codes, "U8 [.., N, K/32, 16]", blocks));
        };
        let Some([groups, n]) = (blocks.dtype() == Dtype::U8).then(|| rows(lead)).flatten() else {
            return Err(wrong(&codes, "U8 [.., N, K/32, 16]", blocks));
        };
        let expected = &blocks.shape()[..blocks.shape().len() - 1];
        if scales.dtype() != Dtype::U8 || scales.shape() != expected {
            return Err(wrong(&scales_name, &format!("U8 {expected:?}"), &scales));
        }
        let k = across * MX_BLOCK;
        let scales = WeightScales::E8m0 { block: [1, MX_BLOCK], values: scales.data().to_vec() };
        QuantizedWeight::from_parts(Recipe::Mxfp4, [groups, n, k], blocks.data().to_vec(), scales)
    }

    fn fp8(&self, layer: &str, name: &str, codes: &TensorView<'a>) -> Result<QuantizedWeight> {
        let Some(dims) = matrices(codes.shape()) else {
            return Err(wrong(name, "F8_E4M3 [.., N, K]", codes));
        };
        let scale_inv = format!("{layer}.{SCALE_INV}");
        let (scales_name, scales) = match self.find(&scale_inv) {
            Some(scales) => (scale_inv, scales),
            None => {
                let name = format!("{layer}.{SCALE}");
                let scales = self.expect(&name, "the scales of FP8 codes")?;
                (name, scales)
            }
        };
        let [groups, n, k] = dims;
        let exponents = matches!(scales.dtype(), Dtype::U8 | Dtype::F8_E8M0);
        // Rows and columns that may share a scale, by what the shape of the scales says.
        let candidates: &[[usize; 2]] = match exponents {
            true => &[[1, MX_BLOCK], [MX_BLOCK, MX_BLOCK], [128, 128]],
            false => &[[128, 128], [1, 128], [1, k.max(1)], [n.max(1), k.max(1)]],
        };
        let fits = |block: &&[usize; 2]| {
            scales_fit(scales.shape(), groups, [n.div_ceil(block[0]), k.div_ceil(block[1])])
        };
        let Some(&block) = candidates.iter().find(fits) else {
            let expected: Vec<String> = candidates
                .iter()
                .map(|block| format!("{:?}", [n.div_ceil(block[0]), k.div_ceil(block[1])]))
                .collect();
            let expected = format!("{} for {dims:?} codes", expected.join(" or "));
            return Err(wrong(&scales_name, &expected, &scales));
        };
        let (recipe, scales) = match (exponents, block) {
            (true, [128, 128]) => {
                let values = scales.data().iter().map(|&e| crate::layers::weight::e8m0(e) as f32).collect();
                (Recipe::Fp8, WeightScales::F32 { block, values })
            }
            (true, _) => (Recipe::Mxfp8, WeightScales::E8m0 { block, values: scales.data().to_vec() }),
            (false, _) => (Recipe::Fp8, WeightScales::F32 { block, values: floats(&scales_name, &scales)? }),
        };
        QuantizedWeight::from_parts(recipe, dims, codes.data().to_vec(), scales)
    }

    fn fp4(&self, layer: &str, name: &str, codes: &TensorView<'a>) -> Result<QuantizedWeight> {
        let Some([groups, n, bytes]) = matrices(codes.shape()) else {
            return Err(wrong(name, "U8 [.., N, K/2]", codes));
        };
        let (k, scales_name) = (2 * bytes, format!("{layer}.{SCALE}"));
        let scales = self.expect(&scales_name, "the scales of FP4 codes")?;
        let of_block = |block: usize| scales_fit(scales.shape(), groups, [n, k.div_ceil(block)]);
        let (recipe, parts) = match scales.dtype() {
            Dtype::U8 | Dtype::F8_E8M0 if of_block(MX_BLOCK) => {
                let values = scales.data().to_vec();
                (Recipe::Mxfp4, WeightScales::E8m0 { block: [1, MX_BLOCK], values })
            }
            Dtype::F8_E4M3 if of_block(NVFP4_BLOCK) => {
                let tensor = self.scale_of_all(layer, groups)?;
                (Recipe::Nvfp4, WeightScales::Nvfp4 { values: scales.data().to_vec(), tensor })
            }
            _ => {
                let [mx, nv] = [MX_BLOCK, NVFP4_BLOCK].map(|block| k.div_ceil(block));
                let expected = format!("F8_E4M3 {:?} of NVFP4 or U8 {:?} of MXFP4", [n, nv], [n, mx]);
                return Err(wrong(&scales_name, &expected, &scales));
            }
        };
        QuantizedWeight::from_parts(recipe, [groups, n, k], codes.data().to_vec(), parts)
    }

    /// The scale of each matrix of NVFP4, as a factor.
    fn scale_of_all(&self, layer: &str, groups: usize) -> Result<Vec<f32>> {
        let (factor, divisor) = (format!("{layer}.{SCALE_2}"), format!("{layer}.{GLOBAL_SCALE}"));
        let (name, scales) = match self.find(&divisor) {
            Some(scales) => (divisor, scales),
            None => {
                let scales =
                    self.expect(&factor, "the scale of all of NVFP4 weights, or a `weight_global_scale`")?;
                (factor, scales)
            }
        };
        let values = floats(&name, &scales)?;
        if values.len() != groups {
            return Err(wrong(&name, &format!("{groups}, one for each matrix"), &scales));
        }
        Ok(if name.ends_with(GLOBAL_SCALE) { values.iter().map(|x| 1.0 / x).collect() } else { values })
    }
}

/// Groups and rows of leading dimensions.
fn rows(lead: &[usize]) -> Option<[usize; 2]> {
    match *lead {
        [n] => Some([1, n]),
        [groups, n] => Some([groups, n]),
        _ => None,
    }
}

/// The dimensions of a matrix, or of one for each group.
fn matrices(shape: &[usize]) -> Option<[usize; 3]> {
    let [lead @ .., k] = shape else { return None };
    rows(lead).map(|[groups, n]| [groups, n, *k])
}

/// Whether scales have so many rows and columns for each group; a vector has one column, and one may be a scalar.
fn scales_fit(shape: &[usize], groups: usize, [rows, columns]: [usize; 2]) -> bool {
    let count = groups * rows * columns;
    match *shape {
        [] => count == 1,
        [length] => (columns == 1 || count == 1) && length == groups * rows,
        [down, across] => {
            (groups == 1 && [down, across] == [rows, columns])
                || ([rows, columns] == [1, 1] && down * across == count)
        }
        [own, down, across] => [own, down, across] == [groups, rows, columns],
        _ => false,
    }
}

/// The numbers of a tensor.
fn floats(name: &str, tensor: &TensorView<'_>) -> Result<Vec<f32>> {
    let dtype = match tensor.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        _ => return Err(wrong(name, "F32, BF16 or F16", tensor)),
    };
    Ok(dtype.decode(tensor.data()))
}

fn wrong(name: &str, expected: &str, found: &TensorView<'_>) -> Error {
    Error::Checkpoint {
        tensor: name.to_owned(),
        expected: expected.to_owned(),
        found: format!("{:?} {:?}", found.dtype(), found.shape()),
    }
}

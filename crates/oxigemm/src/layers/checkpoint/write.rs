//! Writing: the tensors of each layer in the layout that is asked for.

use safetensors::tensor::{Dtype, TensorView, serialize};

use super::{BLOCKS, CheckpointLayout, GLOBAL_SCALE, PACKED, SCALE, SCALE_2, SCALE_INV, SCALES, WEIGHT};
use crate::error::{Error, Result};
use crate::layers::weight::MX_BLOCK;
use crate::layers::{QuantizedWeight, Recipe, WeightScales};
use crate::tensor::DType;

/// Tensors on their way into a safetensors file: see the [module](super).
#[derive(Debug, Default)]
pub struct CheckpointWriter {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl CheckpointWriter {
    /// No tensors yet.
    #[must_use]
    pub fn new() -> CheckpointWriter {
        CheckpointWriter::default()
    }

    /// Adds the weights of a layer. Reading them gives the same weights; the scale of all of NVFP4 is a divisor for
    /// [`CheckpointLayout::CompressedTensors`], and its reciprocal may be rounded.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for weights that the layout has no place for, and a name that is taken.
    pub fn add(&mut self, layer: &str, weight: &QuantizedWeight, layout: CheckpointLayout) -> Result<()> {
        use CheckpointLayout::{CompressedTensors, DeepSeek, GptOss, ModelOpt};
        let [groups, n, k] = weight.dims();
        let with_groups = |dims: [usize; 2]| match groups {
            1 => dims.to_vec(),
            _ => vec![groups, dims[0], dims[1]],
        };
        let at = |end: &str| format!("{layer}.{end}");
        let [down, across] = weight.scales().block();
        let scale_dims = with_groups([n.div_ceil(down), k.div_ceil(across)]);
        let bytes = weight.codes().to_vec();
        let one_of_each = if groups == 1 { Vec::new() } else { vec![groups] };
        match (weight.scales(), layout) {
            (WeightScales::F32 { block, values }, DeepSeek | ModelOpt | CompressedTensors) => {
                if layout == DeepSeek && *block != [128, 128] {
                    return Err(no_place(
                        layer,
                        layout,
                        format!("{} weights with scales of {block:?}", weight.recipe()),
                    ));
                }
                let name = if layout == DeepSeek { SCALE_INV } else { SCALE };
                self.put(at(WEIGHT), Dtype::F8_E4M3, with_groups([n, k]), bytes)?;
                self.put(at(name), Dtype::F32, scale_dims, DType::F32.encode(values))
            }
            (WeightScales::E8m0 { values, .. }, ModelOpt | CompressedTensors) => {
                let (name, dtype, columns) = match (weight.recipe(), layout) {
                    (Recipe::Mxfp8, _) => (WEIGHT, Dtype::F8_E4M3, k),
                    (_, CompressedTensors) => (PACKED, Dtype::U8, k / 2),
                    _ => (WEIGHT, Dtype::U8, k / 2),
                };
                self.put(at(name), dtype, with_groups([n, columns]), bytes)?;
                self.put(at(SCALE), Dtype::U8, scale_dims, values.clone())
            }
            (WeightScales::E8m0 { values, .. }, GptOss)
                if weight.recipe() == Recipe::Mxfp4 && k % MX_BLOCK == 0 =>
            {
                let blocks = [scale_dims.clone(), vec![16]].concat();
                self.put(format!("{layer}{BLOCKS}"), Dtype::U8, blocks, bytes)?;
                self.put(format!("{layer}{SCALES}"), Dtype::U8, scale_dims, values.clone())
            }
            (WeightScales::Nvfp4 { values, tensor }, ModelOpt | CompressedTensors) => {
                let (codes, all, factors) = match layout {
                    ModelOpt => (WEIGHT, SCALE_2, tensor.clone()),
                    _ => (PACKED, GLOBAL_SCALE, tensor.iter().map(|x| 1.0 / x).collect()),
                };
                self.put(at(codes), Dtype::U8, with_groups([n, k / 2]), bytes)?;
                self.put(at(SCALE), Dtype::F8_E4M3, scale_dims, values.clone())?;
                self.put(at(all), Dtype::F32, one_of_each, DType::F32.encode(&factors))
            }
            _ => Err(no_place(layer, layout, format!("{} weights {:?}", weight.recipe(), weight.dims()))),
        }
    }

    /// Adds a tensor of f32, such as a bias.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] where there are not so many values, and for a name that is taken.
    pub fn add_f32(&mut self, name: &str, values: &[f32], dims: &[usize]) -> Result<()> {
        if values.len() != dims.iter().product::<usize>() {
            return Err(Error::Checkpoint {
                tensor: name.to_owned(),
                expected: format!("values for {dims:?}"),
                found: format!("{} values", values.len()),
            });
        }
        self.put(name.to_owned(), Dtype::F32, dims.to_vec(), DType::F32.encode(values))
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for more tensors than a header holds.
    pub fn finish(&self) -> Result<Vec<u8>> {
        let file = |error: safetensors::SafeTensorError| Error::Checkpoint {
            tensor: "file".to_owned(),
            expected: "tensors that fit in a safetensors file".to_owned(),
            found: error.to_string(),
        };
        let views = self.tensors.iter().map(|(name, dtype, dims, bytes)| {
            TensorView::new(*dtype, dims.clone(), bytes).map(|view| (name.as_str(), view)).map_err(file)
        });
        serialize(views.collect::<Result<Vec<_>>>()?, None).map_err(file)
    }

    fn put(&mut self, name: String, dtype: Dtype, dims: Vec<usize>, bytes: Vec<u8>) -> Result<()> {
        if self.tensors.iter().any(|(other, ..)| *other == name) {
            return Err(Error::Checkpoint {
                tensor: name,
                expected: "a name of its own".to_owned(),
                found: "a tensor of that name already".to_owned(),
            });
        }
        self.tensors.push((name, dtype, dims, bytes));
        Ok(())
    }
}

fn no_place(layer: &str, layout: CheckpointLayout, found: String) -> Error {
    let expected = match layout {
        CheckpointLayout::DeepSeek => "fp8 weights with scales of [128, 128]",
        CheckpointLayout::GptOss => "mxfp4 weights with a K that is a multiple of 32",
        CheckpointLayout::ModelOpt | CheckpointLayout::CompressedTensors => "quantized weights",
    };
    Error::Checkpoint { tensor: layer.to_owned(), expected: expected.to_owned(), found }
}

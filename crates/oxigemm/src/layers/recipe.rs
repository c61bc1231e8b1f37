//! What weights are quantized to, and how a device multiplies what it was given.

use std::fmt;
use std::str::FromStr;

use oxigemm_kernels::Arch;

use crate::cast::ScaleFormat;
use crate::device::Device;
use crate::error::{Error, Result};

/// What weights are quantized to.
///
/// ```
/// use oxigemm::layers::Recipe;
///
/// assert_eq!("mxfp4".parse::<Recipe>()?, Recipe::Mxfp4);
/// assert_eq!(Recipe::Nvfp4.to_string(), "nvfp4");
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// e4m3 with f32 scales: of 128x128 where this library quantizes; those of checkpoints may also be of 1x128, of a
    /// row or of the matrix.
    Fp8,
    /// e4m3 with a power of two for 32 of a row.
    Mxfp8,
    /// e2m1 with a power of two for 32 of a row.
    Mxfp4,
    /// e2m1 with an e4m3 scale for 16 of a row, and an f32 for all.
    Nvfp4,
}

/// What NVFP4 weights are multiplied as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nvfp4Weights {
    /// As they are, by activations that are quantized to NVFP4 as well, where the tensor core does so. Elsewhere as FP8
    /// with scales of 128x128, and values are rounded again: see [`Conversion`](super::Conversion).
    #[default]
    Requantize,
    /// As BF16, which holds each code by its scale exactly, and activations are not quantized: twice the memory of FP8,
    /// and no loss.
    Bf16,
}

/// Choices of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerOptions {
    /// What becomes of NVFP4.
    pub nvfp4: Nvfp4Weights,
    /// The scale of all activations of a layer where they are quantized to NVFP4, as calibration gives it: the largest
    /// magnitude by 2688. 1 where there is none; magnitudes beyond 2688 of it saturate. See
    /// [`Checkpoint::input_scale`](super::checkpoint::Checkpoint::input_scale).
    pub input_scale: Option<f32>,
}

/// How a device multiplies weights of a recipe: see [`Recipe::runs_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// FP8 with the codes and scales that the weights have.
    Fp8,
    /// FP8 with the scales of 32 that the weights have.
    Fp8Scales32,
    /// e2m1 codes become e4m3 codes of the same value, with scales of 128x128 or, where a block does not allow that,
    /// of 1x32.
    Widen,
    /// FP8 with scales of 128x128, rounded to.
    Requantize,
    /// BF16.
    Bf16,
    /// Codes as they are, with scales that the tensor core applies: of 1x16, 1x32, 1x128 or 128x128.
    BlockScaled,
}

impl Recipe {
    /// All of them.
    pub const ALL: [Recipe; 4] = [Recipe::Fp8, Recipe::Mxfp8, Recipe::Mxfp4, Recipe::Nvfp4];

    /// The name that users type and read.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Recipe::Fp8 => "fp8",
            Recipe::Mxfp8 => "mxfp8",
            Recipe::Mxfp4 => "mxfp4",
            Recipe::Nvfp4 => "nvfp4",
        }
    }

    /// Codes in a byte.
    #[must_use]
    pub const fn codes_per_byte(self) -> usize {
        match self {
            Recipe::Fp8 | Recipe::Mxfp8 => 1,
            Recipe::Mxfp4 | Recipe::Nvfp4 => 2,
        }
    }

    /// The recipe that a device multiplies fastest with the least loss, for weights that are not quantized yet.
    ///
    /// # Errors
    /// As [`runs_on`](Self::runs_on).
    pub fn for_device(device: &Device) -> Result<Recipe> {
        let options = LayerOptions::default();
        // Scales of 32 cost the tensor core nothing where it applies them.
        match Recipe::Mxfp8.runs_on(device, &options)? {
            Strategy::BlockScaled => Ok(Recipe::Mxfp8),
            _ => Recipe::Fp8.runs_on(device, &options).map(|_| Recipe::Fp8),
        }
    }

    /// How a device multiplies weights of this recipe. This is the one place that knows: the native kernels of another
    /// architecture are another strategy here.
    ///
    /// # Errors
    /// [`Error::Device`] where the architecture has no kernels for quantized layers.
    ///
    /// ```
    /// use oxigemm::Device;
    /// use oxigemm::layers::{LayerOptions, Recipe, Strategy};
    ///
    /// let (hopper, blackwell): (Device, Device) = (Device::sim(), "sim:sm_100a".parse()?);
    /// let options = LayerOptions::default();
    /// assert_eq!(Recipe::Mxfp4.runs_on(&hopper, &options)?, Strategy::Widen);
    /// assert_eq!(Recipe::Mxfp4.runs_on(&blackwell, &options)?, Strategy::BlockScaled);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn runs_on(self, device: &Device, options: &LayerOptions) -> Result<Strategy> {
        Ok(match (device.limits().map(|limits| limits.arch), self, options.nvfp4) {
            (_, Recipe::Nvfp4, Nvfp4Weights::Bf16) => Strategy::Bf16,
            (Some(Arch::Sm100a), ..) => Strategy::BlockScaled,
            // The CPU computes what Hopper does.
            (None | Some(Arch::Sm90a), Recipe::Fp8, _) => Strategy::Fp8,
            (None | Some(Arch::Sm90a), Recipe::Mxfp8, _) => Strategy::Fp8Scales32,
            (None | Some(Arch::Sm90a), Recipe::Mxfp4, _) => Strategy::Widen,
            (None | Some(Arch::Sm90a), Recipe::Nvfp4, _) => Strategy::Requantize,
        })
    }

    /// The scales that numbers are quantized with for a device: powers of two where its tensor core has no others.
    ///
    /// # Errors
    /// As [`runs_on`](Self::runs_on).
    pub fn scale_format(self, device: &Device) -> Result<ScaleFormat> {
        Ok(match (self, self.runs_on(device, &LayerOptions::default())?) {
            (Recipe::Fp8, Strategy::BlockScaled) | (Recipe::Mxfp8 | Recipe::Mxfp4, _) => {
                ScaleFormat::PowerOfTwo
            }
            _ => ScaleFormat::F32,
        })
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Recipe {
    type Err = Error;

    fn from_str(name: &str) -> Result<Recipe> {
        Recipe::ALL.into_iter().find(|recipe| recipe.name() == name).ok_or_else(|| Error::DType {
            argument: "recipe",
            expected: "fp8, mxfp8, mxfp4 or nvfp4".to_owned(),
            found: format!("`{name}`"),
        })
    }
}

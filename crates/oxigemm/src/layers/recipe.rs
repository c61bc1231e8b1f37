//! What weights are quantized to, and how a device multiplies what it was given.

use std::fmt;
use std::str::FromStr;

use oxigemm_kernels::Arch;

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

/// How NVFP4 weights run where the tensor core does not multiply them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nvfp4Weights {
    /// As FP8 with scales of 128x128. Values are rounded again: see [`Conversion`](super::Conversion).
    #[default]
    Requantize,
    /// As BF16, which holds each code by its scale exactly: twice the memory of FP8, and no loss.
    Bf16,
}

/// Choices of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayerOptions {
    /// What becomes of NVFP4.
    pub nvfp4: Nvfp4Weights,
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
        Recipe::Fp8.runs_on(device, &LayerOptions::default()).map(|_| Recipe::Fp8)
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
    /// let hopper = Device::sim();
    /// assert_eq!(Recipe::Mxfp4.runs_on(&hopper, &LayerOptions::default())?, Strategy::Widen);
    /// # Ok::<(), oxigemm::Error>(())
    /// ```
    pub fn runs_on(self, device: &Device, options: &LayerOptions) -> Result<Strategy> {
        match device.limits().map(|limits| limits.arch) {
            // The CPU computes what Hopper does.
            None | Some(Arch::Sm90a) => Ok(match (self, options.nvfp4) {
                (Recipe::Fp8, _) => Strategy::Fp8,
                (Recipe::Mxfp8, _) => Strategy::Fp8Scales32,
                (Recipe::Mxfp4, _) => Strategy::Widen,
                (Recipe::Nvfp4, Nvfp4Weights::Requantize) => Strategy::Requantize,
                (Recipe::Nvfp4, Nvfp4Weights::Bf16) => Strategy::Bf16,
            }),
            Some(arch @ Arch::Sm100a) => Err(Error::Device {
                argument: "device",
                expected: format!("sm_90a or the CPU, which have kernels for layers of {self} weights"),
                found: arch.to_string(),
            }),
        }
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

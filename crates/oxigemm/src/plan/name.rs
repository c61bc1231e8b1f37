//! Names of configurations and operands, for people and for the command line.

use std::collections::HashMap;

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::operand::f16::Major;
use oxigemm_kernels::gemm::params::ScalesOfB;
use oxigemm_kernels::gemm::{ElementType, GemmConfig, GemmKernel, OperandKind};

/// The name of a configuration: the kernel's name, then what the launch chooses.
///
/// | name | kernel and launch |
/// |---|---|
/// | `sm90_fp8_persistent_128x144_s5_c1x2` | persistent, 128x144 tiles, 5 stages, clusters of 1 by 2 blocks |
/// | `sm90_fp8_split_k_8x64_k4_s6` | split-K, 8x64 tiles, K split in 4, 6 stages |
/// | `sm90_fp8_persistent_1d1d_128x128_s4_c1x1` | 1D1D scales |
/// | `sm90_fp8_persistent_1x32_128x128_s5_c1x1` | 1x32 scales; `32x32`: those of B |
/// | `sm90_fp8_mxfp4_persistent_m_grouped_32x128_s12_c1x1` | FP8 by MXFP4 |
/// | `sm90_bf16_persistent_nn_256x128_s3_c1x1` | BF16, layout NN |
#[must_use]
pub fn name(config: &GemmConfig) -> String {
    let (kernel, [cluster_m, cluster_n]) = (kernel_part(&config.kernel), config.cluster);
    match config.is_split_k() {
        true => format!("{kernel}_k{}_s{}", config.split_k, config.stages),
        false => format!("{kernel}_c{cluster_m}x{cluster_n}"),
    }
}

/// The part of a configuration's name that is its kernel's.
fn kernel_part(kernel: &GemmKernel) -> String {
    kernel.name().replace("_gemm_", "_")
}

/// The configuration of a name.
///
/// ```
/// use oxigemm::plan;
///
/// let config = plan::parse("sm90_fp8_split_k_8x64_k4_s6").unwrap();
/// assert_eq!(plan::name(&config), "sm90_fp8_split_k_8x64_k4_s6");
/// assert!(plan::parse("sm90_fp8_split_k_9x64_k4_s6").is_none());
/// ```
#[must_use]
pub fn parse(wanted: &str) -> Option<GemmConfig> {
    kernels()
        .filter(|kernel| wanted.starts_with(&kernel_part(kernel)))
        .flat_map(GemmConfig::all)
        .find(|config| name(config) == wanted)
}

/// All configurations by name.
pub(super) fn by_name() -> HashMap<String, GemmConfig> {
    kernels().flat_map(GemmConfig::all).map(|config| (name(&config), config)).collect()
}

/// The kernels of all architectures.
fn kernels() -> impl Iterator<Item = GemmKernel> {
    Arch::ALL.into_iter().flat_map(GemmKernel::all)
}

/// The contiguous dimensions of A and B in words.
fn majors_name([a, b]: [Major; 2]) -> String {
    let major = |major, other| if major == Major::K { 'K' } else { other };
    format!("A {}-major and B {}-major", major(a, 'M'), major(b, 'N'))
}

/// The name of operands: element types, scales and majors.
#[must_use]
pub fn operands_name(operands: OperandKind) -> String {
    if let Some(f16) = operands.as_f16() {
        return format!("{} operands, {}", f16.element.name(), majors_name([f16.a, f16.b]));
    }
    if operands.a.element == ElementType::Tf32 {
        return format!("tf32 operands, {}", majors_name([operands.a.major, operands.b.major]));
    }
    if operands.is_block_scaled() {
        let block = operands.scale_block.size();
        let rows = if operands.scales == Some(ScalesOfB::Blocks) { block } else { 1 };
        let [a, b] = [operands.a, operands.b].map(|operand| operand.element.name());
        let layout = match [operands.a.major, operands.b.major] {
            [Major::K, Major::K] => String::new(),
            majors => format!(", {}", majors_name(majors)),
        };
        return format!(
            "{a} and {b} operands with 1x{block} and {rows}x{block} scales that the tensor core applies{layout}"
        );
    }
    match operands.e5m2() {
        Some(e5m2) => format!("fp8 operands with scales, {}", e5m2.name().replace('_', " and ")),
        None if operands == OperandKind::FP8_1X32 => "fp8 operands with 1x32 scales".to_owned(),
        None if operands == OperandKind::FP8_32X32 => "fp8 operands with 1x32 and 32x32 scales".to_owned(),
        None if operands.widens_b() => {
            "fp8 and mxfp4 operands with 1x128 and 1x32 scales, which a kernel widens".to_owned()
        }
        None if operands.is_1d1d() => "fp8 operands with 1D1D scales".to_owned(),
        None => "fp8 operands with scales".to_owned(),
    }
}

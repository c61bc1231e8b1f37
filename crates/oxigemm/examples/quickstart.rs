//! The README's example.

use oxigemm::cast::{ScaleFormat, per_block_cast_to_fp8, per_token_cast_to_fp8};
use oxigemm::{Addend, DType, Device, GemmOptions, Tensor, fp8_gemm_nt, random};

fn main() -> oxigemm::Result<()> {
    let device = Device::cpu(); // Device::auto() takes a GPU where there is one, else the simulator
    let (m, n, k) = (64, 512, 1024);

    // Quantize an activation by row and a weight by block, 128 of K to a scale.
    let x = per_token_cast_to_fp8(&random::normals(1, m * k), m, k, ScaleFormat::F32)?;
    let w = per_block_cast_to_fp8(&random::normals(2, n * k), n, k, ScaleFormat::F32)?;
    let (a, sfa) = x.to_tensors(&device)?;
    let (b, sfb) = w.to_tensors(&device)?;

    let mut d = Tensor::empty(DType::Bf16, &[m, n], &device)?;
    fp8_gemm_nt((&a, &sfa), (&b, &sfb), Addend::None, &mut d, &GemmOptions::default())?;
    println!("{:?}", &d.to_vec_f32()?[..4]);
    Ok(())
}

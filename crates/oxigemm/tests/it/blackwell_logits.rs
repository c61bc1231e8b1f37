//! Logits of an indexer on Blackwell: the kernels in the simulator against the reference, whatever the schedule and the
//! numbers.

use crate::attention::{Odd, PREFILL, Paged, Prefill, RANGES, check, plain_pages};
use crate::common::{same_bits, some_schedules};
use oxigemm::check::Logits;
use oxigemm::{DType, Device, Sim};

fn blackwell() -> Sim {
    let device: Device = "sim:sm_100a".parse().expect("a device");
    device.as_sim().expect("a simulated one").clone()
}

/// Whether operands are FP4, and the head dimensions that there are.
const FORMATS: [(bool, &[usize]); 2] = [(false, &[32, 64, 128]), (true, &[64, 128])];

#[test]
fn prefills_of_every_kernel_give_the_reference() {
    let sim = blackwell();
    for (fp4, dims) in FORMATS {
        for (i, heads) in [32, 64, 128, 8, 72].into_iter().enumerate() {
            let dim = dims[i % dims.len()];
            let form = [Logits::Clean, Logits::Partial, Logits::Compressed][(i + usize::from(fp4)) % 3];
            let columns = if form == Logits::Compressed { 130 } else { 150 };
            let dtype = if i == 1 { DType::Bf16 } else { DType::F32 };
            let gap = i % 2;
            let case =
                Prefill { heads, dim, ranges: RANGES.to_vec(), form, columns, dtype, gap, fp4, ..PREFILL };
            check(&sim, dtype, |device| case.run(device));
        }
    }
}

#[test]
fn pages_of_every_kernel_give_the_reference() {
    let sim = blackwell();
    for (fp4, dims) in FORMATS {
        for (i, heads) in [32, 64, 128, 8, 72].into_iter().enumerate() {
            let page_keys = [64, 32, 256, 16, 128][i];
            let case = Paged {
                heads,
                dim: dims[(i + 1) % dims.len()],
                next: [3, 1, 2, 9, 5][i],
                page_keys,
                table_pages: 512 / page_keys,
                parts: [1, 2, 5, 132, 3][i],
                clean: i % 3 != 0,
                dtype: if i == 1 { DType::Bf16 } else { DType::F32 },
                gap: i % 2,
                fp4,
                ..plain_pages()
            };
            check(&sim, case.dtype, |device| case.run(device));
        }
    }
}

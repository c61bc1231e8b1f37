//! Every kernel of the closed set becomes good code: no spill, no stack, no dropped `setmaxnreg`, no serialized
//! `wgmma`. The assembler's wrapper makes each of them an error.

use oxigemm_cuda::PtxModule;
use oxigemm_cuda::assemble::Ptxas;
use oxigemm_kernels::AnyKernel;
use rayon::prelude::*;

#[test]
fn every_kernel_assembles_without_spills() {
    let Some(ptxas) = Ptxas::find() else {
        assert!(
            std::env::var_os("OXIGEMM_PTXAS").is_none_or(|path| path == "none"),
            "OXIGEMM_PTXAS does not name an assembler that runs"
        );
        eprintln!("no ptxas here: nothing was assembled");
        return;
    };
    let kernels: Vec<AnyKernel> = AnyKernel::all().collect();
    let faults: Vec<String> = kernels
        .par_iter()
        .filter_map(|kernel| {
            let name = kernel.name();
            let text = match kernel.code_text() {
                Ok(text) => text,
                Err(error) => return Some(format!("{name}: {error}")),
            };
            let ptx = PtxModule { name: &name, text: &text, arch: "sm_90a" };
            match ptxas.assemble(&ptx) {
                Err(error) => Some(error.to_string()),
                Ok(assembled) => {
                    let entry = assembled.report.entries.iter().find(|entry| entry.name == name);
                    entry.is_none().then(|| format!("{name}: the cubin has no kernel of that name"))
                }
            }
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

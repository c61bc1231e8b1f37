//! The real assembler: what it makes, what it says, and what is refused.

mod common;
#[path = "../examples/gpu_smoke/kernels.rs"]
mod kernels;

use common::{GOOD, real_ptxas};
use oxigemm_cuda::assemble::{EntryReport, disassemble};
use oxigemm_cuda::{CubinCache, Error, Provenance, PtxModule};

#[test]
fn a_good_kernel_becomes_a_cubin_with_a_report() {
    let Some(ptxas) = real_ptxas() else { return };
    assert!(ptxas.version().starts_with("ptxas "), "{}", ptxas.version());
    let assembled = ptxas.assemble(&GOOD).unwrap();
    assert_eq!(&assembled.cubin[..4], b"\x7fELF");
    let [entry] = <[EntryReport; 1]>::try_from(assembled.report.entries).unwrap();
    assert_eq!(entry.name, "good");
    assert_eq!((entry.stack_bytes, entry.spill_store_bytes, entry.spill_load_bytes), (0, 0, 0));
    assert_eq!((entry.barriers, entry.shared_bytes), (1, 256));
    assert!((4..64).contains(&entry.registers), "{}", entry.registers);
}

#[test]
fn a_cubin_depends_on_the_ptx_alone() {
    let Some(ptxas) = real_ptxas() else { return };
    let lines =
        GOOD.text.replace("    mov.u32", "    .loc 1 7 3\n    mov.u32") + ".file 1 \"kernels/good.rs\"\n";
    for text in [GOOD.text, &lines] {
        let ptx = PtxModule { text, ..GOOD };
        assert_eq!(ptxas.assemble(&ptx).unwrap().cubin, ptxas.assemble(&ptx).unwrap().cubin);
    }
}

#[test]
fn spilled_registers_are_an_error() {
    let Some(ptxas) = real_ptxas() else { return };
    let mut text = String::from(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry spills(.param .u64 p) .maxntid 1024, 1, 1 .maxnreg 24\n\
         {\n.reg .b64 %d; .reg .f32 %f<64>;\nld.param.u64 %d, [p]; cvta.to.global.u64 %d, %d;\n",
    );
    for i in 0..64 {
        text += &format!("ld.volatile.global.f32 %f{i}, [%d+{}];\n", 4 * i);
    }
    text += "bar.sync 0;\n";
    for i in 0..64 {
        text += &format!("st.volatile.global.f32 [%d+{}], %f{i};\n", 4 * (i * 7 % 64));
    }
    text += "ret;\n}\n";
    let ptx = PtxModule { name: "spilling", text: &text, arch: "sm_90a" };
    let Err(Error::Assemble { kernel, reason, log }) = ptxas.assemble(&ptx) else {
        panic!("it must not pass")
    };
    assert_eq!(kernel, "spilling");
    assert!(reason.starts_with("spills spills registers"), "{reason}");
    assert!(log.contains("bytes spill stores"), "{log}");
}

#[test]
fn a_dropped_setmaxnreg_is_an_error() {
    let Some(ptxas) = real_ptxas() else { return };
    let kernel = |bounds: &str| {
        format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry roles(.param .u64 p) {bounds}\n{{
    .reg .b32 %r<2>; .reg .b64 %d; .reg .pred %p;
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p, %r1, 128;
    @%p bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 232;
    bra.uni END;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 40;
END:
    ld.param.u64 %d, [p];
    cvta.to.global.u64 %d, %d;
    st.global.u32 [%d], %r1;
    ret;\n}}\n"
        )
    };
    let text = kernel(".maxntid 256, 1, 1 .minnctapersm 1");
    assert!(ptxas.assemble(&PtxModule { name: "roles", text: &text, arch: "sm_90a" }).is_ok());
    let text = kernel(".reqntid 256, 1, 1");
    let error = ptxas.assemble(&PtxModule { name: "roles", text: &text, arch: "sm_90a" }).unwrap_err();
    assert!(matches!(&error, Error::Assemble { reason, .. } if reason.starts_with("C7508")), "{error}");
}

#[test]
fn bad_ptx_is_an_error_with_the_assemblers_words() {
    let Some(ptxas) = real_ptxas() else { return };
    for text in ["", "nonsense", &GOOD.text.replace("bar.sync 0", "bar.synk 0")] {
        let error = ptxas.assemble(&PtxModule { text, ..GOOD }).unwrap_err();
        let Error::Assemble { reason, log, .. } = &error else { panic!("{error}") };
        assert!(reason.contains("fatal") || reason.contains("error"), "{reason}");
        assert!(!log.is_empty());
    }
}

#[test]
fn an_assembler_that_is_too_old_is_told_from_bad_ptx() {
    let Some(ptxas) = real_ptxas() else { return };
    let newer = GOOD.text.replace(".version 8.0", ".version 99.0");
    for ptx in [PtxModule { text: &newer, ..GOOD }, PtxModule { arch: "sm_999", ..GOOD }] {
        let error = ptxas.assemble(&ptx).unwrap_err();
        assert!(matches!(error, Error::AssemblerUnfit { .. }), "{error}");
    }
}

#[test]
fn the_whole_way_needs_no_gpu() {
    let Some(ptxas) = real_ptxas() else { return };
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::at(dir.path()).with_ptxas(ptxas.clone());
    let made = cache.cubin(&GOOD).unwrap().unwrap();
    assert_eq!((made.provenance, made.assembler.as_str()), (Provenance::Ptxas, ptxas.version()));
    assert!(made.report.is_some());
    let found = CubinCache::at(dir.path()).without_ptxas().cubin(&GOOD).unwrap().unwrap();
    assert_eq!((found.provenance, found.bytes), (Provenance::Cached, made.bytes));
}

#[test]
fn a_cubin_reads_as_machine_code_where_a_disassembler_is_found() {
    let Some(ptxas) = real_ptxas() else { return };
    let beside = ptxas.path().with_file_name("nvdisasm").is_file();
    match disassemble(&ptxas.assemble(&GOOD).unwrap().cubin) {
        Some(text) => assert!(text.contains("good") && text.contains("EXIT"), "{text}"),
        None => assert!(!beside, "there is one beside ptxas"),
    }
    assert_eq!(disassemble(b"no cubin"), None);
}

#[test]
fn the_kernels_of_the_smoke_test_assemble() {
    let Some(ptxas) = real_ptxas() else { return };
    for arch in ["sm_90a", "sm_100"] {
        for entry in [kernels::AFFINE, kernels::CLUSTER, kernels::TILE] {
            let text = kernels::module(arch, entry);
            ptxas.assemble(&PtxModule { name: "smoke", text: &text, arch }).unwrap();
        }
    }
}

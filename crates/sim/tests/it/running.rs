//! Runs that do not end, print, or want more memory than they have.

use oxigemm_sim::*;

fn run(text: &str, options: &Options) -> (Result<Report, Fault>, String) {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut machine = Machine::new();
    let at = machine.memory.allocate_with(&[0; 64]);
    let launch = Launch {
        entry: "k".into(),
        grid: [1; 3],
        cluster: None,
        block: [32, 1, 1],
        shared_bytes: 0,
        params: vec![Param::U64(at)],
    };
    let outcome = machine.run(&module, &launch, options);
    (outcome, machine.output)
}

fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a) {{
        .reg .pred p<3>; .reg .b32 r<4>; .reg .b64 d<4>;\n{body}\nret; }}"
    )
}

#[test]
fn a_loop_that_never_ends_is_told_by_its_lines() {
    let start = std::time::Instant::now();
    for (body, lines, note) in [
        ("again:\nbra again;", "line 7", "no branch that could leave it"),
        (
            "mov.u32 r0, 1; mov.u32 r1, 2;\nagain: setp.lt.u32 p0, r0, r1;\n@p0 bra again;",
            "lines 7 to 8",
            "`r0`, `r1`",
        ),
        (
            "ld.param.u64 d0, [a];\nagain: ld.global.u32 r0, [d0];\nsetp.eq.u32 p0, r0, 0;\n@p0 bra again;",
            "lines 7 to 9",
            "`p0` is set in it",
        ),
    ] {
        let fault = run(&kernel(body), &Options::default()).0.unwrap_err();
        assert_eq!(fault.kind, FaultKind::EndlessLoop, "{fault}");
        assert!(fault.message.contains(lines), "{fault}");
        assert!(fault.notes.iter().any(|line| line.contains(note)), "{fault}");
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
    // One that counts is told by the instructions without effect.
    let counts = kernel("mov.u32 r0, 0;\nagain: add.u32 r0, r0, 1;\nbra again;");
    let fault = run(&counts, &Options { idle_limit: Some(1_000_000), ..Options::default() }).0.unwrap_err();
    assert_eq!(fault.kind, FaultKind::EndlessLoop, "{fault}");
    assert!(fault.message.contains("without a store"), "{fault}");
    let fault = run(&counts, &Options { instruction_limit: 1_000_000, ..Options::default() }).0.unwrap_err();
    assert_eq!(fault.kind, FaultKind::InstructionLimit, "{fault}");
}

#[test]
fn a_long_loop_is_not_an_endless_one() {
    let body = "mov.u32 r0, 0;\nagain: add.u32 r0, r0, 1;\nsetp.lt.u32 p0, r0, 1000000;\n@p0 bra again;";
    let report = run(&kernel(body), &Options::default()).0.expect("it ends");
    assert!(report.instructions > 3_000_000);
}

/// What nvcc makes of `printf("%d of %5.2f: %s%c\n", tid, 1.5, "x", '!')`.
#[test]
fn a_kernel_prints() {
    let text = ".version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);
.global .align 1 .b8 format[] = {37, 100, 32, 111, 102, 32, 37, 53, 46, 50, 102, 58, 32, 37, 115, 37, 99, 10, 0};
.global .align 1 .b8 word[] = {120, 0};
.visible .entry k(.param .u64 a) {
    .local .align 8 .b8 values[32];
    .reg .pred p; .reg .b32 r<4>; .reg .b64 d<6>; .reg .f64 g;
    mov.u32 r0, %tid.x; setp.gt.u32 p, r0, 1; @p ret;
    mov.u64 d0, values; cvta.local.u64 d1, d0;
    st.local.u32 [d0], r0; mov.f64 g, 0d3FF8000000000000; st.local.f64 [d0+8], g;
    mov.u64 d2, word; cvta.global.u64 d2, d2; st.local.u64 [d0+16], d2; mov.u32 r1, 33; st.local.u32 [d0+24], r1;
    mov.u64 d3, format; cvta.global.u64 d4, d3;
    { .param .b64 p0; st.param.b64 [p0], d4; .param .b64 p1; st.param.b64 [p1], d1; .param .b32 ret0;
      call.uni (ret0), vprintf, (p0, p1); ld.param.b32 r2, [ret0]; }
    ld.param.u64 d5, [a]; setp.eq.u32 p, r0, 0; @p st.global.u32 [d5], r2;
    ret;
}";
    let (outcome, printed) = run(text, &Options::default());
    outcome.expect("it runs");
    assert_eq!(printed, "0 of  1.50: x!\n1 of  1.50: x!\n");
}

#[test]
fn memory_is_bounded() {
    let body = "ld.param.u64 d0, [a]; mov.u32 r0, %tid.x; mul.wide.u32 d1, r0, 0; add.u64 d0, d0, d1; ld.global.u32 r1, [d0];";
    let options = |bytes| Options { memory_limit: Some(bytes), ..Options::default() };
    run(&kernel(body), &options(16 << 20)).0.expect("enough");
    let fault = run(&kernel(body), &options(1000)).0.unwrap_err();
    assert_eq!((fault.kind, fault.launch.is_some()), (FaultKind::MemoryLimit, true), "{fault}");
    assert!(fault.message.contains("more than the 1000"), "{fault}");
    let mut memory = Memory::new();
    memory.limit = Some(4096);
    assert!(memory.try_allocate(4000).is_some() && memory.try_allocate(100).is_none());
    assert_eq!(memory.room(), Some(96));
}

#[test]
fn a_gpu_refuses_a_module_for_another() {
    let gpu = |name: &str| Options { gpu: Some(name.parse().expect(name)), ..Options::default() };
    let text = kernel("");
    run(&text, &gpu("sm_100a")).0.expect("a later GPU");
    let fault = run(&text, &gpu("sm_80")).0.unwrap_err();
    assert_eq!(fault.launch, Some(LaunchPart::Entry));
    assert!(fault.message.contains("a GPU of sm_80 does not run a module for sm_90"), "{fault}");
}

//! Commands that compute something and say whether it is right.

use super::{json, oxigemm, refused, stdout};

#[test]
fn logits_are_computed_checked_and_refused() {
    let prefill =
        ["logits", "--device", "sim", "--heads", "8", "--dim", "32", "--queries", "5", "--keys", "200"];
    let found = &json(&[&prefill[..], &["--form", "partial", "--json"]].concat())[0];
    assert_eq!(found["verdict"]["right"], true, "{found}");
    let paged =
        ["logits", "--device", "sim", "--heads", "8", "--dim", "32", "--paged", "100,0,33", "--page", "16"];
    let text = stdout(&oxigemm(&[&paged[..], &["--next", "2", "--logits", "bf16"]].concat()));
    assert!(text.contains("right"), "{text}");
    assert!(refused(&["logits", "--device", "sim", "--page", "16"]).1.contains("--paged"));
}

#[test]
fn logits_of_fp4_are_computed_on_blackwell_and_refused_elsewhere() {
    let sizes = ["--heads", "32", "--dim", "64"];
    for problem in [&["--queries", "9", "--keys", "200"][..], &["--paged", "100,0,33", "--next", "2"]] {
        for fp4 in [&[][..], &["--fp4"]] {
            let blackwell = ["logits", "--device", "sim:sm_100a", "--json"];
            let found = &json(&[&blackwell, &sizes[..], problem, fp4].concat())[0];
            assert_eq!(found["verdict"]["right"], true, "{problem:?} {fp4:?}: {found}");
        }
        let hopper = ["logits", "--device", "sim", "--fp4"];
        let (_, message) = refused(&[&hopper, &sizes[..], problem].concat());
        assert!(message.contains("`q`") && message.contains("sm_90a"), "{message}");
    }
    let (_, message) = refused(&["logits", "--device", "sim:sm_100a", "--fp4", "--dim", "32"]);
    assert!(message.contains("--dim"), "{message}");
}

#[test]
fn hyper_connections_are_computed_checked_and_refused() {
    fn hc<'a>(size: &[&'a str]) -> Vec<&'a str> {
        [&["hc", "--device", "sim", "--json"], size].concat()
    }
    for size in [&["-m", "70", "-k", "200"][..], &["-m", "5", "-n", "8", "-k", "136", "--splits", "3"]] {
        for device in ["sim", "sim:sm_100a"] {
            let found = &json(&[&["hc", "--device", device, "--json"], size].concat())[0];
            assert!(found["verdict"]["right"] == true && found["us"].is_null(), "{device} {size:?}: {found}");
        }
    }
    assert!(refused(&hc(&["-m", "5", "-n", "9", "-k", "64"])).1.contains("`b` has the wrong shape"));
    assert!(refused(&hc(&["-m", "5", "-k", "0"])).1.contains("`a` has the wrong shape"));
    let huge = usize::MAX.to_string();
    for (name, size) in [("-m", ["-m", &huge, "-k", "64"]), ("-k", ["-m", "1", "-k", &huge])] {
        assert!(refused(&hc(&size)).1.contains(name), "{size:?}");
    }
}

#[test]
fn logits_of_nothing_are_right_and_sizes_without_a_kernel_or_room_are_refused_by_name() {
    for nothing in [&["--queries", "0"][..], &["--keys", "0"], &["--paged", "0,0"], &["--paged=-5"]] {
        let arguments = ["logits", "--device", "sim", "--heads", "8", "--dim", "32"];
        let text = stdout(&oxigemm(&[&arguments[..], nothing].concat()));
        assert!(text.contains("right"), "{nothing:?}: {text}");
    }
    let huge = usize::MAX.to_string();
    for (name, value) in [
        ("--heads", "0"),
        ("--heads", "9"),
        ("--heads", &huge),
        ("--dim", "0"),
        ("--dim", "33"),
        ("--dim", &huge),
        ("--page", "0"),
        ("--page", "48"),
        ("--page", &huge),
        ("--next", "0"),
        ("--next", &huge),
        ("--queries", &huge),
        ("--queries", "100000000000"),
        ("--keys", &huge),
        ("--paged", "2147483647"),
        ("--seed", &huge),
    ] {
        let paged = if ["--page", "--next"].contains(&name) { &["--paged", "100"][..] } else { &[] };
        let (status, message) = refused(&[&["logits", "--device", "sim", name, value][..], paged].concat());
        assert!(status == 2 && message.contains(name), "{name} {value}: {message}");
    }
}

#[test]
fn fused_epilogues_are_compared_with_the_single_steps() {
    for extra in [
        &["--epilogue", "bias,gelu,alpha=0.5,beta=2", "--c", "inplace", "--batch-invariant"][..],
        &["--epilogue", "swiglu,fp8", "--scales", "tensor"],
        &["--epilogue", "heads=64/32/64", "--d-type", "f32"],
    ] {
        let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "256", "-k", "200"];
        let found = &json(&[&size[..], extra].concat())[0];
        assert!(found["epilogue"] == true && found["right"] == true, "{extra:?}: {found}");
    }
    for (op, d_type) in [("bf16", "bf16"), ("fp16", "f16")] {
        let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "250", "-k", "200", "--op", op];
        for (words, c, stored) in
            [("bias,geglu", "other", d_type), ("heads=64/32/61,alpha=0.5,beta=2", "inplace", d_type)]
        {
            let found = &json(&[&size[..], &["--epilogue", words, "--c", c]].concat())[0];
            assert!(found["epilogue"] == true && found["right"] == true, "{words}: {found}");
            assert!(found["d_type"] == stored && found["nothing_outside_written"] == true, "{found}");
        }
    }
    let size = ["gemm", "--device", "sim", "--json", "-m", "5", "-n", "256", "-k", "200", "--rows", "3,0,9"];
    for extra in [
        &["--op", "fp8-masked", "--epilogue", "swiglu,fp8,bias"][..],
        &["--op", "bf16-masked", "--epilogue", "swiglu,fp8,bias"],
        &["--op", "fp16-contiguous", "--epilogue", "relu,bias,beta=0.5", "--c", "inplace"],
        &[
            "--op",
            "fp8-contiguous",
            "--alignment",
            "16",
            "--layout",
            "ends",
            "--epilogue",
            "gelu",
            "--c",
            "other",
        ],
    ] {
        let found = &json(&[&size[..], extra].concat())[0];
        assert!(found["epilogue"] == true && found["right"] == true, "{extra:?}: {found}");
        assert!(found["groups"] == 3 && found["nothing_outside_written"] == true, "{extra:?}: {found}");
    }
    let plan = &json(&[
        "inspect",
        "--json",
        "-m",
        "20",
        "-n",
        "512",
        "-k",
        "256",
        "--op",
        "fp8-masked",
        "--epilogue",
        "swiglu",
    ])[0];
    assert!(
        plan["choice"].as_str().is_some_and(|name| name.starts_with("sm90_fp8_persistent_gated_m_grouped_")),
        "{plan}"
    );
    let (status, message) =
        refused(&["gemm", "-m", "5", "-n", "256", "-k", "200", "--op", "fp8-batched", "--epilogue", "relu"]);
    assert!(status == 2 && message.contains("--epilogue"), "{message}");
}

#[test]
fn a_quantization_is_compared_with_the_cpu() {
    for extra in [
        &["--scales", "mn"][..],
        &["--granularity", "tensor", "--code", "e5m2", "--input", "f32"],
        &["--granularity", "1x32", "--code", "u8", "--scales", "blocked"],
        &["--op", "dequantize", "--granularity", "128x1"],
        &["--op", "nvfp4", "--scales", "blocked"],
        &["--op", "both", "--scales", "mn"],
        &["--op", "both", "--granularity", "128x128", "--code", "e5m2"],
        &["--op", "nvfp4-computed", "--scales", "mn"],
        &["--op", "nvfp4-dequantize", "--input", "f32"],
        &["--op", "transform", "--scales", "packed"],
        &["--op", "swiglu", "--scales", "mn"],
        &["--op", "swiglu", "--scales", "blocked", "--input", "f16"],
        &["--op", "gather", "--scales", "packed"],
        &["--op", "rmsnorm", "--scales", "mn", "--input", "f32"],
        &["--op", "by-scale", "--code", "e5m2"],
    ] {
        let mut arguments = vec!["quantize", "--device", "sim", "--json", "-m", "3", "-k", "200"];
        arguments.extend(extra);
        let found = &json(&arguments)[0];
        assert_eq!((&found["judgement"]["right"], &found["judgement"]["differ"]), (&true.into(), &0.into()));
    }
    let (status, message) = refused(&["quantize", "-m", "3", "-k", "200", "--granularity", "2x2"]);
    assert!(status == 2 && message.contains("expected 1x128"), "{message}");
    let (_, message) = refused(&["quantize", "--device", "cpu", "-m", "3", "-k", "64", "--code", "u8"]);
    assert!(message.contains("`codes` has the wrong element type"), "{message}");
}

#[test]
fn a_gemm_on_the_cpu_is_checked() {
    for extra in [
        &[][..],
        &["--d-type", "f32", "--c", "inplace"],
        &["--c", "other", "--sfa", "mn", "--sfb", "odd"],
        &["--sfa", "row-padded", "--seed", "7"],
    ] {
        let mut arguments = vec!["gemm", "--device", "cpu", "--json", "-m", "33", "-n", "200", "-k", "300"];
        arguments.extend(extra);
        let found = &json(&arguments)[0];
        assert_eq!(found["right"], true, "{found}");
        assert_eq!(found["nothing_outside_written"], true, "{found}");
        assert_eq!(found["rows"], 33, "{found}");
        assert!(found["diff"].as_f64().is_some_and(|diff| diff < 1e-5), "{found}");
    }
    let text = stdout(&oxigemm(&["gemm", "--device", "cpu", "--m", "4", "--n", "64", "--k", "128"]));
    assert!(text.ends_with("right\n"), "{text}");
}

#[test]
fn a_gemm_in_the_simulator_is_checked_and_not_timed() {
    for device in ["sim", "sim:lazy", "sim:3"] {
        let arguments = ["gemm", "--device", device, "--json", "-m", "20", "-n", "72", "-k", "300"];
        let found = &json(&arguments)[0];
        assert_eq!((&found["right"], &found["device"]), (&true.into(), &"sim".into()), "{found}");
        assert!(found["plan"].as_str().is_some_and(|plan| plan.starts_with("sm90_fp8_split_k_")), "{found}");
        assert!(found["simulated"]["instructions"].as_u64() > Some(100), "{found}");
        assert!(found["us"].is_null() && found["host_first_call_us"].is_null(), "{found}");
    }
    let text = stdout(&oxigemm(&["gemm", "--device", "sim", "-m", "1", "-n", "64", "-k", "128"]));
    assert!(text.contains("no hazards") && text.ends_with("right\n"), "{text}");
    assert!(!text.contains(" us"), "{text}");
}

#[test]
fn gemms_of_16_bits_are_checked_in_every_layout() {
    for op in ["bf16", "fp16"] {
        for (layout, d_type) in [("nt", "f32"), ("nn", "f32"), ("tn", "f32"), ("tt", "f32")] {
            let arguments = ["gemm", "--device", "sim:3", "--json", "--op", op, "--layout", layout];
            let size = ["-m", "9", "-n", "72", "-k", "136", "--c", "inplace", "--d-type", d_type];
            let found = &json(&[&arguments[..], &size[..]].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            let prefix = format!("sm90_{op}_");
            assert!(found["plan"].as_str().is_some_and(|plan| plan.starts_with(&prefix)), "{found}");
            assert!(found["diff"].as_f64().is_some_and(|diff| diff < 1e-9), "{found}");
        }
    }
    let plan = &json(&[
        "inspect", "--op", "bf16", "--layout", "nn", "--json", "-m", "1", "-n", "7168", "-k", "2048",
    ])[0];
    assert!(
        plan["kernel"].as_str().is_some_and(|name| name.starts_with("sm90_bf16_gemm_split_k_nn_")),
        "{plan}"
    );
}

#[test]
fn m_grouped_gemms_are_computed_and_checked_everywhere() {
    for device in ["cpu", "sim", "sim:lazy"] {
        let masked = ["gemm", "--device", device, "--json", "--op", "fp8-masked", "--rows", "3,0,40"];
        let found =
            &json(&[&masked[..], &["--max-m", "50", "-m", "20", "-n", "72", "-k", "300"]].concat())[0];
        assert_eq!((&found["right"], &found["rows"]), (&true.into(), &43.into()), "{found}");
        assert_eq!(
            (&found["nothing_outside_written"], &found["groups"]),
            (&true.into(), &3.into()),
            "{found}"
        );
        for layout in ["ids", "ends"] {
            let contiguous =
                ["gemm", "--device", device, "--json", "--op", "fp8-contiguous", "--groups", "3"];
            let size = ["-m", "20", "-n", "72", "-k", "300", "--alignment", "16", "--layout", layout];
            let found = &json(&[&contiguous[..], &size].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            assert!(
                found["plan"].is_null()
                    || found["plan"].as_str().unwrap().starts_with("sm90_fp8_persistent_m_grouped_")
            );
        }
        for (op, layout, c) in [
            ("bf16-masked", "nn", "inplace"),
            ("fp16-masked", "nt", "none"),
            ("bf16-contiguous", "nn,ends", "other"),
            ("fp16-contiguous", "ids", "inplace"),
            ("bf16-batched", "nt", "none"),
            ("fp16-batched", "nn", "inplace"),
        ] {
            let problem = ["gemm", "--device", device, "--json", "--op", op, "--layout", layout, "--c", c];
            let size = ["--groups", "3", "-m", "20", "-n", "72", "-k", "130"];
            let aligned: &[&str] = if op.ends_with("contiguous") { &["--alignment", "16"] } else { &[] };
            let found = &json(&[&problem[..], &size, aligned, &["--d-type", "f32"]].concat())[0];
            assert_eq!((&found["right"], &found["nothing_outside_written"]), (&true.into(), &true.into()));
            assert!(
                found["plan"].is_null()
                    || found["plan"].as_str().unwrap().contains("16_persistent_m_grouped_n")
            );
        }
    }
    let text = stdout(&oxigemm(&[
        "gemm",
        "--device",
        "sim",
        "--op",
        "fp8-masked",
        "--rows",
        "5",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
    ]));
    assert!(text.contains("fp8-masked groups=1") && text.ends_with("right\n"), "{text}");
    let (_, message) = refused(&[
        "gemm",
        "--device",
        "cpu",
        "--op",
        "fp8-masked",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
        "--c",
        "inplace",
    ]);
    assert!(message.contains("nothing can be added"), "{message}");
    let (_, message) = refused(&[
        "gemm",
        "--device",
        "sim",
        "--op",
        "fp8-contiguous",
        "-m",
        "5",
        "-n",
        "64",
        "-k",
        "128",
        "--alignment",
        "3",
    ]);
    assert!(message.contains("--alignment") && message.contains("1, 16, 32, 64 or 128"), "{message}");
}

#[test]
fn sizes_of_zero_are_no_error() {
    for (m, n, k) in [("0", "64", "128"), ("4", "0", "128"), ("4", "64", "0")] {
        let found = &json(&["gemm", "--device", "cpu", "--json", "-m", m, "-n", n, "-k", k])[0];
        assert_eq!(found["right"], true, "{found}");
    }
}

#[test]
fn k_order_and_raster_band_of_a_gemm_can_be_chosen() {
    let gemm = ["gemm", "--device", "sim", "--op", "bf16", "-m", "300", "-n", "100", "-k", "320"];
    let choice = ["--json", "--num-sms", "1", "--choice", "sm90_bf16_persistent_nt_128x256_s3_c1x1"];
    for order in ["forward", "serpentine"] {
        let found = &json(&[&gemm[..], &choice, &["--k-order", order, "--raster-band", "2"]].concat())[0];
        assert_eq!(found["right"], true, "{found}");
    }
    let (_, message) = refused(&[&gemm[..], &["--k-order", "backward"]].concat());
    assert!(message.contains("expected forward or serpentine"), "{message}");
    assert!(refused(&[&gemm[..], &["--raster-band", "0"]].concat()).1.contains("1..=64"));
    let (_, message) = refused(&[&gemm[..], &["--k-order", "serpentine", "--batch-invariant"]].concat());
    assert!(message.contains("k_order is Serpentine: expected Forward"), "{message}");
}

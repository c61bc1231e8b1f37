use oxigemm_sim::*;
#[test]
fn parse_all() {
    for e in std::fs::read_dir("tests/ptx/nvcc").unwrap() {
        let p = e.unwrap().path();
        if p.extension().is_some_and(|x| x == "ptx") {
            match Module::parse(&std::fs::read_to_string(&p).unwrap()) {
                Ok(_) => println!("{p:?} ok"),
                Err(e) => println!("{p:?} {e}"),
            }
        }
    }
}

//! The program; everything is in the library, which the Python package has too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(oxigemm_cli::run(std::env::args_os()))
}

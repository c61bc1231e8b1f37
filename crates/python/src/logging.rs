//! What the library has to say, on the standard error stream.

use std::io::Write;

use tracing::level_filters::LevelFilter;

/// Sets up as `OXIGEMM_LOG` says: off, error, warn (the default), info, debug or trace.
pub fn init() {
    let wanted = std::env::var("OXIGEMM_LOG").ok().filter(|wanted| !wanted.is_empty());
    let level = match wanted.as_deref().map(str::parse) {
        None => LevelFilter::WARN,
        Some(Ok(level)) => level,
        Some(Err(_)) => {
            // Where nothing can be written there, nothing is.
            let text = "OXIGEMM_LOG is wrong: expected off, error, warn, info, debug or trace";
            let _ = writeln!(std::io::stderr(), "{text}");
            LevelFilter::WARN
        }
    };
    // A second import in one process keeps what the first has set up.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .without_time()
        .log_internal_errors(false)
        .try_init();
}

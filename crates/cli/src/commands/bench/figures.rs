//! What is measured of a case, beside what the anchor has of it.

use indicatif::ProgressBar;
use oxigemm_testkit::Verdict;
use serde::Serialize;

use crate::Common;
use crate::baseline::Peer;
use crate::output::LiveTable;

/// The figures of a case.
#[derive(Serialize)]
pub struct Figures {
    plan: String,
    pub us: f64,
    estimate_us: f64,
    pub anchor_us: f64,
    anchor_main_kernel_us: f64,
    pub ratio: f64,
    tflops: f64,
    gb_per_s: f64,
    roofline: f64,
    pub calibration_us: Option<f64>,
    anchor_diff: f64,
    #[serde(flatten)]
    verdict: Option<Verdict>,
    #[serde(skip)]
    work: Work,
}

/// The work of a case.
#[derive(Clone, Copy)]
pub struct Work {
    pub flops: f64,
    pub bytes: f64,
    /// The least time that the hardware could take.
    pub floor_us: f64,
}

/// The times of one pass.
pub struct Times {
    pub us: f64,
    pub calibration_us: Option<f64>,
}

impl Figures {
    /// Of a first pass, by the name and the estimate of a plan.
    pub fn new(
        (plan, estimate_us): (String, f64),
        work: Work,
        peer: Peer,
        verdict: Option<Verdict>,
        times: &Times,
    ) -> Figures {
        let mut figures = Figures {
            plan,
            us: f64::INFINITY,
            estimate_us,
            anchor_us: peer.call_us,
            anchor_main_kernel_us: peer.main_kernel_us,
            ratio: 0.0,
            tflops: 0.0,
            gb_per_s: 0.0,
            roofline: 0.0,
            calibration_us: None,
            anchor_diff: peer.diff,
            verdict,
            work,
        };
        figures.improve(times);
        figures
    }

    /// Takes the times of a pass that was faster.
    pub fn improve(&mut self, times: &Times) {
        if times.us < self.us {
            self.us = times.us;
            self.calibration_us = times.calibration_us;
            self.ratio = self.anchor_us / times.us;
            self.tflops = self.work.flops / times.us * 1e-6;
            self.gb_per_s = self.work.bytes / times.us * 1e-3;
            self.roofline = self.work.floor_us / times.us;
        }
    }

    /// Whether nothing was found to be wrong.
    pub fn is_right(&self) -> bool {
        self.verdict.as_ref().is_none_or(|verdict| verdict.right)
    }

    /// The titles of [`cells`](Self::cells).
    const COLUMNS: [&str; 11] = [
        "us", "anchor", "ratio", "TFLOPS", "GB/s", "roofline", "diff", "anchor's", "exact", "calib.", "plan",
    ];

    /// As the last columns of a table.
    fn cells(&self) -> [String; 11] {
        [
            format!("{:.2}", self.us),
            format!("{:.2}", self.anchor_us),
            format!("{:.3}", self.ratio),
            format!("{:.0}", self.tflops),
            format!("{:.0}", self.gb_per_s),
            format!("{:.2}", self.roofline),
            self.verdict
                .as_ref()
                .map_or("-".to_owned(), |verdict| format!("{:.2e}", verdict.diff_unquantized)),
            format!("{:.2e}", self.anchor_diff),
            self.verdict.as_ref().map_or("-".to_owned(), |verdict| {
                format!("{:.1e}{}", verdict.diff, if verdict.right { "" } else { " WRONG" })
            }),
            self.calibration_us.map_or("-".to_owned(), |us| format!("{us:.1}")),
            self.plan.clone(),
        ]
    }
}

/// A table of figures, each printed when it will not change any more; none where a machine reads.
pub struct Live(Option<LiveTable>);

impl Live {
    /// A table of cases with these names; nothing is printed where there are none.
    pub fn new(common: &Common, names: impl Iterator<Item = String>) -> Live {
        let longest = names.map(|name| name.len()).max().filter(|_| !common.json);
        Live(longest.map(|longest| LiveTable::new(["case"].into_iter().chain(Figures::COLUMNS), longest)))
    }

    /// Prints a row.
    pub fn row(&self, bar: &ProgressBar, name: &str, figures: &Figures) {
        if let Live(Some(table)) = self {
            table.row(bar, [name.to_owned()].into_iter().chain(figures.cells()));
        }
    }
}

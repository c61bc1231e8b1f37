//! Draws benchmark results as one self-contained SVG: a bar per case, as long as the case is faster than the anchor.

use std::fmt::Write;

use crate::baseline::{CALIBRATION_TOLERANCE, geometric_mean};

/// One measured case.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Rows of A.
    pub m: u32,
    /// Rows of B.
    pub n: u32,
    /// Columns of both.
    pub k: u32,
    /// Our time.
    pub us: f64,
    /// The anchor's time.
    pub anchor_us: f64,
}

impl Bar {
    /// How many times faster than the anchor.
    fn ratio(&self) -> f64 {
        self.anchor_us / self.us
    }

    fn tflops(&self) -> f64 {
        2.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k) / self.us * 1e-6
    }
}

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Chart<'a> {
    /// What was measured.
    pub title: &'a str,
    /// On what, and how.
    pub subtitle: &'a str,
    /// The calibration GEMM of this run, where it could be timed.
    pub calibration_us: Option<f64>,
    /// The calibration GEMM of the anchor.
    pub anchor_calibration_us: f64,
    /// The cases; neighbours of the same `m` form a group.
    pub bars: &'a [Bar],
}

const WIDTH: f64 = 1040.0;
const MARGIN: f64 = 32.0;
const BARS_LEFT: f64 = 148.0;
const BARS_RIGHT: f64 = 760.0;
/// Right edges of the columns behind the bars, and their headings.
const COLUMNS: [(f64, &str); 3] = [(838.0, "ours, µs"), (926.0, "anchor, µs"), (WIDTH - MARGIN, "TFLOPS")];
const HEADER: f64 = 138.0;
/// The line above each group that names it.
const GROUP: f64 = 30.0;
const ROW: f64 = 22.0;
const BAR: f64 = 14.0;
/// From the top of a row to the baseline of its text.
const BASELINE: f64 = 15.5;
const FOOTER: f64 = 62.0;
/// Distinct in hue and in lightness, so that they also differ for the colour-blind and in print.
const COLOURS: [&str; 6] = ["#3b6fb6", "#2a9d8f", "#e0a030", "#8e5ea2", "#c8553d", "#5d6d7e"];
const PAPER: &str = "#fdfdfc";
const INK: &str = "#1f2933";
const FAINT: &str = "#66727f";
const WARNING: &str = "#b42318";

/// The chart as the text of an SVG file.
pub fn svg(chart: &Chart<'_>) -> String {
    let groups: Vec<&[Bar]> = chart.bars.chunk_by(|a, b| a.m == b.m).collect();
    let bottom = HEADER + chart.bars.len() as f64 * ROW + groups.len() as f64 * GROUP + 8.0;
    let axis = Axis::new(chart.bars);

    let mut page = Page { text: String::new() };
    page.open(bottom + FOOTER, chart.title);
    page.words(MARGIN, 42.0, "title", chart.title);
    page.words(MARGIN, 65.0, "subtitle", chart.subtitle);
    summary(&mut page, chart);

    for (right, heading) in COLUMNS {
        page.words(right, HEADER - 6.0, "heading", heading);
    }
    page.words(BARS_LEFT - 10.0, HEADER - 6.0, "heading", "n × k");
    for tick in axis.ticks() {
        let x = axis.x(tick);
        page.line(x, HEADER, x, bottom, "grid");
        page.words(x, bottom + 17.0, if tick == 1.0 { "tick here" } else { "tick" }, &format!("{tick}×"));
    }
    page.words(
        (BARS_LEFT + BARS_RIGHT) / 2.0,
        bottom + 40.0,
        "tick",
        "speed relative to the anchor; longer is faster",
    );

    let mut y = HEADER;
    for (index, group) in groups.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        family(&mut page, group, colour, y);
        y += GROUP;
        for bar in *group {
            row(&mut page, &axis, bar, colour, y);
            y += ROW;
        }
    }
    // Over the bars, so that the eye finds on which side each one ends.
    page.line(axis.x(1.0), HEADER, axis.x(1.0), bottom, "one");
    page.words(axis.x(1.0), HEADER - 6.0, "tick here", "anchor");
    page.text.push_str("</svg>\n");
    page.text
}

/// The heading of a group, which is also the legend of its colour.
fn family(page: &mut Page, group: &[Bar], colour: &str, y: f64) {
    let baseline = y + GROUP - 7.0;
    page.rectangle(MARGIN, baseline - 10.5, 12.0, 12.0, colour);
    page.words(MARGIN + 19.0, baseline, "family", &format!("m = {}", group[0].m));
    if let Some(mean) = geometric_mean(group.iter().map(Bar::ratio)) {
        page.words(BARS_LEFT, baseline, "mean", &format!("geometric mean {mean:.3}×"));
    }
}

/// The result in one line, and whether it can be compared at all.
fn summary(page: &mut Page, chart: &Chart<'_>) {
    if let Some(mean) = geometric_mean(chart.bars.iter().map(Bar::ratio)) {
        let faster = chart.bars.iter().filter(|bar| bar.ratio() >= 1.0).count();
        let count = chart.bars.len();
        let text = format!(
            "Geometric mean {mean:.3}× the speed of the anchor; {faster} of {count} cases at least as fast."
        );
        page.words(MARGIN, 88.0, "summary", &text);
    }
    let expected = chart.anchor_calibration_us;
    let (class, text) = match chart.calibration_us {
        Some(us) if (us / expected - 1.0).abs() <= CALIBRATION_TOLERANCE => (
            "note",
            format!("Calibration: cuBLASLt FP8 4096³ took {us:.1} µs, beside the anchor {expected:.1} µs."),
        ),
        Some(us) => (
            "note slower",
            format!(
                "Not comparable: calibration (cuBLASLt FP8 4096³) took {us:.1} µs, beside the anchor {expected:.1} µs ({:+.1}%).",
                (us / expected - 1.0) * 100.0
            ),
        ),
        None => (
            "note slower",
            format!("No calibration: cuBLASLt was not found; beside the anchor it took {expected:.1} µs."),
        ),
    };
    page.words(MARGIN, 108.0, class, &text);
}

fn row(page: &mut Page, axis: &Axis, bar: &Bar, colour: &str, y: f64) {
    let (ratio, baseline) = (bar.ratio(), y + BASELINE);
    page.words(BARS_LEFT - 10.0, baseline, "case", &format!("{} × {}", bar.n, bar.k));
    let end = axis.x(ratio);
    page.rectangle(BARS_LEFT, y + (ROW - BAR) / 2.0, end - BARS_LEFT, BAR, colour);
    let class = if ratio < 1.0 { "ratio slower" } else { "ratio" };
    // Short bars end before the line at 1.0: their label stands behind it.
    page.words(end.max(axis.x(1.0)) + 6.0, baseline, class, &format!("{ratio:.2}×"));
    let figures = [significant(bar.us), significant(bar.anchor_us), significant(bar.tflops())];
    for ((right, _), figure) in COLUMNS.into_iter().zip(figures) {
        page.words(right, baseline, "figure", &figure);
    }
}

/// Three digits or more, as a person would write them.
fn significant(value: f64) -> String {
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
}

/// Ratios to pixels, from 0 on: the length of a bar is its ratio.
struct Axis {
    end: f64,
    step: f64,
}

impl Axis {
    fn new(bars: &[Bar]) -> Axis {
        let longest = bars.iter().map(Bar::ratio).filter(|ratio| ratio.is_finite()).fold(1.0, f64::max);
        let step = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|step| longest / step <= 10.0)
            .unwrap_or(10f64.powf((longest / 5.0).log10().ceil()));
        // Space for the label behind the longest bar.
        Axis { end: longest * 1.1, step }
    }

    fn x(&self, ratio: f64) -> f64 {
        let part = if ratio.is_finite() { (ratio / self.end).clamp(0.0, 1.0) } else { 0.0 };
        BARS_LEFT + part * (BARS_RIGHT - BARS_LEFT)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (end, step) = (self.end, self.step);
        (0..).map(move |i| f64::from(i) * step).take_while(move |tick| *tick <= end)
    }
}

struct Page {
    text: String,
}

impl Page {
    fn open(&mut self, height: f64, title: &str) {
        self.write(format_args!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">
<title>{}</title>
<style>
text {{ font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; font-size: 13px; fill: {INK}; }}
.title {{ font-size: 21px; font-weight: 600; }}
.subtitle, .note, .tick, .heading, .mean {{ fill: {FAINT}; }}
.note, .tick, .heading, .mean {{ font-size: 12px; }}
.summary, .family, .ratio {{ font-weight: 600; }}
.case, .heading, .figure {{ text-anchor: end; }}
.tick {{ text-anchor: middle; }}
.case, .figure, .ratio {{ font-variant-numeric: tabular-nums; }}
.here {{ fill: {INK}; font-weight: 600; }}
.slower {{ fill: {WARNING}; }}
.grid {{ stroke: #e3e7eb; stroke-width: 1; }}
.one {{ stroke: {INK}; stroke-width: 1.5; stroke-dasharray: 5 3; }}
</style>
<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>
"##,
            escape(title)
        ));
    }

    fn words(&mut self, x: f64, y: f64, class: &str, words: &str) {
        self.write(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>\n",
            escape(words)
        ));
    }

    fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.write(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>\n"
        ));
    }

    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.write(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{colour}\"/>\n"
        ));
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.text.write_fmt(arguments).expect("writing to a String does not fail");
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(bars: &[Bar]) -> Chart<'_> {
        Chart {
            title: "FP8 & <GEMM>",
            subtitle: "H200",
            calibration_us: Some(92.3),
            anchor_calibration_us: 92.0,
            bars,
        }
    }

    const BARS: [Bar; 3] = [
        Bar { m: 1, n: 2112, k: 7168, us: 10.0, anchor_us: 20.0 },
        Bar { m: 1, n: 576, k: 7168, us: 8.0, anchor_us: 4.0 },
        Bar { m: 4096, n: 7168, k: 16384, us: 600.0, anchor_us: 660.0 },
    ];

    #[test]
    fn a_bar_is_as_long_as_its_ratio() {
        let text = svg(&chart(&BARS));
        let width = |index: usize| -> f64 {
            // The background; a box before the first group; its two bars; a box before the second.
            let rectangle = text.split("<rect ").nth([3, 4, 6][index]).unwrap();
            rectangle.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
        };
        assert!((width(0) / width(1) - 4.0).abs() < 0.01);
        assert!((width(0) / width(2) - 2.0 / 1.1).abs() < 0.01);
    }

    #[test]
    fn ratios_times_and_speeds_are_written_out() {
        let text = svg(&chart(&BARS));
        for expected in [
            ">2.00×<",
            "slower\">0.50×<",
            ">1.10×<",
            ">2112 × 7168<",
            ">m = 4096<",
            ">geometric mean 1.000×<",
            "Geometric mean 1.032×",
            "2 of 3 cases",
            ">660<",
            ">1603<",
            "92.3 µs",
            "FP8 &amp; &lt;GEMM&gt;",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn a_run_that_cannot_be_compared_says_so() {
        assert!(!svg(&chart(&BARS)).contains("Not comparable"));
        assert!(svg(&Chart { calibration_us: Some(97.0), ..chart(&BARS) }).contains("Not comparable"));
        assert!(svg(&Chart { calibration_us: None, ..chart(&BARS) }).contains("No calibration"));
    }

    #[test]
    fn odd_results_still_make_a_drawing() {
        let odd = [
            Bar { us: 0.0, ..BARS[0] },
            Bar { us: f64::NAN, ..BARS[0] },
            Bar { anchor_us: 1e9, ..BARS[1] },
            Bar { anchor_us: 0.0, ..BARS[2] },
        ];
        for bars in [&odd[..], &[]] {
            let text = svg(&chart(bars));
            assert!(text.ends_with("</svg>\n"));
            assert!(text.len() < 20_000, "no endless ticks");
            assert!(!text.contains("=\"NaN\"") && !text.contains("=\"inf\""));
        }
    }
}

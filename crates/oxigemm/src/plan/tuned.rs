//! Tuned configurations: those that measurements found faster than the plan, by GPU and problem, and their file.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use oxigemm_kernels::Arch;
use oxigemm_kernels::gemm::epilogue::fusion::Fusion;
use serde::{Deserialize, Serialize};

use super::name::by_name;
use super::{
    GemmConfig, GemmShape, KGroupedShape, Limits, MGroupedShape, PlanRequest, PlanShape, name, operands_name,
};
use crate::error::{Error, Result};

/// The environment variable with the path of a file.
const VARIABLE: &str = "OXIGEMM_TUNED";
/// The version of the file.
const VERSION: u32 = 1;

/// Tuned configurations by GPU and problem.
///
/// [`plan`](super::plan()) asks the set of the process, [`tuned`]. It is read from the file that the environment
/// variable `OXIGEMM_TUNED` names when the first plan is made, or set by [`set_tuned`]. `oxigemm tune` writes such
/// files: JSON, one entry a line. A file is read as a whole or not at all: an entry whose configuration does not exist,
/// or cannot compute its problem, is an error that says which.
///
/// | field | meaning |
/// |---|---|
/// | `arch`, `sms` | the GPU: its architecture and its number of SMs |
/// | `operands` | [`operands_name`] of the configuration, for readers |
/// | `grouping` | `dense`, `batched`, `summed`, `m-grouped-contiguous`, `m-grouped-masked` or `k-grouped` |
/// | `groups` | number of groups, or of GEMMs in a batch or sum |
/// | `m`, `n`, `k` | one GEMM. m-grouped: `m` is the expected rows of a group. k-grouped: `k` is that of all groups |
/// | `epilogue` | `none` (the default), `elementwise` or `gated`; with a gate, `n` counts the columns of D |
/// | `quantized_output`, `block_scaled_output` | of the epilogue, false by default |
/// | `config` | the name of the configuration |
///
/// ```
/// use oxigemm::plan::{self, GemmShape, Limits, OperandKind, PlanRequest, TunedConfigs};
///
/// let text = r#"{
///   "version": 1,
///   "configs": [
///     {"arch":"sm_90a","sms":132,"operands":"fp8 operands with scales","grouping":"dense",
///      "m":1,"n":576,"k":7168,"config":"sm90_fp8_split_k_8x64_k4_s6"}
///   ]
/// }"#;
/// let (mut tuned, limits) = (TunedConfigs::from_text(text)?, Limits::h200());
/// let request = |m| PlanRequest::dense(OperandKind::FP8, GemmShape { m, n: 576, k: 7168 });
/// assert_eq!(plan::plan_with(&request(1), &limits, &tuned)?.name(), "sm90_fp8_split_k_8x64_k4_s6");
///
/// let other = plan::rank(&request(16), &limits)[1].0;
/// tuned.insert(&request(16), &limits, other)?;
/// assert_eq!(plan::plan_with(&request(16), &limits, &tuned)?.config, other);
/// # Ok::<(), oxigemm::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunedConfigs {
    entries: Vec<(Problem, GemmConfig)>,
}

/// What a configuration was tuned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Problem {
    arch: Arch,
    sms: u32,
    /// What is computed, without wishes.
    request: PlanRequest,
}

impl Problem {
    fn new(request: &PlanRequest, limits: &Limits) -> Problem {
        // Any number of rows has the plan of the expected ones.
        let in_expected = |shape: MGroupedShape| match shape.slabs {
            1 => MGroupedShape { rows: shape.expected.saturating_mul(shape.groups), ..shape },
            _ => MGroupedShape { rows: shape.expected, ..shape },
        };
        let shape = match request.shape {
            PlanShape::MGrouped(shape) => PlanShape::MGrouped(in_expected(shape)),
            shape => shape,
        };
        let request = PlanRequest {
            shape,
            batch_invariant: false,
            config: None,
            k_order: None,
            raster_band: None,
            ..*request
        };
        Problem { arch: limits.arch, sms: limits.sms, request }
    }

    /// The limits of the GPU, as far as its architecture and its number of SMs tell.
    fn limits(&self) -> Limits {
        Limits::of(self.arch, self.sms, self.arch.limits().shared_per_block)
    }

    /// The error where a configuration cannot compute it.
    fn expect(&self, config: &GemmConfig) -> Result<(), String> {
        if config.kernel.arch() == self.arch && self.request.fits(config, &self.limits()) {
            return Ok(());
        }
        Err(format!(
            "{} does not compute {} with {} on {} SMs of {}",
            name(config),
            self.request.description(),
            operands_name(self.request.operands),
            self.sms,
            self.arch,
        ))
    }
}

impl TunedConfigs {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the configuration of a problem, in place of an earlier one. Of a request, operands, shape and epilogue
    /// count; of an m-grouped shape, the expected rows.
    ///
    /// # Errors
    /// If the configuration cannot compute the problem on such a GPU.
    pub fn insert(&mut self, request: &PlanRequest, limits: &Limits, config: GemmConfig) -> Result<()> {
        let problem = Problem::new(request, limits);
        problem.expect(&config).map_err(|reason| Error::Tuned { reason })?;
        match self.entries.iter_mut().find(|(other, _)| *other == problem) {
            Some((_, earlier)) => *earlier = config,
            None => self.entries.push((problem, config)),
        }
        Ok(())
    }

    /// Removes the configuration of a problem.
    pub fn remove(&mut self, request: &PlanRequest, limits: &Limits) {
        let problem = Problem::new(request, limits);
        self.entries.retain(|(other, _)| *other != problem);
    }

    /// The configuration for a request on a device: none for a device that is restricted to some SMs, and none where it
    /// would break batch invariance.
    #[must_use]
    pub fn get(&self, request: &PlanRequest, limits: &Limits) -> Option<GemmConfig> {
        if self.entries.is_empty() || limits.restricted {
            return None;
        }
        let problem = Problem::new(request, limits);
        let (_, config) = self.entries.iter().find(|(other, _)| *other == problem)?;
        if request.excludes(config) {
            return None;
        }
        if !request.fits(config, limits) {
            // More rows than were expected, or less shared memory than such GPUs have.
            let (config, problem) = (name(config), request.description());
            tracing::warn!(%config, %problem, "a tuned configuration does not fit; the plan has another");
            return None;
        }
        Some(*config)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is not what [`save`](Self::save) writes, or has a configuration that does not exist or
    /// cannot compute its problem.
    pub fn load(path: impl AsRef<Path>) -> Result<TunedConfigs> {
        let path = path.as_ref();
        let about = |reason: String| Error::Tuned { reason: format!("{}: {reason}", path.display()) };
        let text = std::fs::read_to_string(path).map_err(|error| about(error.to_string()))?;
        read(&text).map_err(about)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_text())
            .map_err(|error| Error::Tuned { reason: format!("{}: {error}", path.display()) })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Like [`load`](Self::load).
    pub fn from_text(text: &str) -> Result<TunedConfigs> {
        read(text).map_err(|reason| Error::Tuned { reason })
    }

    /// The text of a file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line = |(problem, config): &(Problem, GemmConfig)| {
            let line = Line::new(problem, config);
            format!("    {}", serde_json::to_string(&line).expect("it is made of numbers and names"))
        };
        let lines: Vec<String> = self.entries.iter().map(line).collect();
        let lines = if lines.is_empty() { String::new() } else { format!("\n{}\n  ", lines.join(",\n")) };
        format!("{{\n  \"version\": {VERSION},\n  \"configs\": [{lines}]\n}}\n")
    }
}

/// A file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "version")]
    _version: u32,
    configs: Vec<Line>,
}

/// What a file of any version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// An entry as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    arch: String,
    sms: u32,
    operands: String,
    grouping: GroupingName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<u32>,
    m: u32,
    n: u32,
    k: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    epilogue: EpilogueName,
    #[serde(default, skip_serializing_if = "is_default")]
    quantized_output: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    block_scaled_output: bool,
    config: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GroupingName {
    Dense,
    Batched,
    Summed,
    MGroupedContiguous,
    MGroupedMasked,
    KGrouped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum EpilogueName {
    #[default]
    None,
    Elementwise,
    Gated,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Line {
    fn new(problem: &Problem, config: &GemmConfig) -> Line {
        let request = &problem.request;
        let GemmShape { m, n, k } = match request.shape {
            PlanShape::Dense(shape) | PlanShape::Summed { gemm: shape, .. } => shape,
            PlanShape::Batched(MGroupedShape { rows: m, n, k, .. })
            | PlanShape::MGrouped(MGroupedShape { expected: m, n, k, .. })
            | PlanShape::KGrouped(KGroupedShape { m, n, k, .. }) => GemmShape { m, n, k },
        };
        let (grouping, groups) = match request.shape {
            PlanShape::Dense(_) => (GroupingName::Dense, None),
            PlanShape::Summed { batch, .. } => (GroupingName::Summed, Some(batch)),
            PlanShape::Batched(shape) => (GroupingName::Batched, Some(shape.groups)),
            PlanShape::MGrouped(shape) if shape.slabs == 1 => {
                (GroupingName::MGroupedContiguous, Some(shape.groups))
            }
            PlanShape::MGrouped(shape) => (GroupingName::MGroupedMasked, Some(shape.groups)),
            PlanShape::KGrouped(shape) => (GroupingName::KGrouped, Some(shape.groups)),
        };
        let epilogue = match request.fusion {
            Fusion::None => EpilogueName::None,
            Fusion::Elementwise => EpilogueName::Elementwise,
            Fusion::Gated => EpilogueName::Gated,
        };
        Line {
            arch: problem.arch.name().to_owned(),
            sms: problem.sms,
            operands: operands_name(request.operands),
            grouping,
            groups,
            m,
            n,
            k,
            epilogue,
            quantized_output: request.quantized_output,
            block_scaled_output: request.block_scaled_output,
            config: name(config),
        }
    }

    /// The problem and the configuration, of all there are.
    fn read(&self, all: &HashMap<String, GemmConfig>) -> Result<(Problem, GemmConfig), String> {
        let Line { sms, m, n, k, .. } = *self;
        let arch = Arch::ALL.into_iter().find(|arch| arch.name() == self.arch);
        let arch = arch.ok_or_else(|| {
            let names = Arch::ALL.map(Arch::name).join(" or ");
            format!("expected {names} as `arch`, found {:?}", self.arch)
        })?;
        let config =
            *all.get(&self.config).ok_or_else(|| format!("there is no configuration {:?}", self.config))?;
        let operands = config.operands();
        if operands_name(operands) != self.operands {
            let of_config = operands_name(operands);
            return Err(format!("{} is for {of_config}, not for {}", self.config, self.operands));
        }
        if [sms, m, n, k, self.groups.unwrap_or(1)].contains(&0) {
            return Err("expected at least 1 of `sms`, `m`, `n`, `k` and `groups`, found 0".to_owned());
        }
        let counted = || self.groups.ok_or_else(|| "expected a number of `groups`".to_owned());
        let gemm = GemmShape { m, n, k };
        let in_slabs = |groups, slabs| MGroupedShape { groups, slabs, rows: m, expected: m, n, k };
        let shape = match self.grouping {
            GroupingName::Dense => PlanShape::Dense(gemm),
            GroupingName::Summed => PlanShape::Summed { gemm, batch: counted()? },
            GroupingName::Batched => PlanShape::Batched(in_slabs(counted()?, counted()?)),
            GroupingName::MGroupedContiguous => PlanShape::MGrouped(in_slabs(counted()?, 1)),
            GroupingName::MGroupedMasked => PlanShape::MGrouped(in_slabs(counted()?, counted()?)),
            GroupingName::KGrouped => PlanShape::KGrouped(KGroupedShape { groups: counted()?, m, n, k }),
        };
        let request = PlanRequest {
            fusion: match self.epilogue {
                EpilogueName::None => Fusion::None,
                EpilogueName::Elementwise => Fusion::Elementwise,
                EpilogueName::Gated => Fusion::Gated,
            },
            quantized_output: self.quantized_output,
            block_scaled_output: self.block_scaled_output,
            ..PlanRequest::new(operands, shape)
        };
        let limits = Limits::of(arch, sms, arch.limits().shared_per_block);
        let problem = Problem::new(&request, &limits);
        problem.expect(&config)?;
        Ok((problem, config))
    }
}

/// Reads the text of a file, or says what is wrong with it.
fn read(text: &str) -> Result<TunedConfigs, String> {
    let Versioned { version } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("expected version {VERSION}, found {version}: run `oxigemm tune` again"));
    }
    let File { configs, .. } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let (mut tuned, all) = (TunedConfigs::default(), by_name());
    for (i, line) in configs.iter().enumerate() {
        let (problem, config) = line.read(&all).map_err(|reason| {
            format!("entry {} of {}: {reason}: delete it or run `oxigemm tune` again", i + 1, configs.len())
        })?;
        match tuned.entries.iter_mut().find(|(other, _)| *other == problem) {
            Some((_, earlier)) => *earlier = config,
            None => tuned.entries.push((problem, config)),
        }
    }
    Ok(tuned)
}

/// The set of the process, once there is one.
static OF_PROCESS: RwLock<Option<Arc<TunedConfigs>>> = RwLock::new(None);

/// Makes [`plan`](super::plan()) take these configurations. Problems that a device has planned already keep their plan,
/// so this comes before the first call.
pub fn set_tuned(tuned: TunedConfigs) {
    *OF_PROCESS.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tuned));
}

/// The tuned configurations that [`plan`](super::plan()) takes: those that were set, else those of the file that
/// `OXIGEMM_TUNED` names. A file that cannot be used is reported by a warning, once, and counts as empty.
#[must_use]
pub fn tuned() -> Arc<TunedConfigs> {
    if let Some(tuned) = &*OF_PROCESS.read().unwrap_or_else(PoisonError::into_inner) {
        return Arc::clone(tuned);
    }
    let mut of_process = OF_PROCESS.write().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(of_process.get_or_insert_with(|| Arc::new(of_environment())))
}

/// Those of the file that the environment names.
fn of_environment() -> TunedConfigs {
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
        return TunedConfigs::default();
    };
    TunedConfigs::load(path).unwrap_or_else(|error| {
        tracing::warn!("{VARIABLE} is not used, and all plans are the planner's own: {error}");
        TunedConfigs::default()
    })
}

//! Special registers.

/// A special register, with its component where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    ClusterId(u8),
    NclusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtarank,
    ClusterNctarank,
    IsExplicitCluster,
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LanemaskEq,
    LanemaskLt,
    LanemaskLe,
    LanemaskGt,
    LanemaskGe,
    Clock,
    ClockHigh,
    DynamicSmemSize,
    TotalSmemSize,
    ReservedEnd,
    Zero,
}

impl Special {
    pub(crate) fn parse(name: &str) -> Option<Special> {
        let (base, component) = match name.rsplit_once('.') {
            Some((b, "x")) => (b, 0),
            Some((b, "y")) => (b, 1),
            Some((b, "z")) => (b, 2),
            Some(_) => return None,
            None => (name, 255),
        };
        let vector = component != 255;
        Some(match (base, vector) {
            ("%tid", true) => Special::Tid(component),
            ("%ntid", true) => Special::Ntid(component),
            ("%ctaid", true) => Special::Ctaid(component),
            ("%nctaid", true) => Special::Nctaid(component),
            ("%clusterid", true) => Special::ClusterId(component),
            ("%nclusterid", true) => Special::NclusterId(component),
            ("%cluster_ctaid", true) => Special::ClusterCtaid(component),
            ("%cluster_nctaid", true) => Special::ClusterNctaid(component),
            ("%cluster_ctarank", false) => Special::ClusterCtarank,
            ("%cluster_nctarank", false) => Special::ClusterNctarank,
            ("%is_explicit_cluster", false) => Special::IsExplicitCluster,
            ("%laneid", false) => Special::LaneId,
            ("%warpid", false) => Special::WarpId,
            ("%nwarpid", false) => Special::NwarpId,
            ("%smid", false) => Special::SmId,
            ("%nsmid", false) => Special::NsmId,
            ("%gridid", false) => Special::GridId,
            ("%lanemask_eq", false) => Special::LanemaskEq,
            ("%lanemask_lt", false) => Special::LanemaskLt,
            ("%lanemask_le", false) => Special::LanemaskLe,
            ("%lanemask_gt", false) => Special::LanemaskGt,
            ("%lanemask_ge", false) => Special::LanemaskGe,
            ("%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo", false) => Special::Clock,
            ("%clock_hi" | "%globaltimer_hi", false) => Special::ClockHigh,
            ("%dynamic_smem_size", false) => Special::DynamicSmemSize,
            ("%total_smem_size" | "%aggr_smem_size", false) => Special::TotalSmemSize,
            ("%current_graph_exec", false) => Special::Zero,
            (name, false) if counted(name, "%envreg", 32) || counted(name, "%pm", 8) => Special::Zero,
            // Shared memory that the hardware keeps lies before the window of the CTA.
            ("%reserved_smem_offset_begin" | "%reserved_smem_offset_0", false) => Special::Zero,
            ("%reserved_smem_offset_end" | "%reserved_smem_offset_cap", false) => Special::ReservedEnd,
            _ => return None,
        })
    }
}

/// Whether a name is one of `prefix0` to `prefix<count - 1>`.
fn counted(name: &str, prefix: &str, count: u32) -> bool {
    name.strip_prefix(prefix).and_then(|n| n.parse().ok()).is_some_and(|n: u32| n < count)
}

//! Store pipeline: from accumulators to D in batches of panels, of 16-bit and of 1D1D FP8 kernels.
//!
//! A consumer warpgroup has a staging area of some panels: 64 rows of 128 bytes. Where TMA can store D, the warpgroup
//! fills the area, and a store thread has it stored. A part of a tile that is larger than the area, as it is in FP32
//! most of all, takes several such batches. Consumers and store threads go through the same list.

use crate::common::pipeline::{Pipeline, Reader};
use crate::gemm::epilogue::{
    OutputFlags, OutputParams, PANEL_BYTES, Panels, ROW_BYTES, WARP_BYTES, WarpOutput, chunk_offset,
};
use crate::gemm::sm90::warpgroups::M_SUBTILE_STRIDE;
use oxigemm_ptx::tma::StoreReduction;
use oxigemm_ptx::{Kernel, Shared, U32, Var};

/// Part of a tile that a warpgroup computes: M-subtiles of 64 rows, all of the same columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartShape {
    pub m_subtiles: u32,
    pub columns: u32,
}

/// Element type of a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// 64 columns of a 16-bit type.
    Half,
    /// 32 columns of FP32.
    F32,
}

impl Kind {
    const fn columns(self) -> u32 {
        match self {
            Kind::Half => ROW_BYTES / 2,
            Kind::F32 => ROW_BYTES / 4,
        }
    }
}

/// Panel of a part: its columns of one M-subtile, and its slot in the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Panel {
    subtile: u32,
    first_column: u32,
    columns: u32,
    slot: u32,
}

impl PartShape {
    /// Panels of the whole part, in 16 bits.
    pub fn panels(&self) -> u32 {
        self.panels_of(Kind::Half).count() as u32
    }

    fn panels_of(&self, kind: Kind) -> impl Iterator<Item = Panel> {
        let (m_subtiles, columns, width) = (self.m_subtiles, self.columns, kind.columns());
        (0..m_subtiles).flat_map(move |subtile| {
            (0..columns).step_by(width as usize).map(move |first_column| Panel {
                subtile,
                first_column,
                columns: width.min(columns - first_column),
                slot: 0,
            })
        })
    }

    /// The panels in batches of as many as the staging area holds.
    fn batches(&self, kind: Kind, capacity: u32) -> Vec<Vec<Panel>> {
        let panels: Vec<Panel> = self.panels_of(kind).collect();
        let batch = |panels: &[Panel]| {
            (0u32..).zip(panels).map(|(slot, panel)| Panel { slot, ..*panel }).collect::<Vec<_>>()
        };
        panels.chunks(capacity as usize).map(batch).collect()
    }
}

/// Order in which TMA adds the panels of a batch to FP32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddOrder {
    /// All panels at once.
    AtOnce,
    /// A panel when the one before it has been read, to what was prefetched into the L2 cache while the tile was
    /// computed: else the loads of the next tile wait behind all of them in the TMA unit.
    Prefetched,
    /// A panel when the one before it is in memory. All SMs add at about the same time, and loads wait for that; a long
    /// tile leaves the time, and a prefetch would only occupy the cache.
    OneByOne,
}

/// Store pipeline of a warpgroup's part of a tile.
#[derive(Clone, Copy)]
pub(crate) struct StorePipeline<'k> {
    pub k: &'k Kernel,
    pub params: OutputParams<'k>,
    /// The slab of D, where its map has several.
    pub slab: Option<U32<'k>>,
    /// Whether D may go on behind the last of its [`rows`](OutputParams::rows), with those of another group.
    pub rows_follow: bool,
    pub add_order: AddOrder,
    /// Whether TMA stores FP32 as well, and adds it: with a factor of C it cannot.
    pub stores_f32: bool,
    pub shape: PartShape,
    /// Panels that the staging area holds.
    pub panels: u32,
    /// The warpgroup's staging area, aligned to 1024.
    pub staging: Shared<'k>,
    /// The staging areas of the warpgroups, each a stage of a ring: `full` when it holds a batch.
    pub ring: Pipeline<'k>,
    pub warpgroup: U32<'k>,
}

impl<'k> StorePipeline<'k> {
    /// The same for rows before `end` of one of D's slabs, which are `stride` elements apart.
    pub fn in_slab(self, slab: U32<'k>, stride: U32<'k>, end: U32<'k>) -> Self {
        StorePipeline {
            params: self.params.in_slab(slab, stride, end),
            slab: Some(slab),
            rows_follow: true,
            ..self
        }
    }

    /// The same for rows of D before `end`, and a store thread that stores them in one of its slabs: see
    /// [`crate::gemm::scheduler::k_grouped`].
    pub fn of_group(self, slab: U32<'k>, end: U32<'k>) -> Self {
        let params = OutputParams { rows: end, ..self.params };
        StorePipeline { params, slab: Some(slab), ..self }
    }

    fn panel(&self, panel: &Panel, [row, column]: [U32<'k>; 2]) -> Panels<'k> {
        Panels {
            row: row + panel.subtile * M_SUBTILE_STRIDE,
            column: column + panel.first_column,
            staging: self.staging.at(panel.slot * PANEL_BYTES),
        }
    }

    /// Writes a consumer warp's rows of the part that begins at `first`: a fragment of accumulators for each M-subtile.
    /// `parity` is the warpgroup's in the ring, which begins as a producer's.
    pub fn write(
        &self,
        [warp, lane]: [U32<'k>; 2],
        first: [U32<'k>; 2],
        accumulators: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let (k, p) = (self.k, &self.params);
        k.if_else(
            p.has(OutputFlags::PLAIN),
            || {
                let batches = |kind| self.write_batches(kind, [warp, lane], first, accumulators, parity);
                match self.stores_f32 {
                    true => k.if_else(p.has(OutputFlags::F32), || batches(Kind::F32), || batches(Kind::Half)),
                    false => batches(Kind::Half),
                }
            },
            || {
                let whole =
                    |subtile| Panel { subtile, first_column: 0, columns: self.shape.columns, slot: 0 };
                let rows = |subtile| self.rows([warp, lane], &whole(subtile), first);
                let parts =
                    (0u32..).zip(accumulators).map(|(subtile, accumulators)| (rows(subtile), *accumulators));
                WarpOutput::write_f32(k, &parts.collect::<Vec<_>>());
            },
        );
    }

    /// A warp's rows of a panel.
    fn rows(&self, [warp, lane]: [U32<'k>; 2], panel: &Panel, first: [U32<'k>; 2]) -> WarpOutput<'k, '_> {
        WarpOutput { params: &self.params, place: self.panel(panel, first), warp, lane }
    }

    fn write_batches(
        &self,
        kind: Kind,
        [warp, lane]: [U32<'k>; 2],
        first: [U32<'k>; 2],
        accumulators: &[&[Var<'k, f32>]],
        parity: Var<'k, u32>,
    ) {
        let k = self.k;
        for batch in self.shape.batches(kind, self.panels) {
            let staged: Vec<_> = batch
                .iter()
                .map(|panel| {
                    let [from, end] = [panel.first_column, panel.first_column + panel.columns];
                    let accumulators =
                        &accumulators[panel.subtile as usize][from as usize / 2..end as usize / 2];
                    (panel, self.rows([warp, lane], panel, first), accumulators)
                })
                .collect();
            let whole = |panel: &Panel| panel.columns == kind.columns();
            let stage = || {
                for (panel, rows, accumulators) in &staged {
                    match kind {
                        Kind::Half => rows.stage(k, accumulators),
                        Kind::F32 if whole(panel) => stage_f32(rows, accumulators),
                        Kind::F32 => {}
                    }
                }
            };
            let reader = Reader::of_panels(self.shape.columns >= kind.columns());
            self.ring.write_stage(reader, (self.warpgroup, lane), parity, stage);
            // Columns that are no whole panel are stored by the lanes.
            for (panel, rows, accumulators) in staged.iter().filter(|(panel, ..)| !whole(panel)) {
                match kind {
                    Kind::Half => rows.store_left_over(k, panel.columns),
                    Kind::F32 => WarpOutput::write_f32(k, &[(*rows, *accumulators)]),
                }
            }
            if self.rows_follow {
                self.store_within(kind, [warp, lane], first, &batch);
            }
        }
    }

    /// Stores a warp's rows of those panels of a batch that rows of another group follow in, by its lanes.
    fn store_within(
        &self,
        kind: Kind,
        [warp, lane]: [U32<'k>; 2],
        [row, column]: [U32<'k>; 2],
        batch: &[Panel],
    ) {
        let k = self.k;
        k.for_(0, batch.len() as u32, 1, |slot| {
            let place = self.nth_panel(kind, [row, column], batch, slot);
            let rows = WarpOutput { params: &self.params, place, warp, lane };
            match kind {
                Kind::Half => rows.store_within(k, kind.columns()),
                Kind::F32 => rows.store_f32_within(k),
            }
        });
    }

    /// The panel of a batch that is in a slot of the staging area; all panels of the part are whole.
    fn nth_panel(
        &self,
        kind: Kind,
        [row, column]: [U32<'k>; 2],
        batch: &[Panel],
        slot: U32<'k>,
    ) -> Panels<'k> {
        let shape = self.shape;
        debug_assert!(shape.columns.is_multiple_of(kind.columns()), "panels are whole");
        let across = shape.columns / kind.columns();
        let before = batch[0].subtile * across + batch[0].first_column / kind.columns();
        let panel = slot + before;
        let subtile = panel / across;
        Panels {
            row: row + subtile * M_SUBTILE_STRIDE,
            column: column + (panel - subtile * across) * kind.columns(),
            staging: self.staging.at(slot * PANEL_BYTES),
        }
    }

    /// Prefetches into the L2 cache what the part that begins at `first` will be added to, where that pays.
    pub fn prefetch(&self, first: [U32<'k>; 2]) {
        if self.add_order != AddOrder::Prefetched {
            return;
        }
        let p = &self.params;
        self.k.if_(p.has(OutputFlags::F32) & p.has(OutputFlags::ADDEND), || {
            let whole = |panel: &Panel| panel.columns == Kind::F32.columns();
            for panel in self.shape.panels_of(Kind::F32).filter(whole) {
                p.d_map.prefetch_tile(&self.coordinates(&self.panel(&panel, first)));
            }
        });
    }

    /// Coordinates of a panel in D's map.
    fn coordinates(&self, at: &Panels<'k>) -> Vec<U32<'k>> {
        [self.params.column_of_d(at.column), at.row].into_iter().chain(self.slab).collect()
    }

    /// The store thread's side of one tile, whose part begins at `first`. `parity` is its in the ring, which begins as
    /// a consumer's.
    pub fn store(&self, first: [U32<'k>; 2], parity: Var<'k, u32>) {
        if !self.stores_f32 {
            return self.store_batches(Kind::Half, first, parity);
        }
        self.k.if_else(
            self.params.has(OutputFlags::F32),
            || self.store_batches(Kind::F32, first, parity),
            || self.store_batches(Kind::Half, first, parity),
        );
    }

    fn store_batches(&self, kind: Kind, first: [U32<'k>; 2], parity: Var<'k, u32>) {
        let (k, p) = (self.k, &self.params);
        for batch in self.shape.batches(kind, self.panels) {
            let whole = batch.iter().filter(|panel| panel.columns == kind.columns());
            let panels: Vec<_> = whole.map(|panel| self.panel(panel, first)).collect();
            self.ring.full(self.warpgroup).wait(parity.get());
            let each = |store: &dyn Fn(&Panels<'k>)| {
                for at in &panels {
                    match self.rows_follow {
                        false => store(at),
                        true => k.if_(at.is_before(p.rows), || store(at)),
                    }
                }
            };
            let wait_until_read = || {
                k.bulk_commit();
                k.bulk_wait_read(0);
            };
            // What is added to FP32 is D itself, and TMA adds it.
            let add_panel = |at: &Panels<'k>| {
                p.d_map.store_reducing(StoreReduction::Add, &self.coordinates(at), at.staging)
            };
            let add = || match self.add_order {
                AddOrder::AtOnce => {
                    each(&add_panel);
                    wait_until_read();
                }
                AddOrder::Prefetched | AddOrder::OneByOne => k.for_(0, batch.len() as u32, 1, |slot| {
                    add_panel(&self.nth_panel(kind, first, &batch, slot));
                    k.bulk_commit();
                    match self.add_order {
                        AddOrder::OneByOne => k.bulk_wait(0),
                        _ => k.bulk_wait_read(0),
                    }
                }),
            };
            let store = || {
                each(&|at| p.d_map.store(&self.coordinates(at), at.staging));
                wait_until_read();
            };
            match kind {
                Kind::F32 => k.if_else(p.has(OutputFlags::ADDEND), add, store),
                Kind::Half => store(),
            }
            self.ring.empty(self.warpgroup).arrive();
            parity.set(parity.live() ^ 1);
        }
    }
}

/// Stages a warp's rows of a panel in FP32, as TMA reads them.
///
/// Half of a warp stores to four rows at a time, eight numbers of each. Of those, two neighbours would have a bank
/// conflict; so odd rows take the octets of columns in another order than even ones.
fn stage_f32<'k>(rows: &WarpOutput<'k, '_>, accumulators: &[Var<'k, f32>]) {
    const APART: usize = 2;
    let (row, pair) = (rows.lane >> 2, rows.lane & 3);
    let odd = (row & 1).eq(1);
    let panel = rows.place.staging.at(rows.warp * WARP_BYTES).at((pair & 1) * 8);
    let first_chunk = (pair >> 1) ^ odd.select(APART as u32 * 2, 0);
    let octets: Vec<_> = accumulators.chunks(4).collect();
    for (octet, even_row) in octets.iter().enumerate() {
        let odd_row = octets[octet ^ APART];
        let value = |i: usize| odd.select(odd_row[i].live(), even_row[i].live());
        let upper = panel.at(chunk_offset(row, first_chunk ^ (octet as u32 * 2)));
        upper.store_vec([value(0), value(1)]);
        upper.at(8 * ROW_BYTES).store_vec([value(2), value(3)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_is_in_one_panel_and_every_batch_fits() {
        for (m_subtiles, columns) in [(2, 128), (1, 256), (1, 192), (1, 176), (1, 144), (1, 128), (1, 64)] {
            let shape = PartShape { m_subtiles, columns };
            for (kind, capacity) in
                [(Kind::Half, shape.panels()), (Kind::F32, shape.panels()), (Kind::F32, 1)]
            {
                let batches = shape.batches(kind, capacity);
                let mut covered = vec![0; (m_subtiles * columns) as usize];
                for panel in batches.iter().flatten() {
                    let first = panel.subtile * columns + panel.first_column;
                    covered[first as usize..][..panel.columns as usize].iter_mut().for_each(|x| *x += 1);
                }
                assert!(covered.iter().all(|x| *x == 1), "{shape:?} {kind:?}");
                for batch in &batches {
                    assert!(batch.len() as u32 <= capacity);
                    assert!((0u32..).zip(batch).all(|(slot, panel)| panel.slot == slot));
                }
            }
            assert_eq!(shape.batches(Kind::Half, shape.panels()).len(), 1, "16 bits take one batch");
        }
    }
}

//! Output that ends inside a tile, where the rows of another group follow.

use super::{OutputFlags, ROW_BYTES, WarpOutput};
use oxigemm_ptx::{Kernel, Var};

impl<'k> WarpOutput<'k, '_> {
    /// [`write`](Self::write) for rows that are not the last of D: nothing behind [`rows`](super::OutputParams::rows)
    /// is written to. The copy engine stores only what lies before it with all of its 16 rows; the lanes store the
    /// rest.
    pub fn write_within(k: &'k Kernel, parts: &[(Self, &[Var<'k, f32>])]) {
        let (Some((first, _)), Some((last, _))) = (parts.first(), parts.last()) else { return };
        let (params, plain) = (first.params, first.params.has(OutputFlags::PLAIN));
        k.if_(first.row.lt(params.rows), || {
            k.if_else(
                plain & (last.row + Self::MAP_TILE[0]).le(params.rows),
                || Self::write_plain(k, parts),
                || k.if_else(plain, || Self::write_by_lanes(k, parts), || Self::write_f32(k, parts)),
            );
        });
    }

    /// Stages the rows in BF16, from where the lanes store those that exist.
    fn write_by_lanes(k: &'k Kernel, parts: &[(Self, &[Var<'k, f32>])]) {
        let panels = |sums| (0u32..).zip(<[Var<'k, f32>]>::chunks(sums, ROW_BYTES as usize / 4));
        for (part, sums) in parts {
            for (panel, sums) in panels(sums) {
                part.stage_bf16(k, part.panel_bf16(panel).1, sums);
            }
        }
        k.sync_warp();
        for (part, sums) in parts {
            for (panel, sums) in panels(sums) {
                let (column, staged) = part.panel_bf16(panel);
                part.copy_bf16(k, column, staged, sums.len() as u32 / 4);
            }
        }
    }
}

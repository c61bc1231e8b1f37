//! Lanes of a warp: their number, and masks of them.

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A register in every lane.
pub(crate) type Row = [u64; LANES];

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane as usize)
    })
}

//! Convergence of a warp: which lanes are sure to be together.
//!
//! A branch that sends lanes different ways opens a region, which lanes leave where their ways come together again: at
//! the branch's immediate post-dominator (`decode::flow`), as compilers join them. Inside of it they may stay apart
//! for as long as they like, also where two ways meet by chance. An instruction that waits for all of them
//! (`bar.warp.sync`, a shuffle, a vote, `elect.sync`) closes the region as well. An `.aligned` instruction does not: it
//! *requires* a converged warp.

/// What is between a branch and the place where its lanes come together again.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// The lanes that the branch has separated, and those of them that are still on their way.
    lanes: u32,
    inside: u32,
    /// Where they come together; none where only a return ends the region.
    join: Option<u32>,
    /// How many calls deep.
    depth: u32,
    branch: u32,
}

/// The open regions of a warp; none while no branch has separated its lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Convergence {
    regions: Vec<Region>,
}

impl Convergence {
    /// These lanes go different ways at `branch`, and come together at `join`.
    pub(crate) fn diverge(&mut self, lanes: u32, branch: u32, join: Option<u32>, depth: usize) {
        let depth = depth as u32;
        // A loop opens its region once.
        match self.regions.iter_mut().find(|r| r.join == join && r.depth == depth && r.inside & lanes != 0) {
            Some(r) => {
                r.lanes |= lanes;
                r.inside |= lanes;
                r.branch = branch;
            }
            None => self.regions.push(Region { lanes, inside: lanes, join, depth, branch }),
        }
    }

    /// Whether no region is open.
    pub(crate) fn whole(&self) -> bool {
        self.regions.is_empty()
    }

    /// These lanes are at `pc`, so many calls deep.
    pub(crate) fn arrive(&mut self, lanes: u32, pc: u32, depth: usize) {
        let depth = depth as u32;
        for r in &mut self.regions {
            if depth < r.depth || depth == r.depth && r.join == Some(pc) {
                r.inside &= !lanes;
            }
        }
        self.regions.retain(|r| r.inside != 0);
    }

    /// An instruction has waited for all of these lanes.
    pub(crate) fn converge(&mut self, lanes: u32) {
        self.regions.retain(|r| r.lanes & !lanes != 0);
    }

    /// The branch since which some of these lanes may be diverged, if there is one.
    pub(crate) fn diverged_at(&self, lanes: u32) -> Option<u32> {
        self.regions.iter().filter(|r| r.inside & lanes != 0).map(|r| r.branch).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_ends_where_its_ways_come_together() {
        let mut c = Convergence::default();
        c.diverge(u32::MAX, 7, Some(20), 0);
        assert_eq!(c.diverged_at(u32::MAX), Some(7));
        c.arrive(1, 20, 1);
        assert_eq!(c.diverged_at(1), Some(7), "the same instruction of a deeper call is another place");
        c.arrive(1, 20, 0);
        assert_eq!((c.diverged_at(1), c.diverged_at(2)), (None, Some(7)));
        c.arrive(u32::MAX - 1, 20, 0);
        assert!(c.whole());
    }

    #[test]
    fn a_return_ends_what_the_function_opened() {
        let mut c = Convergence::default();
        c.diverge(0xff, 7, None, 1);
        c.arrive(0xf, 30, 1);
        assert_eq!(c.diverged_at(1), Some(7));
        c.arrive(0xff, 3, 0);
        assert!(c.whole());
    }

    #[test]
    fn a_wait_for_all_lanes_of_a_branch_ends_its_region() {
        let mut c = Convergence::default();
        c.diverge(u32::MAX, 3, None, 0);
        c.diverge(0xffff, 4, None, 0);
        c.converge(0xffff);
        assert_eq!(c.diverged_at(0xffff), Some(4), "the others are still apart from them");
        c.converge(u32::MAX);
        assert!(c.whole());
        c.diverge(u32::MAX, 3, None, 0);
        c.arrive(0xffff_0000, 9, 0);
        c.diverge(0xffff, 4, Some(8), 0);
        c.converge(0xffff);
        assert_eq!(c.diverged_at(0xffff), Some(3));
    }
}

//! Convergence of a warp: which lanes are sure to have reconverged.
//!
//! Lanes that a branch has made diverge may stay diverged for as long as they like: PTX promises nothing of where
//! they meet again. Only an instruction that waits for all of them (`bar.warp.sync`, a shuffle, a vote,
//! `elect.sync`) makes them converge. An `.aligned` instruction does not: it *requires* a converged warp. A
//! compiler usually joins the paths behind an `if`, so such a kernel works until the day it does not; under
//! [`Policy::Eager`](crate::Policy::Eager) lanes join where their paths meet, under the other schedules they do
//! not.

/// Lanes that have not diverged since they last converged.
#[derive(Clone, Copy, Debug)]
struct Part {
    lanes: u32,
    /// The branch at which they diverged from the others.
    branch: u32,
}

/// The parts of a warp; none while no branch has made it diverge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Convergence {
    parts: Vec<Part>,
}

impl Convergence {
    /// These lanes go another way than the rest at `branch`.
    pub(crate) fn diverge(&mut self, lanes: u32, branch: u32) {
        if self.parts.is_empty() {
            self.parts.push(Part { lanes: u32::MAX, branch });
        }
        for i in 0..self.parts.len() {
            let inside = self.parts[i].lanes & lanes;
            if inside != 0 && inside != self.parts[i].lanes {
                self.parts[i] = Part { lanes: self.parts[i].lanes & !lanes, branch };
                self.parts.push(Part { lanes: inside, branch });
            }
        }
    }

    /// An instruction has waited for all of these lanes.
    pub(crate) fn converge(&mut self, lanes: u32) {
        if self.parts.is_empty() || self.parts.iter().any(|p| lanes & !p.lanes == 0) {
            return;
        }
        let branch = self.parts.iter().find(|p| p.lanes & lanes != 0).map_or(0, |p| p.branch);
        self.parts.iter_mut().for_each(|p| p.lanes &= !lanes);
        self.parts.retain(|p| p.lanes != 0);
        self.parts.push(Part { lanes, branch });
        if self.parts.len() == 1 {
            self.parts.clear();
        }
    }

    /// The branch since which these lanes may be diverged, if there is one.
    pub(crate) fn diverged_at(&self, live: u32) -> Option<u32> {
        let mut parts = self.parts.iter().filter(|p| p.lanes & live != 0);
        let first = parts.next()?;
        parts.next().map(|other| first.branch.max(other.branch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_together_again_when_all_were_waited_for() {
        let mut c = Convergence::default();
        assert_eq!(c.diverged_at(u32::MAX), None);
        c.diverge(1, 7);
        assert_eq!(c.diverged_at(u32::MAX), Some(7));
        assert_eq!(c.diverged_at(u32::MAX - 1), None, "lane 0 has left");
        c.diverge(0xff00, 9);
        c.converge(0xff01);
        assert_eq!(c.diverged_at(0xff01), None);
        assert_eq!(c.diverged_at(u32::MAX), Some(9));
        c.converge(u32::MAX);
        assert_eq!(c.diverged_at(u32::MAX), None);
    }

    #[test]
    fn a_part_that_stays_whole_is_not_parted() {
        let mut c = Convergence::default();
        c.diverge(0xffff, 3);
        c.diverge(0xffff, 4);
        c.converge(0x00ff);
        assert_eq!(c.diverged_at(0xffff), None);
        assert_eq!(c.diverged_at(u32::MAX), Some(3));
    }
}

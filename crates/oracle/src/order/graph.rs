//! The moments of a run, and the paths between them.

use std::collections::HashMap;

pub(super) type Node = u32;

/// What an edge says: that one moment comes after another, or also that it sees what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Strength {
    /// A relaxed arrival or wait, or one whose scope does not include the other side.
    Later,
    /// A release and an acquire.
    Sees,
}

/// The moments of a run, with those before each.
#[derive(Default)]
pub(super) struct Graph {
    before: Vec<Vec<(Node, Strength)>>,
    /// The last step that added to a moment: never less than that of a moment before it.
    pub(super) time: Vec<u32>,
    seen: Vec<u32>,
    searches: u32,
    known: HashMap<(Node, Node, Strength), bool>,
}

impl Graph {
    pub(super) fn node(&mut self, time: usize) -> Node {
        self.before.push(Vec::new());
        self.time.push(time as u32);
        self.before.len() as u32 - 1
    }

    pub(super) fn edge(&mut self, from: Node, to: Node, strength: Strength, time: usize) {
        if self.before[to as usize].last() != Some(&(from, strength)) {
            self.before[to as usize].push((from, strength));
        }
        self.time[to as usize] = self.time[to as usize].max(time as u32);
    }

    /// Whether a path of at least this strength leads from one moment to another, by a search backward.
    pub(super) fn reaches(&mut self, from: Node, to: Node, least: Strength) -> bool {
        if from == to {
            return true;
        }
        if let Some(known) = self.known.get(&(from, to, least)) {
            return *known;
        }
        self.searches += 1;
        self.seen.resize(self.before.len(), 0);
        let mut open = vec![to];
        let mut found = false;
        while let Some(node) = open.pop() {
            if node == from {
                found = true;
                break;
            }
            for &(next, strength) in &self.before[node as usize] {
                let (seen, early) = (&mut self.seen[next as usize], self.time[next as usize]);
                if strength >= least && *seen != self.searches && early >= self.time[from as usize] {
                    *seen = self.searches;
                    open.push(next);
                }
            }
        }
        self.known.insert((from, to, least), found);
        found
    }
}

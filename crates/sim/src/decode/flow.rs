//! Where lanes that a branch separates come together again: the nearest instruction that all their ways pass, its
//! immediate post-dominator.
//!
//! Lanes that leave the kernel hold nobody back. A way that ends in `trap` or `exit` does not count, nor does a branch
//! of the entry to its `ret`, where there is another way to go.

use super::control::Flow;
use super::isa::Inst;
use std::ops::Range;

/// No instruction: the ways meet only behind the function, if at all.
const NOWHERE: u32 = u32::MAX;

/// Per instruction: where lanes that it separates come together again.
#[derive(Debug)]
pub(crate) struct Joins(Box<[u32]>);

impl Joins {
    /// The joins of all functions; the entry is the first.
    pub(super) fn of(code: &[Inst], functions: &[Range<u32>]) -> Joins {
        let mut joins = vec![NOWHERE; code.len()].into_boxed_slice();
        for (i, f) in functions.iter().enumerate() {
            Function { code, range: f.clone(), entry: i == 0 }.fill(&mut joins);
        }
        Joins(joins)
    }

    /// Where lanes that the instruction separates come together again, if that is in the same function.
    pub(crate) fn after(&self, pc: u32) -> Option<u32> {
        self.0.get(pc as usize).copied().filter(|join| *join != NOWHERE)
    }
}

struct Function<'a> {
    code: &'a [Inst],
    range: Range<u32>,
    entry: bool,
}

impl Function<'_> {
    /// Whether lanes that come here only leave the kernel.
    fn leaves(&self, pc: u32) -> bool {
        let inst = &self.code[pc as usize];
        let flow = inst.op.flow();
        inst.guard.is_none() && (matches!(flow, Flow::Exit) || self.entry && matches!(flow, Flow::Return))
    }

    /// The instructions that may follow the one at `pc`; none where the function ends there.
    fn followers(&self, pc: u32) -> Vec<u32> {
        let inst = &self.code[pc as usize];
        let mut to = match inst.op.flow() {
            Flow::Step => vec![pc + 1],
            Flow::Jump(targets) => targets.to_vec(),
            Flow::Return | Flow::Exit | Flow::Trap => Vec::new(),
        };
        if inst.guard.is_some() && !to.contains(&(pc + 1)) {
            to.push(pc + 1);
        }
        if to.iter().any(|pc| !self.leaves(*pc)) {
            to.retain(|pc| !self.leaves(*pc));
        }
        to
    }

    /// Whether the function may end at `pc`, with its lanes still running or, in the entry, gone.
    fn ends(&self, pc: u32) -> bool {
        let inst = &self.code[pc as usize];
        match inst.op.flow() {
            Flow::Return => !self.entry || inst.guard.is_none(),
            Flow::Exit => self.entry && inst.guard.is_none(),
            _ => false,
        }
    }

    /// Finds the immediate post-dominators of blocks: dominators of the graph backwards, from a node behind every end
    /// (Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm).
    fn fill(&self, joins: &mut [u32]) {
        let (first, len) = (self.range.start, self.range.len());
        let mut leader = vec![false; len];
        leader[0] = true;
        let branches: Vec<u32> = self
            .range
            .clone()
            .filter(|pc| {
                let inst = &self.code[*pc as usize];
                inst.guard.is_some() && !matches!(inst.op.flow(), Flow::Step)
                    || !matches!(inst.op.flow(), Flow::Step)
            })
            .collect();
        for &pc in &branches {
            let targets =
                if let Flow::Jump(targets) = self.code[pc as usize].op.flow() { targets } else { &[] };
            for to in targets.iter().copied().chain([pc + 1]).filter(|to| self.range.contains(to)) {
                leader[(to - first) as usize] = true;
            }
        }
        let starts: Vec<u32> = self.range.clone().filter(|pc| leader[(pc - first) as usize]).collect();
        let block_of = |pc: u32| starts.partition_point(|start| *start <= pc) - 1;
        let end = starts.len();
        let last = |block: usize| starts.get(block + 1).copied().unwrap_or(self.range.end) - 1;
        // Backwards: `from[b]` are the blocks before b, `to[b]` those behind it, `end` behind every end.
        let mut from = vec![Vec::new(); end + 1];
        let mut to = vec![Vec::new(); end + 1];
        for block in 0..end {
            let at = last(block);
            let mut next: Vec<usize> = self.followers(at).into_iter().map(block_of).collect();
            if self.ends(at) {
                next.push(end);
            }
            next.iter().for_each(|n| from[*n].push(block));
            to[block] = next;
        }
        // Reverse postorder from the end, along `from`.
        let (mut order, mut state) = (Vec::new(), vec![false; end + 1]);
        let mut stack = vec![(end, 0)];
        state[end] = true;
        while let Some((block, i)) = stack.pop() {
            match from[block].get(i) {
                Some(&before) => {
                    stack.push((block, i + 1));
                    if !std::mem::replace(&mut state[before], true) {
                        stack.push((before, 0));
                    }
                }
                None => order.push(block),
            }
        }
        let mut number = vec![0; end + 1];
        order.iter().enumerate().for_each(|(i, block)| number[*block] = i);
        let mut join: Vec<Option<usize>> = vec![None; end + 1];
        join[end] = Some(end);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().rev().filter(|block| **block != end) {
                let mut known = to[block].iter().copied().filter(|next| join[*next].is_some());
                let Some(mut new) = known.next() else { continue };
                for other in known {
                    let (mut a, mut b) = (new, other);
                    while a != b {
                        let up = if number[a] < number[b] { &mut a } else { &mut b };
                        *up = join[*up].unwrap_or(end);
                    }
                    new = a;
                }
                if join[block] != Some(new) {
                    join[block] = Some(new);
                    changed = true;
                }
            }
        }
        for pc in branches {
            let block = block_of(pc);
            if let Some(to) = join[block].filter(|to| *to != end) {
                joins[pc as usize] = starts[to];
            }
        }
    }
}

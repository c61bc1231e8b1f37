//! Tokens into a rank's own buffer: rows as they are, ids as i64, weights times a factor. A CTA has a token.
//!
//! Where something is wrong nothing is written: ranks no longer wait for each other, and one may still read the tokens of
//! the last call. Rows that another kernel quantizes into the buffer are listed for it: all of them, or none.

use oxigemm_ptx::{Kernel, U32};

use super::buffer::Buffer;
use super::pull::copy_row;
use super::{NONE, THREADS};
use crate::common::params::kernel_params;

/// Arguments of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Args {
    /// Address of this rank's buffer.
    pub own: u64,
    /// Address of the rows, or 0 where another kernel writes them to the buffer.
    pub x: u64,
    /// Bytes from a row to the next.
    pub x_pitch: u32,
    /// Bytes of a row: a multiple of 16.
    pub row_bytes: u32,
    /// Address of the ids: i64 where [`wide`](Self::wide) is 1, else i32.
    pub ids: u64,
    /// Whether ids are i64.
    pub wide: u32,
    /// Address of the weights.
    pub weights: u64,
    /// Choices of a token.
    pub top_k: u32,
    /// Factor of the weights.
    pub factor: f32,
    /// Where rows go.
    pub to_x: u64,
    /// Where ids go.
    pub to_ids: u64,
    /// Where weights go.
    pub to_weights: u64,
    /// Where the number of each token goes that may be written, or 0.
    pub to_rows: u64,
}

kernel_params! {
    struct Params from Args {
        own: Pointer = own,
        x: Pointer = x,
        x_pitch: U32 = x_pitch,
        row_bytes: U32 = row_bytes,
        ids: Pointer = ids,
        wide: U32 = wide,
        weights: Pointer = weights,
        top_k: U32 = top_k,
        factor: F32 = factor,
        to_x: Pointer = to_x,
        to_ids: Pointer = to_ids,
        to_weights: Pointer = to_weights,
        to_rows: Pointer = to_rows,
    }
}

pub(super) fn write(k: &Kernel) {
    let p = &Params::declare(k, "");
    let token = k.block_index(0);
    let may_publish = Buffer(p.own).may_publish();
    k.if_(p.to_rows.address().ne(0) & k.thread_index().eq(0), || {
        p.to_rows.at(token.widening_mul(4)).store(may_publish.select(token, NONE));
    });
    k.if_(may_publish, || publish(k, p, token));
}

fn publish<'k>(k: &'k Kernel, p: &Params<'k>, token: U32<'k>) {
    k.if_(p.x.address().ne(0), || {
        let (from, to) = (p.x.at(token.widening_mul(p.x_pitch)), p.to_x.at(token.widening_mul(p.row_bytes)));
        copy_row(k, k.constant(true), [from, to], p.row_bytes);
    });
    let first = token.widening_mul(p.top_k);
    k.for_(k.thread_index(), p.top_k, THREADS, |choice| {
        let at = first + choice.to_u64();
        let weight = p.weights.at(at * 4u64).load_readonly::<f32>();
        p.to_weights.at(at * 4u64).store(weight * p.factor);
        let (id, high) = (k.var(0u32), k.var(0u32));
        k.if_else(
            p.wide.ne(0),
            || {
                let [low, upper] = p.ids.at(at * 8u64).load_readonly_vec::<u32, 2>();
                id.set(low);
                high.set(upper);
            },
            || {
                let narrow = p.ids.at(at * 4u64).load_readonly::<u32>();
                id.set(narrow);
                high.set(narrow.ge(1 << 31).select(u32::MAX, 0));
            },
        );
        p.to_ids.at(at * 8u64).store_vec([id.get(), high.get()]);
    });
}

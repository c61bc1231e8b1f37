//! Control flow that the kernel executes. (A Rust `for` or `if` runs while the kernel is built: it unrolls.)

use crate::error::BuildErrorKind;
use crate::kernel::{Kernel, Label};
use crate::value::{Arg, Pred, U32};

impl Kernel {
    /// Runs `then` where the condition holds.
    #[track_caller]
    pub fn if_<'k>(&'k self, condition: Pred<'k>, then: impl FnOnce()) {
        match condition.as_constant() {
            Some(true) => return then(),
            Some(false) => return,
            None => {}
        }
        let end = self.label();
        self.branch_unless(condition, end);
        then();
        self.place(end);
    }

    /// Runs `then` where the condition holds, else `otherwise`.
    #[track_caller]
    pub fn if_else<'k>(&'k self, condition: Pred<'k>, then: impl FnOnce(), otherwise: impl FnOnce()) {
        match condition.as_constant() {
            Some(true) => return then(),
            Some(false) => return otherwise(),
            None => {}
        }
        let (other, end) = (self.label(), self.label());
        self.branch_unless(condition, other);
        then();
        self.branch(end);
        self.place(other);
        otherwise();
        self.place(end);
    }

    /// Repeats `body` while the condition holds; it is evaluated before each round.
    #[track_caller]
    pub fn while_<'k>(&'k self, condition: impl FnOnce() -> Pred<'k>, body: impl FnOnce()) {
        let (top, end) = (self.label(), self.label());
        self.place(top);
        let condition = condition();
        self.branch_unless(condition, end);
        body();
        self.branch(top);
        self.place(end);
    }

    /// Runs `body`, and again while the condition it returns holds.
    #[track_caller]
    pub fn do_while<'k>(&'k self, body: impl FnOnce() -> Pred<'k>) {
        let top = self.label();
        self.place(top);
        let condition = body();
        self.branch_if(condition, top);
    }

    /// Counts from `start` to `end` (exclusive) in steps of `step`.
    ///
    /// ```
    /// # use oxigemm_ptx::{Kernel, Target};
    /// let k = Kernel::new("count", Target::Sm90a);
    /// let blocks = k.param::<u32>("blocks");
    /// k.for_(0, blocks, 1, |block| {
    ///     let _offset = block * 128;
    /// });
    /// ```
    #[track_caller]
    pub fn for_<'k>(
        &'k self,
        start: impl Arg<'k, u32>,
        end: impl Arg<'k, u32>,
        step: impl Arg<'k, u32>,
        body: impl FnOnce(U32<'k>),
    ) {
        let (start, end, step) = (start.val(self), end.val(self), step.val(self));
        let i = self.var_from(start);
        self.while_(
            || i.live().lt(end),
            || {
                body(i.get());
                i.set(i.live() + step);
            },
        );
    }

    /// Leaves the kernel.
    #[track_caller]
    pub fn exit(&self) {
        self.op(format_args!("exit;"));
    }

    /// Stops the whole grid with an error.
    #[track_caller]
    pub fn trap(&self) {
        self.op(format_args!("trap;"));
    }

    #[track_caller]
    fn branch(&self, to: Label) {
        self.refuse_in_guard();
        self.op(format_args!("bra {to};"));
    }

    #[track_caller]
    pub(crate) fn branch_if(&self, condition: Pred<'_>, to: Label) {
        self.refuse_in_guard();
        let p = condition.operand();
        self.op(format_args!("@{p} bra {to};"));
    }

    #[track_caller]
    pub(crate) fn branch_unless(&self, condition: Pred<'_>, to: Label) {
        self.refuse_in_guard();
        let p = condition.operand();
        self.op(format_args!("@!{p} bra {to};"));
    }

    #[track_caller]
    fn refuse_in_guard(&self) {
        if self.is_guarded() {
            self.fail(BuildErrorKind::Operand("control flow inside a guard: use `if_`".into()));
        }
    }
}

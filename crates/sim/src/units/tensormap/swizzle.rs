//! Swizzles: how pieces of a box are permuted in shared memory.

/// How pieces of a box are permuted in shared memory: which piece, of 16 bytes where the name says nothing else, moves
/// within which span (PTX 5.5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Within 32 bytes.
    B32,
    /// Within 64 bytes.
    B64,
    /// Within 128 bytes.
    B128,
    /// Pieces of 32 bytes within 128.
    B128Atom32,
    /// The same; in every second line of 128 bytes the halves of every 16 bytes change places.
    B128Atom32Flip8,
    /// Pieces of 64 bytes within 128.
    B128Atom64,
}

impl Swizzle {
    /// Bytes of the span in which pieces move.
    pub fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 | Swizzle::B128Atom32 | Swizzle::B128Atom32Flip8 | Swizzle::B128Atom64 => 128,
        }
    }

    /// The place of the byte at shared address `address`: the number of its line of 128 bytes is added (xor) to the
    /// number of its piece.
    pub fn apply(self, address: u32) -> u32 {
        match self {
            Swizzle::None => address,
            Swizzle::B32 | Swizzle::B64 | Swizzle::B128 => address ^ (address >> 3 & (self.span() - 1) & !15),
            Swizzle::B128Atom32 => address ^ (address >> 2 & 0x60),
            Swizzle::B128Atom32Flip8 => address ^ (address >> 2 & 0x60) ^ (address >> 4 & 8),
            Swizzle::B128Atom64 => address ^ (address >> 1 & 0x40),
        }
    }

    /// The largest step at which neighbours stay neighbours, for all but [`Swizzle::None`].
    pub(crate) fn piece(self) -> u32 {
        if self == Swizzle::B128Atom32Flip8 { 8 } else { 16 }
    }

    /// Mode and atomicity as `tensormap.replace` numbers them.
    pub(super) fn numbers(self) -> (u8, u8) {
        match self {
            Swizzle::None => (0, 0),
            Swizzle::B32 => (1, 0),
            Swizzle::B64 => (2, 0),
            Swizzle::B128 => (3, 0),
            Swizzle::B128Atom32 => (3, 1),
            Swizzle::B128Atom32Flip8 => (3, 2),
            Swizzle::B128Atom64 => (3, 3),
        }
    }

    /// The swizzle of a mode and an atomicity, where they go together.
    pub(super) fn of_numbers(mode: u8, atomicity: u8) -> Option<Swizzle> {
        Some(match (mode, atomicity) {
            // Nothing moves, in pieces of whatever size.
            (0, _) => Swizzle::None,
            (1, 0) => Swizzle::B32,
            (2, 0) => Swizzle::B64,
            (3, 0) => Swizzle::B128,
            (3, 1) => Swizzle::B128Atom32,
            (3, 2) => Swizzle::B128Atom32Flip8,
            (3, 3) => Swizzle::B128Atom64,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Swizzle, u32); 6] = [
        (Swizzle::B32, 256),
        (Swizzle::B64, 512),
        (Swizzle::B128, 1024),
        (Swizzle::B128Atom32, 512),
        (Swizzle::B128Atom32Flip8, 512),
        (Swizzle::B128Atom64, 256),
    ];

    #[test]
    fn swizzles_permute_within_their_span() {
        for (swizzle, period) in ALL {
            let mut seen: Vec<u32> = (0..period).map(|a| swizzle.apply(a)).collect();
            assert!(seen.iter().enumerate().all(|(a, s)| a as u32 / swizzle.span() == s / swizzle.span()));
            seen.sort_unstable();
            assert_eq!(seen, (0..period).collect::<Vec<_>>());
            assert!(
                (0..period).all(|a| swizzle.apply(a + period) == swizzle.apply(a) + period),
                "{swizzle:?}"
            );
            let piece = swizzle.piece();
            let whole = |a: u32| swizzle.apply(a) == swizzle.apply(a / piece * piece) + a % piece;
            assert!((0..period).all(whole), "{swizzle:?}");
            let (mode, atomicity) = swizzle.numbers();
            assert_eq!(Swizzle::of_numbers(mode, atomicity), Some(swizzle));
        }
        assert_eq!(Swizzle::None.apply(0x3f0), 0x3f0);
        assert_eq!(Swizzle::of_numbers(2, 1), None);
        assert_eq!(Swizzle::of_numbers(4, 0), None);
    }

    /// The tables of PTX 5.5.7: which piece of 16 bytes stands at each place of a line.
    #[test]
    fn lines_are_those_of_the_manual() {
        let line = |swizzle: Swizzle, line: u32| -> [u32; 8] {
            let mut at = [0; 8];
            (0..8).for_each(|i| at[(swizzle.apply(line * 128 + 16 * i) % 128 / 16) as usize] = i);
            at
        };
        assert_eq!(line(Swizzle::B32, 1), [1, 0, 3, 2, 5, 4, 7, 6]);
        assert_eq!(line(Swizzle::B64, 2), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(line(Swizzle::B128, 5), [5, 4, 7, 6, 1, 0, 3, 2]);
        assert_eq!(line(Swizzle::B128Atom32, 1), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(line(Swizzle::B128Atom32, 2), [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(line(Swizzle::B128Atom32, 3), [6, 7, 4, 5, 2, 3, 0, 1]);
        assert_eq!(line(Swizzle::B128Atom32, 4), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(line(Swizzle::B128Atom64, 1), [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(line(Swizzle::B128Atom64, 2), [0, 1, 2, 3, 4, 5, 6, 7]);
        // The halves of 16 bytes change places in every second line.
        assert_eq!(Swizzle::B128Atom32Flip8.apply(0), 0);
        assert_eq!(Swizzle::B128Atom32Flip8.apply(128), 128 + 32 + 8);
        assert_eq!(Swizzle::B128Atom32Flip8.apply(136), 128 + 32);
        assert_eq!(Swizzle::B128Atom32Flip8.apply(256), 256 + 64);
    }
}

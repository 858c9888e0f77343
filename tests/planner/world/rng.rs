//! Numbers that look random and are the same for the same seed.

/// xorshift64*.
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }

    /// True in `percent` of cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Mostly short, sometimes long.
    pub(crate) fn delay(&mut self) -> u64 {
        match self.below(20) {
            0..10 => 0,
            10..16 => self.below(50),
            16..19 => self.below(3_000),
            _ => self.below(40_000),
        }
    }
}

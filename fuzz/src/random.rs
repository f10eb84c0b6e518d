//! Numbers that a seed fixes.

/// A generator of numbers: SplitMix64 (Steele, Lea & Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of a case of a target: the same whatever was drawn before.
    pub fn of_case(seed: u64, target: &str, case: u64) -> Self {
        // FNV-1a of the name.
        let name = target.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut random = Self(seed ^ name);
        Self(random.number() ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.number() % limit as u64) as usize }
    }

    /// Whether something happens that does so once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A number that readers stumble over: near 0, a power of two, or the ends of a type; else any.
    pub fn awkward(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(20) as u64,
            1 => (1_u64 << self.below(64)).wrapping_add(self.below(3) as u64).wrapping_sub(1),
            2 => {
                *self.pick(&[0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX])
            }
            _ => self.number(),
        }
    }
}

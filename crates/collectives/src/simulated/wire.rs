//! One direction of a rank's wire, and the times when it is occupied.

/// Times at which a wire is occupied. A message gets the free times from its arrival on, even before messages that asked earlier
/// but arrive later.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire {
    /// Start and end in nanoseconds, sorted and disjoint.
    occupied: Vec<(u64, u64)>,
}

/// The most intervals that are remembered.
const PIECES: usize = 64;

impl Wire {
    /// Occupies the wire for `length` in all, from `from` on wherever it is free; returns the end.
    pub(crate) fn occupy(&mut self, from: u64, length: u64) -> u64 {
        let (mut at, mut left) = (from, length);
        let mut end = from;
        let first = self.occupied.partition_point(|piece| piece.1 <= from);
        let mut taken = Vec::new();
        for piece in &self.occupied[first..] {
            if left == 0 {
                break;
            }
            let free = piece.0.saturating_sub(at).min(left);
            if free > 0 {
                taken.push((at, at.saturating_add(free)));
                (left, end) = (left - free, at.saturating_add(free));
            }
            at = at.max(piece.1);
        }
        if left > 0 {
            // A damaged message may claim a time far beyond all others.
            end = at.saturating_add(left);
            taken.push((at, end));
        }
        self.occupied.extend(taken);
        self.occupied.sort_unstable();
        self.occupied.dedup_by(|next, last| {
            let joined = next.0 <= last.1;
            if joined {
                last.1 = last.1.max(next.1);
            }
            joined
        });
        let old = self.occupied.len().saturating_sub(PIECES);
        self.occupied.drain(..old);
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_taken_and_nothing_twice() {
        let mut wire = Wire::default();
        assert_eq!(wire.occupy(100, 10), 110);
        assert_eq!(wire.occupy(100, 10), 120, "after the first");
        assert_eq!(wire.occupy(200, 50), 250);
        // 80 of it before the third, the rest after it.
        assert_eq!(wire.occupy(100, 100), 270);
        assert_eq!(wire.occupy(0, 5), 5, "long before");
        assert_eq!(wire.occupy(90, 20), 280, "10 before the first, and 10 at the end");
        assert_eq!(wire.occupy(300, 0), 300, "an empty message");
        assert_eq!(wire.occupied, [(0, 5), (90, 280)]);
    }

    #[test]
    fn however_messages_come_the_wire_carries_no_more_than_it_can() {
        let mut wire = Wire::default();
        let mut state = 7_u64;
        let mut draw = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut sum, mut last) = (0, 0);
        for _ in 0..PIECES {
            let (from, length) = (draw(1000), draw(50));
            let end = wire.occupy(from, length);
            assert!(end >= from + length);
            (sum, last) = (sum + length, last.max(end));
        }
        assert_eq!(wire.occupied.iter().map(|piece| piece.1 - piece.0).sum::<u64>(), sum);
        assert!(last >= sum, "all bytes end after as long as they take");
    }
}

//! Size classes: a floating-point rounding of sizes, and the bitmap of classes that have a free block.

/// A size class: sizes that share an exponent and the leading bits of their mantissa.
///
/// Classes are ordered as their sizes are: a larger class holds only larger sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(usize);

impl Class {
    /// The position of this class in a table of classes.
    pub(super) fn index(self) -> usize {
        self.0
    }

    /// The next larger class.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The next smaller class, if there is one.
    pub(super) fn previous(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// The rule that maps a size in units to its class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassRule {
    mantissa_bits: u32,
}

impl ClassRule {
    pub(super) const fn new(mantissa_bits: u32) -> Self {
        Self { mantissa_bits }
    }

    /// The class that `units` lies in: the largest whose smallest size is at most `units`.
    pub(super) fn floor(self, units: u64) -> Class {
        let mantissa_size = 1_u64 << self.mantissa_bits;
        if units < mantissa_size {
            return Class(to_index(units));
        }
        let shift = units.ilog2() - self.mantissa_bits;
        let mantissa = (units >> shift) & (mantissa_size - 1);
        Class(to_index((u64::from(shift) + 1) << self.mantissa_bits | mantissa))
    }

    /// The smallest class whose every size is at least `units`.
    pub(super) fn ceil(self, units: u64) -> Class {
        let class = self.floor(units);
        if self.smallest(class) == units {
            class
        } else {
            class.next()
        }
    }

    /// The smallest size in units of `class`, or `u64::MAX` if it does not fit in 64 bits.
    pub(super) fn smallest(self, class: Class) -> u64 {
        let index = class.0 as u64;
        let mantissa_size = 1_u64 << self.mantissa_bits;
        if index < mantissa_size {
            return index;
        }
        let shift = (index >> self.mantissa_bits) - 1;
        let size = u128::from(index & (mantissa_size - 1) | mantissa_size) << shift;
        u64::try_from(size).unwrap_or(u64::MAX)
    }

    /// The largest size in units of `class`.
    pub(super) fn largest(self, class: Class) -> u64 {
        self.smallest(class.next()) - 1
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a class index is below 64 exponents × 64 mantissas"
)]
fn to_index(class: u64) -> usize {
    class as usize
}

/// The set of classes that have a free block, searched by find-first-set in two levels.
#[derive(Clone, Debug)]
pub(super) struct ClassBitmap {
    /// Bit w is set when `words[w]` is not zero.
    summary: u64,
    words: Vec<u64>,
}

impl ClassBitmap {
    /// An empty set with room for `classes` classes.
    pub(super) fn new(classes: usize) -> Self {
        let words = classes.div_ceil(u64::BITS as usize);
        assert!(
            words <= u64::BITS as usize,
            "{classes} size classes need more than one summary word"
        );
        Self {
            summary: 0,
            words: vec![0; words],
        }
    }

    pub(super) fn insert(&mut self, class: Class) {
        self.words[class.0 / 64] |= 1 << (class.0 % 64);
        self.summary |= 1 << (class.0 / 64);
    }

    pub(super) fn remove(&mut self, class: Class) {
        let word = &mut self.words[class.0 / 64];
        *word &= !(1 << (class.0 % 64));
        if *word == 0 {
            self.summary &= !(1 << (class.0 / 64));
        }
    }

    pub(super) fn contains(&self, class: Class) -> bool {
        self.words
            .get(class.0 / 64)
            .is_some_and(|word| word >> (class.0 % 64) & 1 == 1)
    }

    /// The smallest member that is at least `from`.
    pub(super) fn first_at_least(&self, from: Class) -> Option<Class> {
        let word_index = from.0 / 64;
        let word = *self.words.get(word_index)? & (u64::MAX << (from.0 % 64));
        if word != 0 {
            return Some(Class(word_index * 64 + word.trailing_zeros() as usize));
        }
        // Bits above word_index; the shift is split because word_index may be 63.
        let words_above = self.summary & (u64::MAX << word_index << 1);
        if words_above == 0 {
            return None;
        }
        let word_index = words_above.trailing_zeros() as usize;
        Some(Class(
            word_index * 64 + self.words[word_index].trailing_zeros() as usize,
        ))
    }

    /// The largest member that is at most `to`.
    pub(super) fn last_at_most(&self, to: Class) -> Option<Class> {
        let (word_index, bit) = (to.0 / 64, to.0 % 64);
        let word = self.words.get(word_index)? & (u64::MAX >> (63 - bit));
        if word != 0 {
            return Some(Class(word_index * 64 + word.ilog2() as usize));
        }
        let words_below = self.summary & !(u64::MAX << word_index);
        let word_index = words_below.checked_ilog2()? as usize;
        Some(Class(word_index * 64 + self.words[word_index].ilog2() as usize))
    }

    /// The largest member.
    pub(super) fn last(&self) -> Option<Class> {
        let word_index = self.summary.checked_ilog2()? as usize;
        Some(Class(word_index * 64 + self.words[word_index].ilog2() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{CLASS_MANTISSA_BITS, PEER_CLASS_MANTISSA_BITS};

    /// Sizes around every power of two and every class boundary near it, up to the largest.
    fn interesting_sizes() -> impl Iterator<Item = u64> {
        let near = |size: u64| [size.saturating_sub(1), size, size.saturating_add(1)];
        (0..64).flat_map(move |bit| (0..16).flat_map(move |part| near((1_u64 << bit) + ((1_u64 << bit) / 16) * part)))
    }

    #[test]
    fn every_size_lies_between_the_bounds_of_its_class() {
        for rule in [
            ClassRule::new(CLASS_MANTISSA_BITS),
            ClassRule::new(PEER_CLASS_MANTISSA_BITS),
        ] {
            for units in interesting_sizes() {
                let class = rule.floor(units);
                assert!(
                    rule.smallest(class) <= units && units <= rule.largest(class).max(units),
                    "{units}"
                );
                assert!(
                    rule.smallest(class.next()) > units || rule.smallest(class.next()) == u64::MAX,
                    "{units}"
                );
                let ceil = rule.ceil(units);
                assert!(rule.smallest(ceil) >= units, "{units}");
                assert!(ceil == class || ceil == class.next(), "{units}");
            }
        }
    }

    #[test]
    fn a_class_of_three_mantissa_bits_wastes_an_eighth_at_most() {
        let rule = ClassRule::new(PEER_CLASS_MANTISSA_BITS);
        assert_eq!(rule.smallest(rule.ceil(3_274_752)), 3_407_872);
        assert_eq!(rule.smallest(rule.ceil(658_432)), 720_896);
    }

    #[test]
    fn the_bitmap_finds_the_neighbours_of_any_class() {
        let mut bitmap = ClassBitmap::new(64 * 64);
        assert_eq!(bitmap.first_at_least(Class(0)), None);
        assert_eq!(bitmap.last(), None);
        let members = [3, 64, 65, 700, 4095].map(Class);
        members.iter().for_each(|&class| bitmap.insert(class));
        for from in 0..64 * 64 {
            let expected = members.iter().copied().find(|class| class.0 >= from);
            assert_eq!(bitmap.first_at_least(Class(from)), expected, "from {from}");
            let expected = members.iter().copied().rfind(|class| class.0 <= from);
            assert_eq!(bitmap.last_at_most(Class(from)), expected, "to {from}");
        }
        assert_eq!(bitmap.last(), Some(Class(4095)));
        bitmap.remove(Class(4095));
        assert_eq!(bitmap.last(), Some(Class(700)));
        assert_eq!(bitmap.first_at_least(Class(701)), None);
        assert!(bitmap.contains(Class(65)) && !bitmap.contains(Class(66)));
    }
}

//! Folding long ranges for their checksum, straight from memory that others may write.
//!
//! A checksum is the rest of a division of polynomials, so bytes may be replaced by fewer with the same rest. Blocks are
//! multiplied into the one that follows until one is left, which is private and goes through the ordinary checksum. Each
//! byte is read once, by address: no reference is made, and bytes that change meanwhile give some checksum, no more.

/// Bytes of one block.
pub(super) const BLOCK_BYTES: usize = 256;

/// Bytes with the same checksum from state zero on as `count` blocks at `from` have from `state` on. `None` if this
/// processor cannot, or there are no blocks.
///
/// # Safety
/// `count` blocks at `from` are mapped and readable during the call. Others may write them.
pub(super) unsafe fn fold(from: *const u8, count: usize, state: u64) -> Option<[u8; BLOCK_BYTES]> {
    #[cfg(target_arch = "x86_64")]
    if count > 0 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
        // SAFETY: the processor has what the function needs (just asked); the bytes are as the caller promised.
        return Some(unsafe { wide::fold(from, count, state) });
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, count, state);
    None
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m512i, _mm512_clmulepi64_epi128, _mm512_loadu_si512, _mm512_set_epi64, _mm512_storeu_si512,
        _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };
    use std::array::from_fn;

    use super::BLOCK_BYTES;
    use crate::checksum::power;

    const LANES: usize = BLOCK_BYTES / size_of::<__m512i>();
    /// Distance that one step multiplies over.
    const BLOCK_BITS: u64 = 8 * BLOCK_BYTES as u64;
    /// Factors for the halves of 128 bits. The first eight bytes are the higher powers. In bits that run from high
    /// powers to low ones, a product of two words of 64 stands one place too high: that is one power less.
    const FIRST_HALF: u64 = power(BLOCK_BITS + 64 - 1);
    const SECOND_HALF: u64 = power(BLOCK_BITS - 1);
    /// Truth table of an exclusive or of three.
    const XOR3: i32 = 0x96;

    /// # Safety
    /// As for [`super::fold`], and `count` is not zero.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) unsafe fn fold(from: *const u8, count: usize, state: u64) -> [u8; BLOCK_BYTES] {
        let [first, second, state] = [FIRST_HALF, SECOND_HALF, state].map(u64::cast_signed);
        let factors = _mm512_set_epi64(second, first, second, first, second, first, second, first);
        let load = |block: usize, lane: usize| {
            let at = from.wrapping_add(block * BLOCK_BYTES + lane * size_of::<__m512i>());
            // SAFETY: inside the blocks that the caller promised; loads of this kind need no alignment.
            unsafe { _mm512_loadu_si512(at.cast()) }
        };
        let mut folded: [__m512i; LANES] = from_fn(|lane| load(0, lane));
        folded[0] = _mm512_xor_si512(folded[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, state));
        for block in 1..count {
            for (lane, folded) in folded.iter_mut().enumerate() {
                let first = _mm512_clmulepi64_epi128(*folded, factors, 0x00);
                let second = _mm512_clmulepi64_epi128(*folded, factors, 0x11);
                *folded = _mm512_ternarylogic_epi64(first, second, load(block, lane), XOR3);
            }
        }
        let mut bytes = [0; BLOCK_BYTES];
        for (lane, to) in folded.iter().zip(bytes.as_chunks_mut::<{ size_of::<__m512i>() }>().0) {
            // SAFETY: `to` has the 64 bytes that are written; stores of this kind need no alignment.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *lane) };
        }
        bytes
    }
}

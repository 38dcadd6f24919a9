//! Random numbers.

use std::hash::{BuildHasher, RandomState};

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
pub fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What SplitMix64 adds for the next number.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// 32 digits that nobody can guess: hashes under the keys that the system's random source gives each process.
pub fn secret() -> String {
    let digits = |i: u8| format!("{:016x}", RandomState::new().hash_one(i));
    digits(0) + &digits(1)
}

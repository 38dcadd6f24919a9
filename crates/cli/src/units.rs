//! Numbers for people. Used by everything here that prints a size.
//!
//! Files and traffic are counted in powers of 1000, as downloads and bandwidths are; memory, and llama-bench's columns,
//! in powers of 1024.

pub use octet_hub::size as decimal;

/// `19.71 GiB`, as llama-bench has it.
pub fn binary(bytes: u64) -> String {
    let mib = bytes as f64 / (1u64 << 20) as f64;
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.2} MiB") }
}

/// `34.66 B`, as llama-bench has it.
pub fn parameters(n: u64) -> String {
    if n >= 1_000_000_000 { format!("{:.2} B", n as f64 / 1e9) } else { format!("{:.2} M", n as f64 / 1e6) }
}

/// `1 file`, `2 files`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_llama_bench() {
        assert_eq!(binary(21_166_757_888), "19.71 GiB");
        assert_eq!(binary(98_362_432), "93.81 MiB");
        assert_eq!(parameters(34_660_610_688), "34.66 B");
        assert_eq!(parameters(134_515_008), "134.52 M");
        assert_eq!(decimal(98_362_432), "98.4 MB");
    }
}

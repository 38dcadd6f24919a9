//! Formats numbers with units. Used by all output of this crate.

/// `19.71 GiB`: sizes of files, downloads and memory, as in llama-bench.
pub fn size(bytes: u64) -> String {
    humansize::format_size(bytes, humansize::BINARY)
}

/// `34.66 B`, as in llama-bench.
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
        assert_eq!(size(21_166_757_888), "19.71 GiB");
        assert_eq!(size(98_362_432), "93.81 MiB");
        assert_eq!([0, 999, 1024, 3 << 29].map(size), ["0 B", "999 B", "1 KiB", "1.50 GiB"]);
        assert_eq!(parameters(34_660_610_688), "34.66 B");
        assert_eq!(parameters(134_515_008), "134.52 M");
    }
}

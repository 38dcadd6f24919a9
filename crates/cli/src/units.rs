//! Numbers with units: formats them for all output, and parses sizes given to flags.

/// `19.71 GiB`: sizes of files, downloads and memory, as in llama-bench.
pub fn size(bytes: u64) -> String {
    humansize::format_size(bytes, humansize::BINARY)
}

/// A size given to a flag: `24GiB`, `512M`, `1.5GB`. Units are powers of 1024, also `MB` and `GB`; a plain number has the unit `plain`.
fn parse(text: &str, plain: &str) -> Result<u64, String> {
    let text = text.trim();
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let with_unit = if is_plain { format!("{text}{plain}") } else { text.to_string() };
    octet_config::units::size(&with_unit)
        .ok_or_else(|| format!("expected a size like 24GiB or 512MiB, got '{text}'"))
}

/// A size; a plain number is bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    parse(text, "")
}

/// A size; a plain number is MiB, as in llama.cpp's `--cache-ram`.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    parse(text, "M")
}

/// A size of at least one byte; a plain number is GiB.
pub fn gibibytes(text: &str) -> Result<u64, String> {
    at_least_one(parse(text, "G")?)
}

/// A memory limit. A plain number is bytes; one below 1 MiB was meant to have a unit.
pub fn memory_limit(text: &str) -> Result<u64, String> {
    match at_least_one(bytes(text)?)? {
        n if n < 1 << 20 && !text.contains(char::is_alphabetic) => Err("give a unit: 24GiB or 512MiB".into()),
        n => Ok(n),
    }
}

/// A size of at least one byte; a plain number is bytes.
pub fn nonzero_bytes(text: &str) -> Result<u64, String> {
    at_least_one(bytes(text)?)
}

fn at_least_one(bytes: u64) -> Result<u64, String> {
    if bytes == 0 { Err("expected at least one byte".into()) } else { Ok(bytes) }
}

/// `34.66 B`, as in llama-bench.
pub fn parameters(n: u64) -> String {
    if n >= 1_000_000_000 { format!("{:.2} B", n as f64 / 1e9) } else { format!("{:.2} M", n as f64 / 1e6) }
}

/// Tokens per second with two significant digits, as it is an estimate.
pub fn tokens(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
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

    #[test]
    fn sizes_of_flags() {
        assert_eq!((bytes("7"), bytes("500K"), bytes(" 32 MiB ")), (Ok(7), Ok(500 << 10), Ok(32 << 20)));
        assert_eq!((mebibytes("2048"), mebibytes("2GiB"), mebibytes("0")), (Ok(2 << 30), Ok(2 << 30), Ok(0)));
        assert_eq!(
            (gibibytes("16"), gibibytes("7.5GiB"), gibibytes("512M")),
            (Ok(16 << 30), Ok(15 << 29), Ok(512 << 20))
        );
        // One meaning of GB for all flags.
        assert_eq!(
            (gibibytes("24GB"), bytes("24GB"), mebibytes("24G")),
            (Ok(24 << 30), Ok(24 << 30), Ok(24 << 30))
        );
        assert_eq!((memory_limit("300MB"), memory_limit("26000000000")), (Ok(300 << 20), Ok(26_000_000_000)));
        assert!(memory_limit("1.5").unwrap_err().contains("give a unit"));
        for wrong in ["", "x", "5X", "-1", "1e30", "9999999999T", "1.2.3", "nan"] {
            assert!(bytes(wrong).is_err() && gibibytes(wrong).is_err(), "{wrong}");
        }
        for zero in ["0", "0GiB", "0.0"] {
            assert!(
                gibibytes(zero).is_err() && nonzero_bytes(zero).is_err() && memory_limit(zero).is_err(),
                "{zero}"
            );
        }
    }
}

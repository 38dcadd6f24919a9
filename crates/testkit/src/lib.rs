//! Test support: reference data next to the checkout (`../shared`), and golden vectors in it.
//!
//! A user's checkout has no such folder: a test that needs it reports that and passes. If `CI` is set, the folder must exist.

mod postgres;

pub use postgres::Postgres;

use std::io::Write;
use std::path::PathBuf;

/// An address where nothing listens: the port of a rare service, outside the range that the system assigns.
pub const NOBODY: &str = "http://127.0.0.1:9";

/// Reports why a test is skipped. Not with `eprintln!`: the test harness hides that if a test passes.
pub fn skipped(why: &str) {
    // A closed standard error is no reason to fail.
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// Number of the Vulkan device for tests: the variable `OCTET_TEST_VULKAN`, 0 in CI, or `None` (reported on standard error) if it is not
/// set. On a machine without a card, Mesa's software device is number 0 (Debian: `mesa-vulkan-drivers`).
///
/// # Panics
/// When the variable is not a number.
pub fn vulkan_device() -> Option<usize> {
    match std::env::var("OCTET_TEST_VULKAN") {
        Ok(index) => Some(index.parse().expect("OCTET_TEST_VULKAN is a device's number")),
        Err(_) if is_ci() => Some(0),
        Err(_) => {
            skipped("needs a Vulkan device, which OCTET_TEST_VULKAN does not name");
            None
        }
    }
}

/// Default Vulkan device of the tests' models: the variable `OCTET_TEST_DEVICE_VULKAN`, or `None` without the variable: the
/// processor.
///
/// # Panics
/// When the variable is not a number.
pub fn models_on_vulkan() -> Option<usize> {
    let index = std::env::var("OCTET_TEST_DEVICE_VULKAN").ok()?;
    Some(index.parse().expect("OCTET_TEST_DEVICE_VULKAN is a device's number"))
}

/// Path of `name` in the reference data, or `None` (reported on standard error) without the data.
///
/// # Panics
/// If `CI` is set and the reference data is missing: CI runs everything.
pub fn shared(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("OCTET_SHARED").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(3)
            .expect("a crate lies in crates/")
            .join("shared")
    });
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(!is_ci(), "reference data {} is missing, and CI needs it", path.display());
    skipped(&format!("needs the reference data {name}, which this checkout does not have beside it"));
    None
}

/// A real model's file, from the variable `OCTET_TEST_` and the model's name in capitals (`OCTET_TEST_SMOLLM2`), or `None`
/// (reported on standard error) if it is not set.
///
/// # Panics
/// When `CI` is set and the variable is not, or names no file.
pub fn model(name: &str) -> Option<PathBuf> {
    let variable = format!("OCTET_TEST_{}", name.to_uppercase());
    let path = std::env::var_os(&variable).map(PathBuf::from);
    match &path {
        Some(path) => assert!(path.is_file(), "{variable}: there is no file {}", path.display()),
        None => {
            assert!(!is_ci(), "{variable} is not set, and CI needs the model {name}");
            skipped(&format!("needs the model {name}; set {variable} to its file"));
        }
    }
    path
}

/// Bytes of this process in memory.
///
/// # Panics
/// Where `/proc` does not say it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a Linux system");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("the process has memory");
    1024 * line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number")
}

/// Width, height, and red, green and blue bytes of a PNG file of 8 bits a channel. What is transparent is over
/// white.
///
/// # Panics
/// If it is none.
pub fn png(path: &std::path::Path) -> (usize, usize, Vec<u8>) {
    let file = std::io::BufReader::new(std::fs::File::open(path).expect("an image"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG file");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut bytes).expect("a frame");
    assert_eq!(info.bit_depth, png::BitDepth::Eight, "{}", path.display());
    let channels = info.color_type.samples();
    let pixels = bytes[..info.buffer_size()].chunks_exact(channels);
    let rgb = pixels.flat_map(|p| {
        let rgb = if channels < 3 { [p[0]; 3] } else { [p[0], p[1], p[2]] };
        let alpha = if channels.is_multiple_of(2) { u32::from(p[channels - 1]) } else { 255 };
        rgb.map(|v| ((255 * (255 - alpha) + u32::from(v) * alpha + 127) / 255) as u8)
    });
    let rgb = rgb.collect();
    (info.width as usize, info.height as usize, rgb)
}

/// Golden vectors from one safetensors file.
pub struct Golden(Vec<u8>);

impl Golden {
    /// Opens `name` of the reference data.
    pub fn open(name: &str) -> Option<Self> {
        shared(name).map(|p| Self::at(&p))
    }

    /// Opens a file.
    ///
    /// # Panics
    /// If there is none.
    pub fn at(path: &std::path::Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn view<R>(&self, key: &str, f: impl FnOnce(safetensors::tensor::TensorView<'_>) -> R) -> Option<R> {
        let st = safetensors::SafeTensors::deserialize(&self.0).expect("a golden file is well-formed");
        st.tensor(key).ok().map(f)
    }

    /// Names of all vectors.
    pub fn keys(&self) -> Vec<String> {
        let st = safetensors::SafeTensors::deserialize(&self.0).expect("a golden file is well-formed");
        st.names().into_iter().map(str::to_string).collect()
    }

    /// Shape of `key`.
    pub fn shape(&self, key: &str) -> Option<Vec<usize>> {
        self.view(key, |t| t.shape().to_vec())
    }

    /// f32 values of `key`.
    pub fn f32(&self, key: &str) -> Option<Vec<f32>> {
        self.view(key, |t| {
            assert_eq!(t.dtype(), safetensors::Dtype::F32, "{key}");
            t.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
        })
    }

    /// i32 values of `key` as token ids or indices.
    pub fn ids(&self, key: &str) -> Option<Vec<u32>> {
        self.view(key, |t| {
            assert_eq!(t.dtype(), safetensors::Dtype::I32, "{key}");
            t.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
        })
    }

    /// Raw bytes of `key`.
    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.view(key, |t| t.data().to_vec())
    }
}

/// Largest absolute difference of two equally long slices; NaN counts as infinite.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

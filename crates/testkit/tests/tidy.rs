//! The rules of STYLE.md and ARCHITECTURE.md that a machine can check.

use std::path::{Path, PathBuf};

/// Longest source file.
const MAX_LINES: usize = 600;

/// Source files that may hold `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/engine/compute/examples/one_group.rs",
    "crates/engine/compute/src/cpu/activations.rs",
    "crates/engine/compute/src/cpu/attend.rs",
    "crates/engine/compute/src/cpu/backend.rs",
    "crates/engine/compute/src/cpu/bandwidth.rs",
    "crates/engine/compute/src/cpu/delta.rs",
    "crates/engine/compute/src/cpu/device.rs",
    "crates/engine/compute/src/cpu/glu.rs",
    "crates/engine/compute/src/cpu/huge.rs",
    "crates/engine/compute/src/cpu/kernels/avx2.rs",
    "crates/engine/compute/src/cpu/kernels/avx512.rs",
    "crates/engine/compute/src/cpu/kernels/avx_vnni.rs",
    "crates/engine/compute/src/cpu/kernels/call.rs",
    "crates/engine/compute/src/cpu/kernels/floats.rs",
    "crates/engine/compute/src/cpu/kernels/ints.rs",
    "crates/engine/compute/src/cpu/kernels/kinds.rs",
    "crates/engine/compute/src/cpu/kernels/lanes.rs",
    "crates/engine/compute/src/cpu/kernels/mod.rs",
    "crates/engine/compute/src/cpu/kernels/neon.rs",
    "crates/engine/compute/src/cpu/kernels/portable.rs",
    "crates/engine/compute/src/cpu/kernels/tests.rs",
    "crates/engine/compute/src/cpu/linear.rs",
    "crates/engine/compute/src/cpu/map.rs",
    "crates/engine/compute/src/cpu/memory.rs",
    "crates/engine/compute/src/cpu/moe.rs",
    "crates/engine/compute/src/cpu/pack/mod.rs",
    "crates/engine/compute/src/cpu/recurrent.rs",
    "crates/engine/compute/src/cpu/rows.rs",
    "crates/engine/compute/src/cpu/speed.rs",
    "crates/engine/compute/src/cpu/store/readers.rs",
    "crates/engine/compute/src/cpu/team.rs",
    "crates/engine/compute/src/cpu/vector/attention.rs",
    "crates/engine/compute/src/cpu/vector/conv.rs",
    "crates/engine/compute/src/cpu/vector/gdn.rs",
    "crates/engine/compute/src/cpu/vector/kv_rows.rs",
    "crates/engine/compute/src/cpu/vector/mod.rs",
    "crates/engine/compute/src/cpu/vector/rows.rs",
    "crates/engine/compute/src/cpu/vector/simd/avx2.rs",
    "crates/engine/compute/src/cpu/vector/simd/avx512.rs",
    "crates/engine/compute/src/cpu/vector/simd/mod.rs",
    "crates/engine/compute/src/cpu/vector/simd/neon.rs",
    "crates/engine/compute/src/cpu/vector/simd/portable.rs",
    "crates/engine/compute/src/cpu/vector/tests/attention.rs",
    "crates/engine/compute/src/cpu/vector/tests/gdn.rs",
    "crates/engine/compute/src/cpu/vector/tests/golden.rs",
    "crates/engine/compute/src/cpu/vector/tests/rows.rs",
    "crates/engine/engine/tests/alloc.rs",
    "crates/engine/engine/tests/sampler_alloc.rs",
    "crates/engine/quantize/src/encode.rs",
    "crates/engine/vulkan/src/device.rs",
    "crates/engine/vulkan/src/memory.rs",
    "crates/engine/vulkan/src/pipeline.rs",
    "crates/engine/vulkan/src/record.rs",
    "crates/engine/vulkan/src/timer.rs",
    "crates/engine/weights/src/lost_pages.rs",
    "crates/engine/weights/src/map.rs",
    "crates/engine/weights/tests/alloc.rs",
];

/// Which of our crates each crate may depend on (tests aside).
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("weights", &[]),
    ("machine", &[]),
    ("compute", &["weights"]),
    ("engine", &["weights", "compute"]),
    ("vulkan", &["weights", "compute"]),
    ("api", &[]),
    ("synth", &["weights"]),
    ("quantize", &["weights"]),
    ("router", &["api", "config", "upstream"]),
    ("upstream", &["api", "config", "tls"]),
    ("hub", &["tls"]),
    ("images", &[]),
    ("parser", &[]),
    ("keys", &["tls"]),
    ("mcp", &["tls"]),
    ("conversations", &[]),
    ("process", &["config"]),
    ("grammar", &["parser"]),
    ("config", &[]),
    ("cache", &["config"]),
    ("callbacks", &["config", "upstream"]),
    (
        "serve",
        &[
            "weights",
            "machine",
            "compute",
            "engine",
            "api",
            "grammar",
            "parser",
            "config",
            "router",
            "upstream",
            "keys",
            "process",
            "cache",
            "callbacks",
            "mcp",
            "conversations",
            "images",
        ],
    ),
    (
        "cli",
        &[
            "weights",
            "machine",
            "compute",
            "engine",
            "vulkan",
            "synth",
            "quantize",
            "hub",
            "images",
            "keys",
            "parser",
            "api",
            "serve",
            "config",
            "router",
            "mcp",
            "conversations",
            "tls",
        ],
    ),
    ("testkit", &[]),
    ("tls", &[]),
];

/// Files that may read the environment (tests aside).
const ENVIRONMENT_ALLOWED: &[&str] = &["crates/cli/src/settings.rs", "crates/testkit/src/lib.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a crate lies in crates/").to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("a folder can be listed").path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn each_source(mut check: impl FnMut(&str, &str)) {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 20, "the sources are where this test looks for them");
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
        check(&name, &text);
    }
}

#[test]
fn files_are_short_and_say_what_they_are() {
    each_source(|name, text| {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines; a file is one concept, at most {MAX_LINES}");
        assert!(text.starts_with("//!"), "{name}: the first line says what the file is and who calls it");
    });
}

/// Tests of a crate are one program, as far as they can be: to link each file by itself takes longer than to run it.
#[test]
fn test_programs_hold_all_their_files() {
    each_source(|name, text| {
        let Some(folder) = name.strip_suffix("/main.rs").filter(|f| f.contains("/tests/")) else { return };
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder with main.rs") {
            let path = entry.expect("a folder can be listed").path();
            let module = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let is_source = path.is_dir() || path.extension().is_some_and(|e| e == "rs");
            let held = module == "main" || text.contains(&format!("mod {module};\n"));
            assert!(held || !is_source, "{name} has no 'mod {module};': its tests would never run");
        }
    });
}

#[test]
fn unsafe_code_stays_where_it_is_expected() {
    let mut found = Vec::new();
    each_source(|name, text| {
        let code = text.lines().map(|l| l.split("//").next().unwrap_or(""));
        let has = code
            .into_iter()
            .any(|l| l.split(|c: char| !c.is_alphanumeric() && !"_-".contains(c)).any(|w| w == "unsafe"));
        if has && !name.ends_with("tests/tidy.rs") {
            assert!(
                UNSAFE_ALLOWED.contains(&name),
                "{name} holds unsafe code; it may stand in {UNSAFE_ALLOWED:?}"
            );
            found.push(name.to_string());
        }
    });
    let idle = UNSAFE_ALLOWED.iter().find(|f| !found.iter().any(|n| n == *f));
    assert!(idle.is_none(), "{idle:?} holds no unsafe code and needs no permission to");
}

#[test]
fn the_environment_is_read_in_one_place() {
    each_source(|name, text| {
        let reads = text.contains("env::var") || text.contains("env::vars");
        let allowed = ENVIRONMENT_ALLOWED.iter().any(|a| name.starts_with(a))
            || name.contains("/tests/")
            || name.contains("/examples/");
        let doc = text.lines().filter(|l| l.contains("env::var")).all(|l| l.trim_start().starts_with("//"));
        assert!(!reads || allowed || doc, "{name} reads the environment; pass the setting down instead");
    });
}

#[test]
fn crates_depend_on_each_other_in_one_direction() {
    let mut crates = Vec::new();
    for folder in ["crates", "crates/engine", "crates/server", "crates/router"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder of crates");
        crates.extend(entries.map(|e| e.expect("a folder can be listed").path()));
    }
    crates.retain(|path| path.join("Cargo.toml").exists());
    assert_eq!(crates.len(), DEPENDENCIES.len(), "crates on disk against this test's table: {crates:?}");
    for path in crates {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let Some((_, allowed)) = DEPENDENCIES.iter().find(|(n, _)| *n == name) else {
            panic!("{} is not in this test's table of dependencies", path.display());
        };
        let manifest = std::fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
        let section = manifest.split("[dependencies]").nth(1).unwrap_or("").split("\n[").next().unwrap_or("");
        for line in section.lines() {
            let Some(dep) = line.strip_prefix("octet-") else { continue };
            let dep: String = dep.chars().take_while(|c| c.is_alphanumeric()).collect();
            assert!(allowed.contains(&dep.as_str()), "crates/{name} depends on {dep}; allowed: {allowed:?}");
        }
    }
}

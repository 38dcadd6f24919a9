//! Scaling of the rotary embedding against transformers' numbers, and which of a file's keys are used.

use crate::common::{Run, exact_backends, limits, load};
use octet_engine::models::config::Config;
use octet_engine::models::plan::RopeTable;
use octet_synth::{Mix, tiny};
use octet_weights::{GgmlType, Model, Value};

fn file(keys: &[(&str, Value)]) -> Model {
    let mut file = tiny("mixtral", Mix::Of(GgmlType::F32)).expect("a tiny model can be made");
    for (key, value) in keys {
        file.metadata.insert(&format!("llama.{key}"), value.clone());
    }
    file
}

fn rope(keys: &[(&str, Value)]) -> Result<RopeTable, String> {
    Config::read(&file(keys)).map(|c| c.plan.ropes[0].clone()).map_err(|e| e.to_string())
}

fn text(s: &str) -> Value {
    Value::Str(s.into())
}

/// Head of `dims` dimensions, all rotated.
fn head(dims: u64, theta: f64) -> Vec<(&'static str, Value)> {
    vec![
        ("attention.key_length", Value::U64(dims)),
        ("attention.value_length", Value::U64(dims)),
        ("rope.dimension_count", Value::U64(dims)),
        ("rope.freq_base", Value::F64(theta)),
    ]
}

/// Dimensions of a head, the base, the file's keys, the frequencies and what attention is multiplied by.
type Case<'a> = (u64, f64, &'a [(&'a str, Value)], &'a [f32], f32);

/// What `_compute_yarn_parameters` of transformers 4.57.1 returns.
#[test]
fn yarn_is_transformers() {
    let cases: [Case; 3] = [
        (
            32,
            1e6,
            &[
                ("rope.scaling.factor", Value::F64(4.0)),
                ("rope.scaling.original_context_length", Value::U64(32768)),
            ],
            &[
                1.0,
                0.4216965,
                0.1778279,
                0.07498942,
                0.03162278,
                0.01333521,
                0.004779901,
                0.001659962,
                0.00055,
                0.0001686786,
                4.445699e-05,
                1.874736e-05,
                7.905694e-06,
                3.333804e-06,
                1.405853e-06,
                5.928434e-07,
            ],
            1.138_629_4,
        ),
        // Where no original length is stated it is the context's.
        (
            16,
            1e7,
            &[("rope.scaling.factor", Value::F64(4.0)), ("context_length", Value::U64(262_144))],
            &[
                1.0,
                0.1333521,
                0.01778279,
                0.002371374,
                0.0002371708,
                2.108483e-05,
                1.405853e-06,
                1.874736e-07,
            ],
            1.138_629_4,
        ),
        (
            32,
            1e4,
            &[
                ("rope.scaling.factor", Value::F64(16.0)),
                ("rope.scaling.original_context_length", Value::U64(2048)),
                ("rope.scaling.yarn_beta_fast", Value::F64(16.0)),
                ("rope.scaling.yarn_beta_slow", Value::F64(2.0)),
                ("rope.scaling.attn_factor", Value::F64(1.5 / (1.0 + 0.1 * 16f64.ln()))),
            ],
            &[
                1.0,
                0.5623413,
                0.3162278,
                0.1778279,
                0.1,
                0.05623413,
                0.02421119,
                0.00944711,
                0.00296875,
                0.0003514633,
                0.0001976424,
                0.0001111425,
                6.25e-05,
                3.514633e-05,
                1.976424e-05,
                1.111425e-05,
            ],
            1.5,
        ),
    ];
    for (dims, theta, scaling, want, scale) in cases {
        let mut keys = head(dims, theta);
        keys.push(("rope.scaling.type", text("yarn")));
        keys.extend_from_slice(scaling);
        let got = rope(&keys).expect("a scaling that is known");
        assert_eq!(got.inv_freq.len(), want.len());
        for (j, (got, want)) in got.inv_freq.iter().zip(want).enumerate() {
            assert!((got - want).abs() <= 2e-6 * want, "pair {j} of {dims}: {got} {want}");
        }
        assert!((got.scale - scale).abs() < 1e-6, "{} {scale}", got.scale);
    }
}

/// The attention factor reaches the logits, and all backends agree about it.
#[test]
fn yarn_runs() {
    let prompt: Vec<u32> = (0..16).map(|i| 7 * i + 11).collect();
    let logits = |kind: &str| -> Vec<Vec<f32>> {
        let file = file(&[
            ("rope.scaling.type", text(kind)),
            ("rope.scaling.factor", Value::F64(4.0)),
            ("rope.scaling.original_context_length", Value::U64(8)),
        ]);
        exact_backends().into_iter().map(|on| Run::new(load(&file, on, limits())).feed(&prompt)).collect()
    };
    let yarn = logits("yarn");
    for other in &yarn[1..] {
        assert!(octet_testkit::max_abs_diff(&yarn[0], other) < 1e-4);
    }
    assert!(octet_testkit::max_abs_diff(&yarn[0], &logits("linear")[0]) > 1e-3);
}

#[test]
fn a_factor_without_a_type_is_linear() {
    let plain = rope(&[]).expect("no scaling");
    let slower: Vec<f32> = plain.inv_freq.iter().map(|f| f / 4.0).collect();
    for keys in [
        vec![("rope.scaling.factor", Value::F64(4.0))],
        vec![("rope.scale_linear", Value::F64(4.0))],
        vec![("rope.scaling.type", text("linear")), ("rope.scaling.factor", Value::F64(4.0))],
    ] {
        assert_eq!(rope(&keys).expect("a scaling that is known").inv_freq, slower, "{keys:?}");
    }
    for keys in [
        vec![("rope.scaling.factor", Value::F64(0.0))],
        vec![("rope.scaling.type", text("none")), ("rope.scaling.factor", Value::F64(4.0))],
    ] {
        assert_eq!(rope(&keys).expect("no scaling"), plain, "{keys:?}");
    }
}

#[test]
fn scalings_that_are_refused() {
    let yarn =
        |key: &'static str, value: f64| vec![("rope.scaling.type", text("yarn")), (key, Value::F64(value))];
    for (keys, want) in [
        (vec![("rope.scaling.type", text("longrope"))], "rope.scaling.type"),
        (vec![("rope.scaling.factor", Value::F64(0.5))], "rope.scaling.factor"),
        (yarn("rope.scaling.yarn_ext_factor", 0.5), "yarn_ext_factor"),
        (yarn("rope.scaling.yarn_beta_slow", 0.0), "yarn_beta_slow"),
        (yarn("rope.scaling.yarn_beta_fast", 0.5), "yarn_beta_fast"),
        (yarn("rope.scaling.attn_factor", -1.0), "attn_factor"),
        (yarn("rope.scaling.original_context_length", 0.0), "original_context_length"),
    ] {
        let e = rope(&keys).expect_err(want);
        assert!(e.contains(want), "{e}");
    }
}

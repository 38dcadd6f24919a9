//! The figures of `octet route calibrate` against Python's: areas under ROC curves and their intervals, logistic regression, quantiles, and
//! calls against schemas. Fetches scikit-learn and others from the network, so that `OCTET_TEST_NETWORK` has to be set.

use std::io::Write;
use std::process::{Command, Stdio};

use octet_api::core::{TokenLogprob, Tool, ToolOrigin, TopLogprob};
use octet_router::calibrate::auc;
use octet_router::calibrate::logistic::{Logistic, Scaling};
use octet_router::calls::broken;
use octet_router::signal::{Token, value};
use serde_json::{Value, json};

use crate::common::python::python;

const PACKAGES: [&str; 3] = ["scikit-learn==1.9.1", "confidenceinterval==1.0.5", "jsonschema==4.26.0"];

const SCRIPT: &str = r#"
import json, sys
import numpy as np
from confidenceinterval import roc_auc_score as with_interval
from jsonschema import Draft202012Validator
from scipy.stats import entropy
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

given = json.load(sys.stdin)
out = {"auc": [], "fit": [], "signals": [], "calls": []}
for case in given["auc"]:
    x, y = zip(*case)
    y = [int(v) for v in y]
    _, (low, high) = with_interval(y, x)
    out["auc"].append([roc_auc_score(y, x), low, high])
for case in given["fit"]:
    x, y = np.array(case["x"]), np.array(case["y"])
    scaled = StandardScaler().fit_transform(x)
    fit = LogisticRegression(C=1 / case["penalty"], solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(scaled, y)
    out["fit"].append({"weights": fit.coef_[0].tolist(), "bias": fit.intercept_[0], "p": fit.predict_proba(scaled)[:, 1].tolist()})
for case in given["signals"]:
    p = np.exp(np.array(case))
    margins, entropies = np.log(p[:, 0] / p[:, 1]), np.array([entropy(np.append(q, 1 - q.sum())) for q in p])
    row = []
    for values, turned in [(p[:, 0], False), (margins, False), (entropies, True)]:
        row += [values.mean()] + [np.quantile(values, 1 - q if turned else q) for q in (0.0, 0.25, 0.5)]
    out["signals"].append(row)
for case in given["calls"]:
    out["calls"].append(Draft202012Validator(case["schema"]).is_valid(case["arguments"]))
json.dump(out, sys.stdout)
"#;

const SIGNALS: [&str; 12] = [
    "top1.mean",
    "top1.min",
    "top1.q25",
    "top1.q50",
    "margin.mean",
    "margin.min",
    "margin.q25",
    "margin.q50",
    "entropy.mean",
    "entropy.min",
    "entropy.q25",
    "entropy.q50",
];

fn close(ours: f64, theirs: &Value, tolerance: f64, what: &str) {
    let theirs = theirs.as_f64().expect("a number");
    assert!((ours - theirs).abs() <= tolerance, "{what}: {ours}, and Python says {theirs}");
}

/// Samples that overlap, with ties.
fn scored(rng: &mut fastrand::Rng) -> Vec<(f64, bool)> {
    let n = rng.usize(20..200);
    let lift = rng.f64();
    let mut out: Vec<(f64, bool)> = (0..n)
        .map(|_| {
            let right = rng.f64() < 0.4;
            let x = rng.f64() + if right { lift } else { 0.0 };
            ((x * 40.0).round() / 40.0, right)
        })
        .collect();
    out.extend([(0.5, true), (0.5, false), (0.25, true), (0.75, false)]);
    out
}

fn features(rng: &mut fastrand::Rng, n: usize, features: usize) -> (Vec<Vec<f64>>, Vec<bool>) {
    let hidden: Vec<f64> = (0..features).map(|_| rng.f64() - 0.5).collect();
    let x: Vec<Vec<f64>> = (0..n)
        .map(|_| hidden.iter().enumerate().map(|(j, _)| (rng.f64() - 0.4) * (1.0 + j as f64)).collect())
        .collect();
    let y = x.iter().map(|row| {
        let sum: f64 = row.iter().zip(&hidden).map(|(x, h)| x * h).sum();
        rng.f64() < 1.0 / (1.0 + (-sum).exp())
    });
    let mut y: Vec<bool> = y.collect();
    (y[0], y[1]) = (true, false);
    (x, y)
}

/// Five probabilities that leave something over.
fn distribution(rng: &mut fastrand::Rng) -> Vec<f32> {
    let mut left = 1.0;
    let mut out: Vec<f64> = (0..5)
        .map(|_| {
            let p = left * (0.1 + 0.8 * rng.f64());
            left -= p;
            p
        })
        .collect();
    out.sort_by(|a, b| b.total_cmp(a));
    out.into_iter().map(|p| p.ln() as f32).collect()
}

fn token(top: &[f32]) -> Token {
    let top: Vec<TopLogprob> = top
        .iter()
        .map(|l| TopLogprob { id: None, token: "t".into(), bytes: Vec::new(), logprob: *l })
        .collect();
    let logprob = Some(top[0].logprob);
    Token::of(&TokenLogprob { id: None, token: "t".into(), bytes: Vec::new(), logprob, top })
        .expect("it has one")
}

/// Schemas as tools have them, and arguments of all kinds for each.
fn calls() -> Vec<(Value, Value)> {
    let schemas = [
        json!({"type": "object", "properties": {"city": {"type": "string", "minLength": 2}, "days": {"type": "integer", "minimum": 1}}, "required": ["city"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"unit": {"enum": ["C", "F", null]}, "at": {"anyOf": [{"type": "number"}, {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2}]}}, "$defs": {"point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}}}),
        json!({"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "minProperties": 1, "not": {"required": ["bad"]}}),
        json!({"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"}, "list": {"type": "array", "uniqueItems": true, "prefixItems": [{"const": 1}]}}, "dependentRequired": {"code": ["list"]}}),
        json!({}),
    ];
    let arguments = [
        json!({}),
        json!({"city": "Köln"}),
        json!({"city": "K"}),
        json!({"city": 7}),
        json!({"city": "Köln", "days": 0}),
        json!({"city": "Köln", "days": 2.0}),
        json!({"city": "Köln", "days": 2.5}),
        json!({"city": "Köln", "more": 1}),
        json!({"unit": "C", "at": 1.5}),
        json!({"unit": null}),
        json!({"unit": "K"}),
        json!({"at": [{"x": 1}]}),
        json!({"at": [{"y": 1}]}),
        json!({"at": [{"x": 1}, {"x": 2}, {"x": 3}]}),
        json!({"at": "now"}),
        json!({"n_a": 1}),
        json!({"n_a": "1"}),
        json!({"bad": 1}),
        json!({"code": "AB12", "list": [1, 2]}),
        json!({"code": "AB12"}),
        json!({"code": "ab", "list": []}),
        json!({"list": [2]}),
        json!({"list": [1, 1]}),
    ];
    schemas.iter().flat_map(|s| arguments.iter().map(|a| (s.clone(), a.clone()))).collect()
}

fn asked(python: &std::path::Path, given: &Value) -> Value {
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let text = given.to_string();
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("Python reads");
    drop(stdin);
    let output = child.wait_with_output().expect("Python ends");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

#[test]
fn they_are_those_of_python() {
    let Some(python) = python("cascade-figures", &PACKAGES) else { return };
    let mut rng = fastrand::Rng::with_seed(15);
    let scores: Vec<_> = (0..12).map(|_| scored(&mut rng)).collect();
    // More samples than features, and fewer.
    let fits: Vec<_> = [(60, 3, 1.0), (200, 20, 10.0), (40, 100, 1.0), (80, 300, 100.0), (30, 64, 0.01)]
        .map(|(n, d, penalty)| (features(&mut rng, n, d), penalty))
        .into();
    let windows: Vec<Vec<Vec<f32>>> =
        (0..20).map(|i| (0..=i).map(|_| distribution(&mut rng)).collect()).collect();
    let calls = calls();
    let given = json!({
        "auc": scores,
        "fit": fits.iter().map(|((x, y), penalty)| json!({"x": x, "y": y, "penalty": penalty})).collect::<Vec<_>>(),
        "signals": windows,
        "calls": calls.iter().map(|(schema, arguments)| json!({"schema": schema, "arguments": arguments})).collect::<Vec<_>>(),
    });
    let theirs = asked(&python, &given);
    for (i, samples) in scores.iter().enumerate() {
        let ours = auc(samples).expect("there are both");
        close(ours.auc, &theirs["auc"][i][0], 1e-12, "AUC");
        // Theirs is of 32 bits, and goes beyond 1.
        let end = |end: &Value| json!(end.as_f64().expect("a number").clamp(0.0, 1.0));
        close(ours.low, &end(&theirs["auc"][i][1]), 1e-5, "its interval");
        close(ours.high, &end(&theirs["auc"][i][2]), 1e-5, "its interval");
    }
    for (i, ((x, y), penalty)) in fits.iter().enumerate() {
        let scaling = Scaling::of(x);
        let scaled: Vec<Vec<f64>> = x.iter().map(|row| scaling.apply(row)).collect();
        let ours = Logistic::fit(&scaled, y, *penalty).expect("it can be fitted");
        let theirs = &theirs["fit"][i];
        close(ours.bias, &theirs["bias"], 1e-5, "bias");
        for (j, w) in ours.weights.iter().enumerate() {
            close(*w, &theirs["weights"][j], 1e-5, "weight");
        }
        let unscaled = ours.unscaled(&scaling);
        for (j, row) in x.iter().enumerate() {
            close(unscaled.probability(row), &theirs["p"][j], 1e-5, "probability");
        }
    }
    for (i, window) in windows.iter().enumerate() {
        let tokens: Vec<Token> = window.iter().map(|top| token(top)).collect();
        for (j, name) in SIGNALS.iter().enumerate() {
            let ours = value(name.parse().expect("a signal"), &tokens).expect("there are tokens");
            close(ours, &theirs["signals"][i][j], 1e-6, name);
        }
    }
    let mut valid = 0;
    for (i, (schema, arguments)) in calls.iter().enumerate() {
        let tool = Tool {
            name: "f".into(),
            description: None,
            parameters: schema.as_object().expect("an object").clone(),
            strict: None,
            cache: None,
            origin: ToolOrigin::default(),
        };
        let fits = broken(&tool, &arguments.to_string()).is_none();
        valid += usize::from(fits);
        assert_eq!(Some(fits), theirs["calls"][i].as_bool(), "{arguments} against {schema}");
    }
    assert!(valid > 20 && valid < calls.len() - 20, "{valid} of {}", calls.len());
}

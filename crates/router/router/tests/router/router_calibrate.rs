//! The figures of `octet route calibrate` against those of scikit-learn 1.9 and of DeLong's interval in the package confidenceinterval 1.0.

use octet_router::calibrate::auc;
use octet_router::calibrate::logistic::{Logistic, Scaling};

const N: usize = 12;

fn right(i: usize) -> bool {
    (i * 5) % 7 < 3
}

fn close(ours: f64, theirs: f64) {
    assert!((ours - theirs).abs() < 1e-6, "{ours}, and Python says {theirs}");
}

#[test]
fn an_auc_and_its_interval_are_those_of_python() {
    // roc_auc_score(y, x), and confidenceinterval.roc_auc_score(y, x), which computes in 32 bits.
    let samples: Vec<(f64, bool)> = (0..N).map(|i| (((i * 3) % 8) as f64 / 8.0, right(i))).collect();
    let found = auc(&samples).unwrap();
    close(found.auc, 0.41428571428571426);
    close(found.low, 0.05227215188882528);
    close(found.high, 0.7762993465051872);
    assert_eq!(auc(&samples.iter().map(|s| (s.0, true)).collect::<Vec<_>>()), None);
    assert_eq!(auc(&[]), None);
}

#[test]
fn logistic_regression_is_that_of_python() {
    // LogisticRegression(C=1/2) on StandardScaler's features: coef_, intercept_, and predict_proba of the first three.
    let feature = |i: usize, j: usize| ((i * 7 + j * 5) % 11) as f64 / 4.0 + (j * ((i * i + j) % 3)) as f64;
    let x: Vec<Vec<f64>> = (0..N).map(|i| (0..3).map(|j| feature(i, j)).collect()).collect();
    let y: Vec<bool> = (0..N).map(right).collect();
    let scaling = Scaling::of(&x);
    let scaled: Vec<Vec<f64>> = x.iter().map(|row| scaling.apply(row)).collect();
    let fit = Logistic::fit(&scaled, &y, 2.0).unwrap();
    let weights = [0.2802048545593771, 0.43941098691272873, 0.7053880008822994];
    fit.weights.iter().zip(weights).for_each(|(ours, theirs)| close(*ours, theirs));
    close(fit.bias, -0.3588535391040038);
    let unscaled = fit.unscaled(&scaling);
    let probabilities = [0.5099657324260964, 0.3152756200293589, 0.34499360441962235];
    x.iter().zip(probabilities).for_each(|(row, theirs)| close(unscaled.probability(row), theirs));
    assert_eq!(Logistic::fit(&scaled, &[true; N], 2.0), None, "there is nothing to tell apart");
    assert_eq!(Logistic::fit(&[vec![f64::NAN], vec![1.0]], &[true, false], 2.0), None);
}

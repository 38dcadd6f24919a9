//! A pass through every verb under Vulkan's validation layers: there is no message, and there is one for each barrier that is skipped.
//! Layers are chosen when a process starts, so passes run in child processes: one for each pass without a message, and one for all passes that skip
//! a barrier. The latter are only recorded, since the layers find hazards in recorded commands.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use std::process::Command;

use layers::*;
use octet_compute::backend::{Backend, KvType};
use octet_compute::batch::Batch;
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::GgmlType;

/// The number of passes that skip one barrier: the first, the second, ...
const SKIPS: &str = "OCTET_TEST_SKIP_BARRIERS";
/// Printed before the messages of a pass without a barrier, with the barrier's number.
const WITHOUT: &str = "\nwithout barrier ";
/// The number of slots for experts.
const SLOTS: &str = "OCTET_TEST_EXPERT_SLOTS";
/// The number of tokens of the pass. Steps of few tokens have tails instead of some stages.
const TOKENS: &str = "OCTET_TEST_TOKENS";
/// Runs the verbs of the self-test instead, which has parts that few models have.
const SELF_TEST: &str = "OCTET_TEST_SELF_TEST";

/// The other test runs this one in child processes. Alone it is one more pass.
#[test]
fn passes_through_every_verb() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let number = |name| std::env::var(name).ok().map(|n| n.parse().expect("a number"));
    let slots = number(SLOTS).map(|n: u32| n as usize);
    let tokens = number(TOKENS).map_or(9, |n| n as usize);
    if number(SELF_TEST).is_some() {
        let mut device = Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("it opens");
        let checks = octet_compute::selftest::verbs(&mut device).expect("the device works");
        assert!(checks.iter().all(|c| c.passed()), "{checks:?}");
        return;
    }
    println!("barriers: {}", pass(index, slots, tokens, number(SKIPS).unwrap_or(0)));
}

/// Runs a pass and returns the number of its barriers. With `skips`, it is only recorded, so many times, without the first barrier, then
/// without the second, ...: a model is loaded once for all of them.
fn pass(index: usize, expert_slots: Option<usize>, n: usize, skips: u32) -> u32 {
    let mut device = Vulkan::new(&VulkanOptions { index, expert_slots, ..VulkanOptions::default() })
        .expect("the device opens");
    // norms over all heads in the one, gated queries in the other
    let whole_norm = expert_slots.is_none();
    let shape = Shape {
        head_dim: 32,
        gdn_dim: 32,
        ty: GgmlType::Q4_K,
        kv: KvType::F16.into(),
        whole_norm,
        gated: !whole_norm,
        ..plain_shape()
    };
    if skips > 0 {
        device.record_only();
    }
    let mut be = layers(device, &shape);
    let mut batch = Batch::default();
    batch.push(&tokens(0, n), 0, 0, &pages(0), n);
    // for the choice of tokens, of two rows with two workgroups each
    let logits = be.be.vector(&[0.5; 2 * 5000]).expect("room for logits");
    assert!(be.be.prepare_picks(2, 5000, &[u32::MAX; 157]).expect("room for picks"));
    for skip in u32::from(skips > 0)..=skips {
        if skip > 0 {
            println!("{WITHOUT}{skip}");
            be.be.skip_barrier(Some(skip));
        }
        be.step(&batch);
        be.be.pick(2, &logits);
        let mut picks = Vec::new();
        let is_computed = be.be.picks(1, &mut picks) && picks.len() == 64;
        assert!(is_computed || skip > 0);
    }
    be.be.last_step().0
}

/// The output of passes, with the messages of the layers.
fn passes(layers: &str, n: usize, slots: Option<u32>, skips: Option<u32>) -> String {
    child(layers, &[(TOKENS, Some(n as u32)), (SLOTS, slots), (SKIPS, skips)])
}

/// The output of a child process with these numbers in its environment.
fn child(layers: &str, numbers: &[(&str, Option<u32>)]) -> String {
    let program = std::env::current_exe().expect("this program");
    // Else the eleventh equal message of a process is left out.
    let settings = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        settings.path(),
        "khronos_validation.enable_message_limit = false\nkhronos_validation.duplicate_message_limit = 0\n",
    )
    .expect("written");
    let mut child = Command::new(program);
    child
        .args(["--exact", "passes_through_every_verb", "--nocapture"])
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        .env("VK_LAYER_SETTINGS_PATH", settings.path())
        .env("VK_LAYER_ENABLES", layers);
    for (name, value) in numbers {
        if let Some(value) = value {
            child.env(name, value.to_string());
        }
    }
    let out = child.output().expect("the passes run");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    text
}

/// Those of the first `skips` barriers whose absence the layers do not report.
fn unnoticed(layers: &str, n: usize, slots: Option<u32>, skips: u32) -> Vec<u32> {
    let text = passes(layers, n, slots, Some(skips));
    let each: Vec<&str> = text.split(WITHOUT).skip(1).collect();
    assert_eq!(each.len(), skips as usize, "{text}");
    (1..=skips).zip(each).filter(|(_, text)| !complains(text)).map(|(skip, _)| skip).collect()
}

fn complains(text: &str) -> bool {
    ["Validation Error", "VUID-", "SYNC-HAZARD"].iter().any(|m| text.contains(m))
}

#[test]
fn validation_finds_nothing_and_notices_a_missing_barrier() {
    if octet_testkit::vulkan_device().is_none() {
        return;
    }
    let sync = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT";
    // of many tokens, with two slots for four experts, which are two stages more; and of a few
    for (n, slots, other_slots) in [(9, Some(2), None), (2, None, Some(2))] {
        let text = passes(sync, n, other_slots, None);
        assert!(!complains(&text), "{text}");
        let text = passes(sync, n, slots, None);
        assert!(!complains(&text), "{text}");
        let barriers = text.split_once("barriers: ").expect("the pass ends").1.lines().next();
        let barriers = barriers.and_then(|n| n.parse().ok()).expect("a number");
        assert!(barriers > 10, "a pass has stages: {text}");
        // the pass ends with `norm` and `norm_outputs`, which read the same rows: the barrier between them orders a write after a write,
        // which the layers do not report
        assert_eq!(unnoticed(sync, n, slots, barriers), [barriers], "with {n} tokens");
    }
    // a prompt, in whose steps projections are tiles that share what they read. It is submitted in parts, the longest of which has 15 stages at least
    for slots in [None, Some(2)] {
        let text = passes(sync, 40, slots, None);
        assert!(!complains(&text), "{text}");
    }
    let first = unnoticed(sync, 40, None, 64).first().copied();
    assert!(
        first.is_none_or(|first| first > 15),
        "of a prompt, a part without its barrier {first:?} is not noticed"
    );
    let bounds = "VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT";
    for (n, slots) in [(9, None), (9, Some(2)), (2, None), (40, None), (40, Some(2))] {
        let text = passes(bounds, n, slots, None);
        assert!(!complains(&text), "{text}");
    }
    let text = child(sync, &[(SELF_TEST, Some(1))]);
    assert!(!complains(&text), "{text}");
}

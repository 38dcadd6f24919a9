//! A pass through every verb under Vulkan's validation layers: no message; and a message where a barrier that is needed is left out.
//! Each pass is a process of its own, because the layers are chosen when a process starts.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use std::process::Command;

use layers::*;
use octet_compute::backend::{Backend, KvType};
use octet_compute::batch::Batch;
use octet_vulkan::{Vulkan, VulkanOptions};
use octet_weights::GgmlType;

/// Says which barrier the pass leaves out.
const SKIP: &str = "OCTET_TEST_SKIP_BARRIER";
/// Says how many slots experts have.
const SLOTS: &str = "OCTET_TEST_EXPERT_SLOTS";
/// Says how many tokens the pass has: in steps of a few, the last workgroup of a stage does the work of some stages of many.
const TOKENS: &str = "OCTET_TEST_TOKENS";

/// What the other test runs in a process of its own; without it, one more pass.
#[test]
fn a_pass_through_every_verb() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let expert_slots = std::env::var(SLOTS).ok().map(|n| n.parse().expect("a number"));
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
    device.skip_barrier(std::env::var(SKIP).ok().map(|n| n.parse().expect("a number")));
    let mut be = layers(device, &shape);
    let mut batch = Batch::default();
    let n = std::env::var(TOKENS).map_or(9, |n| n.parse().expect("a number"));
    batch.push(&tokens(0, n), 0, 0, &pages(0), n);
    be.step(&batch);
    println!("barriers: {}", be.be.last_step().0);
    // the choice of tokens, of two rows with two workgroups each
    let logits = be.be.vector(&[0.5; 2 * 5000]).expect("room for logits");
    assert!(be.be.prepare_picks(2, 5000, &[u32::MAX; 157]).expect("room for picks"));
    be.be.pick(2, &logits);
    let mut picks = Vec::new();
    assert!(be.be.picks(1, &mut picks) && picks.len() == 64);
}

fn messages(layers: &str, n: usize, skip: Option<u32>, slots: Option<u32>) -> (String, u32) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child
        .args(["--exact", "a_pass_through_every_verb", "--nocapture"])
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
        .env("VK_LAYER_ENABLES", layers)
        .env(TOKENS, n.to_string());
    if let Some(slots) = slots {
        child.env(SLOTS, slots.to_string());
    }
    if let Some(skip) = skip {
        child.env(SKIP, skip.to_string());
    }
    let out = child.output().expect("the pass runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    // without a barrier a kernel may read garbage, and crash
    assert!(out.status.success() || skip.is_some(), "{text}");
    let number: String = match text.split_once("barriers: ") {
        Some((_, rest)) => rest.chars().take_while(char::is_ascii_digit).collect(),
        None => String::new(), // it crashed
    };
    let barriers = number.parse().unwrap_or(0);
    (text, barriers)
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
        let (text, _) = messages(sync, n, None, other_slots);
        assert!(!complains(&text), "{text}");
        let (text, barriers) = messages(sync, n, None, slots);
        assert!(!complains(&text), "{text}");
        assert!(barriers > 10, "a pass has stages: {text}");
        let unnoticed: Vec<u32> =
            (1..=barriers).filter(|i| !complains(&messages(sync, n, Some(*i), slots).0)).collect();
        // the pass ends with `norm` and `norm_outputs`, which read the same rows: the barrier between them orders a write after a write,
        // which the layers do not report
        assert_eq!(unnoticed, [barriers], "with {n} tokens");
    }
    // a prompt, in whose steps projections are tiles that share what they read. It is submitted in parts, the longest of which has 15 stages at least
    for slots in [None, Some(2)] {
        let (text, _) = messages(sync, 40, None, slots);
        assert!(!complains(&text), "{text}");
    }
    let noticed = (1..64).take_while(|i| complains(&messages(sync, 40, Some(*i), None).0)).count();
    assert!(noticed >= 15, "of a prompt, a part without its barrier {} is not noticed", noticed + 1);
    let bounds = "VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT";
    for (n, slots) in [(9, None), (9, Some(2)), (2, None), (40, None), (40, Some(2))] {
        let (text, _) = messages(bounds, n, None, slots);
        assert!(!complains(&text), "{text}");
    }
}

//! What goes wrong with a device: an index that does not exist, too little memory, a device that is lost in the middle. All are errors.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use layers::*;
use octet_compute::backend::*;
use octet_compute::batch::Batch;
use octet_vulkan::{MemoryLimit, Vulkan, VulkanOptions};

fn options() -> Option<VulkanOptions> {
    Some(VulkanOptions { index: octet_testkit::vulkan_device()?, ..VulkanOptions::default() })
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    if options().is_none() {
        return;
    }
    let error =
        Vulkan::new(&VulkanOptions { index: 99, ..VulkanOptions::default() }).err().expect("no such device");
    assert!(error.to_string().contains("vulkan:99"), "{error}");
}

#[test]
fn too_little_memory_is_an_error_with_sizes() {
    let Some(options) = options() else { return };
    let memory_limit = Some(MemoryLimit::new(64 << 20));
    let mut device = Vulkan::new(&VulkanOptions { memory_limit, ..options }).expect("room to start");
    let all: Vec<_> = (0..64).map(|_| device.buf(4 << 20)).collect();
    let error = all.iter().find_map(|buf| buf.as_ref().err()).expect("a GiB does not fit in 64 MiB");
    assert!(error.to_string().contains("MiB") && error.to_string().contains("--gpu-memory"), "{error}");
    // what is given back can be had again
    drop(all);
    device.buf(4 << 20).expect("there is room again");
}

/// Small buffers share allocations, which are used again, or make room for a large buffer.
#[test]
fn memory_of_freed_small_buffers_is_reused() {
    let Some(options) = options() else { return };
    let memory_limit = Some(MemoryLimit::new(128 << 20));
    let mut device = Vulkan::new(&VulkanOptions { memory_limit, ..options }).expect("room to start");
    let fill = |device: &mut Vulkan| {
        let all: Vec<_> = std::iter::from_fn(|| device.buf(5 << 18).ok()).take(100).collect();
        all.len()
    };
    let first = fill(&mut device);
    assert!((12..26).contains(&first), "{first} buffers of 5 MiB in 128 MiB");
    for _ in 0..3 {
        // The first block, too, though a buffer in it stays.
        assert_eq!(fill(&mut device), first);
        device.buf(22 << 20).expect("88 MiB, as nothing but the first block is in use");
    }
}

/// A model and its draft model, or two models of a server.
#[test]
fn backends_share_a_limit_and_give_back_what_they_took() {
    let Some(options) = options() else { return };
    let options = VulkanOptions { memory_limit: Some(MemoryLimit::new(128 << 20)), ..options };
    let open = || Vulkan::new(&options).expect("room to start");
    let (mut one, mut other) = (open(), open());
    let large = one.buf(15 << 20).expect("60 MiB beside two blocks of 32 MiB");
    let error = other.buf(4 << 20).err().expect("no room for 16 MiB").to_string();
    assert!(error.contains("--gpu-memory"), "{error}");
    drop(large);
    let large = other.buf(15 << 20).expect("the first gave it back");
    assert!(one.buf(15 << 20).is_err());
    drop((large, other));
    one.buf(20 << 20).expect("80 MiB beside one block");
}

#[test]
fn a_lost_device_ends_the_step_with_an_error_and_not_the_process() {
    let Some(options) = options() else { return };
    let mut be = layers(Vulkan::new(&options).expect("the device opens"), &plain_shape());
    let mut batch = Batch::default();
    batch.push(&tokens(0, 5), 0, 0, &pages(0), 1);
    be.step(&batch);
    be.be.lose_device_after(0);
    let mut out = [1.0; 4];
    let norm = &mut be.norm.weight;
    let one = Batch::of_tokens(&[1]);
    let buf =
        be.be.step(Pass::Other, &batch, |device| device.embed(&one, &be.embedding, TableRow::Id, 1.0, norm));
    let error = buf.expect_err("the device is lost").to_string();
    assert!(error.contains("lost"), "{error}");
    be.be.read(&be.norm.weight, &mut out);
    assert!(be.be.step(Pass::Other, &batch, |_| {}).is_err(), "the next step reports an earlier failure");
}

/// `--device auto` runs the self-test at every start.
#[test]
fn the_self_test_saves_its_kernels_for_the_next_start() {
    let Some(options) = options() else { return };
    let folder = std::env::temp_dir().join(format!("octet-self-test-{}", std::process::id()));
    let options = VulkanOptions { kernel_cache: Some(folder.clone()), ..options };
    let open = || Vulkan::new(&options).expect("the device opens");
    let mut first = open();
    assert_eq!(first.loaded_kernel_bytes(), 0);
    first.self_test().expect("the device works");
    assert!(open().loaded_kernel_bytes() > 0);
    std::fs::remove_dir_all(&folder).expect("it was made");
}

#[test]
fn the_self_test_passes_and_names_what_is_wrong() {
    let Some(options) = options() else { return };
    let open = || Vulkan::new(&options).expect("the device opens");
    let checks = open().self_test().expect("the device works");
    let wrong: Vec<String> = checks.iter().filter(|c| !c.passed()).map(ToString::to_string).collect();
    assert!(checks.len() >= 37 && wrong.is_empty(), "{wrong:?}");
    // Drivers that get some kernels wrong, each of which other checks find.
    for broken in [
        &[("linear", &["linear Q4_K, to the bit"][..])][..],
        &[("linear_tile", &["linear Q6_K, to the bit"])],
        &[
            ("attend", &["attend", "attend in both directions"]),
            ("gdn", &["gdn", "gdn from another slot"]),
            ("pick", &["largest logits, to the bit"]),
            ("embed", &["embed F32 ahead, to the bit", "embed Q6_K ahead, to the bit"]),
            ("route", &["moe"]),
        ],
        &[("rope", &["attend"]), /* its last workgroups store values */ ("combine", &["moe"])],
    ] {
        let mut device = open();
        broken.iter().for_each(|(kernel, _)| device.break_kernel(kernel));
        let checks = device.self_test().expect("it is wrong, not lost");
        let wrong: Vec<&str> = checks.iter().filter(|c| !c.passed()).map(|c| c.name.as_str()).collect();
        for (kernel, verbs) in broken {
            assert!(
                verbs.iter().all(|verb| wrong.contains(verb)),
                "without the last workgroup of {kernel}: {wrong:?}"
            );
        }
        let found = |check: &str| {
            broken.iter().any(|(kernel, verbs)| {
                check.starts_with(kernel) || verbs.iter().any(|verb| check.starts_with(verb))
            })
        };
        let is_linear = broken[0].0.starts_with("linear");
        assert!(is_linear || wrong.iter().all(|check| found(check)), "only {broken:?} are wrong: {wrong:?}");
    }
}

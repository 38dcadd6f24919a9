//! A graphics device is lost in the middle of answers: all requests get the reason, the engine ends, and another one opens the device again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::drive::{collect, greedy, open, options, prompt};
use octet_engine::Error;
use octet_engine::device::Device;
use octet_engine::engine;
use octet_vulkan::{Vulkan, VulkanOptions};

/// Submissions after which the device is lost: in the middle of the answers, long after the model was loaded.
const LOST_AFTER: u32 = 400;

#[test]
fn a_lost_device_ends_the_engine_and_can_be_opened_again() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let opened = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&opened);
    let device = Device::new("vulkan", move || {
        let mut device =
            Vulkan::new(&VulkanOptions { index, lazy_kernels: true, ..VulkanOptions::default() })?;
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            device.lose_device_after(LOST_AFTER);
        }
        Ok(device)
    });
    let options = engine::Options { device: Some(device), max_seqs: 2, ..options() };
    let requests = || [greedy(prompt(20, 1), 10_000), greedy(prompt(30, 2), 10_000)];

    let handle = open("llama", options.clone());
    let events =
        requests().map(|r| handle.submit(engine::Request { max_tokens: None, ..r }).expect("there is room"));
    for events in &events {
        let error = collect(events).expect_err("the device is lost");
        assert!(matches!(&error, Error::Device(why) if why.contains("lost")), "{error}");
    }
    handle.join().expect("the thread ends well");
    assert!(
        handle.is_finished() && handle.submit(greedy(prompt(5, 3), 1)).is_err(),
        "no request is left waiting"
    );

    let handle = open("llama", options);
    for r in requests() {
        let got =
            collect(&handle.submit(engine::Request { max_tokens: Some(8), ..r }).expect("there is room"));
        assert_eq!(got.expect("it works again")[&0].tokens.len(), 8);
    }
    assert_eq!(opened.load(Ordering::Relaxed), 2);
}

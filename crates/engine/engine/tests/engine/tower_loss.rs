//! The device of a tower is lost while it encodes an image: all requests get the reason, the engine ends, and another one opens the device again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use octet_engine::Error;
use octet_engine::device::Device;
use octet_engine::engine;
use octet_engine::scheduler::{Handle, Options};
use octet_vulkan::faults::{Fault, Faults};
use octet_vulkan::{Vulkan, VulkanOptions};

use crate::common::drive::collect;
use crate::vision::{engine_options, files, picture, request};

#[test]
fn a_lost_device_of_a_tower_ends_the_engine_and_can_be_opened_again() {
    let Some(index) = octet_testkit::vulkan_device() else { return };
    let Some((_, file)) = files("qwen3vl").into_iter().next() else { return };
    let (opened, faults) = (Arc::new(AtomicU32::new(0)), Arc::new(Faults::default()));
    let (count, injected) = (Arc::clone(&opened), Arc::clone(&faults));
    let device = Device::new("vulkan", move || {
        let options = VulkanOptions { index, exact: true, lazy_kernels: true, ..VulkanOptions::default() };
        let mut device = Vulkan::new(&options)?;
        // The model's comes first, then the tower's.
        if count.fetch_add(1, Ordering::Relaxed) == 1 {
            device.inject_faults(Arc::clone(&injected));
        }
        Ok(device)
    });
    let mut options = engine::Options { device: Some(device), ..engine_options(&file, None, 64) };
    options.vision.as_mut().expect("a tower").on_device = true;
    let open = || {
        let options = Options { engine: options.clone(), queue: 16 };
        let text = octet_weights::Model::open(octet_testkit::shared("zoo/vision/gguf/qwen3vl.gguf")?);
        Some(Handle::open(text.expect("it opens"), &options, |_, _| {}).expect("a tiny model opens"))
    };
    let Some(handle) = open() else { return };
    let reader = Arc::clone(handle.rules().images.as_ref().expect("it sees"));
    let image = reader.resize(&picture("qwen3vl.0.png").expect("an image")).expect("it is usable");
    let about = |prompt: Vec<u32>| request(prompt, &[Arc::clone(&image)], 8);

    faults.inject(Fault::Lost);
    let image = handle.submit(about(vec![1, reader.token, 2])).expect("there is room");
    let error = collect(&image).expect_err("the device is lost");
    assert!(matches!(&error, Error::Device(why) if why.contains("lost")), "{error}");
    handle.join().expect("the thread ends well");
    // By this a server knows that it is to load the model again.
    assert!(handle.lost().is_some_and(|why| why.contains("lost")) && handle.is_finished());
    assert!(handle.submit(request(vec![1, 2], &[], 1)).is_err(), "no request is left waiting");

    let handle = open().expect("the same file");
    let got = collect(&handle.submit(about(vec![1, reader.token, 2])).expect("there is room"));
    assert_eq!(got.expect("it works again")[&0].tokens.len(), 8);
    assert_eq!(opened.load(Ordering::Relaxed), 4);
}

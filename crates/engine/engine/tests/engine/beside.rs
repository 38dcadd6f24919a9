//! The tokenizer is built beside the load of the weights: an error of either is the same as one after the other.

use std::time::{Duration, Instant};

use octet_engine::Error;
use octet_engine::device::Device;
use octet_engine::engine::{Engine, beside};
use octet_engine::models::Limits;
use octet_engine::models::loader::GoesOn;
use octet_engine::tokenizer::Tokenizer;
use octet_weights::Value;

use crate::common::drive::{file, options};

#[test]
fn both_are_there() {
    let file = file("llama");
    let want = Tokenizer::from_metadata(&file.metadata).expect("a tokenizer").bos_token();
    let (tokenizer, loaded) = beside::tokenizer(&file.metadata, |goes_on| Ok(goes_on())).expect("both");
    assert_eq!((tokenizer.bos_token(), loaded), (want, true));
    let own = beside::tokenizer(&file.metadata, |_| Err::<(), _>(Error::NoSlot));
    assert!(matches!(own, Err(Error::NoSlot)), "an error of the load");
}

#[test]
fn a_tokenizer_that_cannot_be_built_ends_the_load() {
    let mut file = file("llama");
    file.metadata.insert("tokenizer.ggml.model", Value::Str("none".into()));
    let want = Tokenizer::from_metadata(&file.metadata).expect_err("no tokenizer").to_string();
    let since = Instant::now();
    let load = |goes_on: GoesOn<'_>| {
        while goes_on() {
            assert!(since.elapsed() < Duration::from_secs(60), "it is not told to end");
            std::thread::yield_now();
        }
        let mut bytes = 0;
        let mut progress = |done: u64, _: u64| bytes = done;
        let loaded = Device::default().load_while(&file, Limits::single(64), &mut progress, goes_on);
        assert!(matches!(loaded, Err(Error::LoadGivenUp)) && bytes < file.size_bytes(), "{bytes}");
        loaded
    };
    let why = beside::tokenizer(&file.metadata, load).err().map(|e| e.to_string());
    assert_eq!(why, Some(want.clone()));
    let opened = Engine::open(&file, &options(), &mut |_, _| {});
    assert_eq!(opened.err().map(|e| e.to_string()), Some(want));
}

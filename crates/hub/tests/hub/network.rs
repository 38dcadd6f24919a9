//! The README's first download, for real. Needs a network and fetches 93 MiB, so it runs only where
//! `OCTET_TEST_NETWORK` is set.

use crate::support::Recorder;
use octet_hub::{Hub, HubConfig, Reference, Silent};

#[test]
fn the_first_command_finds_its_model() {
    if std::env::var_os("OCTET_TEST_NETWORK").is_none() {
        // Not by eprintln!, which the test harness swallows.
        let line = "skipped: fetches 93 MiB from the network; set OCTET_TEST_NETWORK=1 to run it\n";
        std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut config = HubConfig::from_env(|name| std::env::var(name).ok()).unwrap();
    config.cache = dir.path().to_path_buf();
    config.offline = false;
    let model = Reference::parse("smollm2:135m").unwrap();
    let progress = Recorder::default();
    let begun = std::time::Instant::now();
    let hub = Hub::new(config.clone());
    // The network may fail for a moment; a pull continues where the last one ended.
    let mut tries = (1..=3).map(|n| (n, hub.pull(&model, &progress)));
    let path = tries.find_map(|(n, pulled)| match pulled {
        Err(e) if n < 3 => {
            eprintln!("try {n}: {e}");
            std::thread::sleep(std::time::Duration::from_secs(10));
            None
        }
        last => Some(last),
    });
    let path = path.expect("there is a last one").unwrap_or_else(|e| panic!("{e}"));
    for line in progress.all().iter().filter(|l| !l.starts_with("Advanced")) {
        eprintln!("{line}");
    }
    eprintln!("{} in {:.1?}", path.display(), begun.elapsed());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 98_362_432);
    assert_eq!(
        crate::support::sha256(&std::fs::read(&path).unwrap()),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    );
    config.offline = true;
    assert_eq!(Hub::new(config).pull(&model, &Silent).unwrap(), path);
}
